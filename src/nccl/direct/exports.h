// SPDX-License-Identifier: Apache-2.0
// Exports: memory of devices that this process has made by mapping (cuMemCreate, cuMemMap), as other
// processes of the machine come to it: a descriptor of each allocation, which stays open here, and a
// book that says which those are. Who is told an ExportKey takes the book and then the descriptors
// (descriptors.h), and knows by the book whether it has them from the right process.
//
// An allocation is known by its handle, which is kept: CUDA gives no other allocation that value as long
// as it is. So memory that is mapped anew at an address is told from what was there before. Handle and
// descriptor keep the memory, also when the program has unmapped it: what is no longer mapped where it was
// is let go of when the next allocation is exported, and after kLetGoBytesMax of it nothing more is, since
// other processes may hold it until they end.
//
// The book, a file without a name; all numbers as the machine has them:
//   0   8  kBookMagic
//   8  16  the process's number
//  24   8  zero
//  then kExportsMax records of 1048 bytes:
//   0   8  the export's number; 0: there is none
//   8   8  bytes of all pieces
//  16   4  pieces
//  20   4  zero
//  24  16  for each of kPiecesMax pieces: bytes (8), descriptor (4), zero (4)
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/driver_table.h"
#include "nccl/process.h"

namespace weir::nccl {

inline constexpr size_t kExportsMax = 256;
inline constexpr size_t kExportedAllocationsMax = 256;
// Allocations that lie side by side under one buffer.
inline constexpr size_t kPiecesMax = 64;
// Of allocations that were exported and that the program has unmapped since.
inline constexpr uint64_t kLetGoBytesMax = uint64_t{1} << 30;

inline constexpr uint64_t kBookMagic = 0x3170786572696577;  // "weirexp1"

struct BookHead {
  uint64_t magic = kBookMagic;
  ProcessNumber process{};
  uint64_t zero = 0;
};
struct BookPiece {
  uint64_t bytes = 0;
  int32_t descriptor = -1;
  uint32_t zero = 0;
};
struct BookRecord {
  uint64_t number = 0;
  uint64_t bytes = 0;
  uint32_t piece_count = 0;
  uint32_t zero = 0;
  BookPiece pieces[kPiecesMax];
};
static_assert(sizeof(BookHead) == 32 && sizeof(BookRecord) == 24 + 16 * kPiecesMax);

// Where an export stands. Crosses the wire.
struct ExportKey {
  int32_t process = 0;
  int32_t book = -1;  // a descriptor there
  uint32_t record = 0;
  uint32_t zero = 0;
};

struct Export {
  uint64_t base = 0;  // of the first allocation, in this process
  uint64_t bytes = 0;
  uint64_t number = 0;  // which this process gives once
  ExportKey key;
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
  kFull,
  kLetGo,
  kSystem,
  kCuda,
};
std::string text_of(Refusal refusal);

// Of the allocation that `memory` lies in and of those that follow, up to `bytes` from there; the same
// number as long as these are the same.
Refusal export_memory(const cuda::Driver& driver, uint64_t memory, uint64_t bytes, Export* made);

}  // namespace weir::nccl
