// SPDX-License-Identifier: Apache-2.0
// Exports: memory of devices that this process has made by mapping (cuMemCreate, cuMemMap), as
// descriptors for other processes of the machine (imports.h): one for each of the allocations that
// lie side by side, and one of a sealed file that lists their lengths, in the byte order of the
// machine:
//
//   0   8  kPiecesMagic
//   8   8  the number of allocations
//  16   8  for each: its length
//
// A descriptor keeps its allocation alive. Stateless; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/driver_table.h"
#include "output/owned_descriptor.h"

namespace weir::comm {

// Limit of the adjacent allocations under one buffer.
inline constexpr size_t kPiecesMax = 64;
inline constexpr uint64_t kPiecesMagic = 0x3173636570726577;  // "werpecs1"

struct Exported {
  uint64_t base = 0;   // of the first allocation, in this process
  uint64_t bytes = 0;  // of all
  OwnedDescriptor list;
  std::vector<OwnedDescriptor> pieces;
};

// Why there is no export. Crosses the wire.
enum class Refusal : uint32_t {
  kNone,
  kUnknown,
  kNoFunctions,
  kPool,
  kNotExportable,
  kHole,
  kPieces,
  kSystem,
  kCuda,
};
std::string text_of(Refusal refusal);

// Exports the allocation that `memory` lies in and those that follow, up to `bytes` from there.
Refusal export_memory(const cuda::Driver& driver, uint64_t memory, uint64_t bytes, Exported* made);

}  // namespace weir::comm
