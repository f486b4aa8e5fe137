// SPDX-License-Identifier: Apache-2.0
// Exports: memory of devices that this process has made by mapping (cuMemCreate, cuMemMap), for
// other processes of the machine. Each allocation has a descriptor, which stays open here; a
// directory lists the descriptors. A process that is given an ExportKey takes the directory and
// then the descriptors (descriptors.h), and checks with the directory that they are from the right
// process.
//
// An allocation is identified by its handle, which is kept: while it is kept, CUDA gives no other
// allocation the same value. So memory that is mapped anew at an address differs from what was
// there before. Handle and descriptor keep the memory alive, also when the program has unmapped it.
// An allocation that is no longer mapped where it was is released when the next one is exported;
// once kLetGoBytesMax have been released, nothing more is exported, since other processes may hold
// those allocations until they end.
//
// The directory is an unnamed file; all numbers are in the byte order of the machine:
//
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

#include "core/base/process_number.h"
#include "cuda/driver_table.h"

namespace weir::comm {

inline constexpr size_t kExportsMax = 256;
inline constexpr size_t kExportedAllocationsMax = 256;
// Limit of the adjacent allocations under one buffer.
inline constexpr size_t kPiecesMax = 64;
// Limit of the exported allocations that the program has unmapped since.
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

// Where to find an export. Crosses the wire.
struct ExportKey {
  int32_t process = 0;
  int32_t book = -1;  // a descriptor there
  uint32_t record = 0;
  uint32_t zero = 0;
};

struct Export {
  uint64_t base = 0;  // of the first allocation, in this process
  uint64_t bytes = 0;
  uint64_t number = 0;  // unique in this process
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

// Exports the allocation that `memory` lies in and those that follow, up to `bytes` from there; the
// number stays the same while the allocations do.
Refusal export_memory(const cuda::Driver& driver, uint64_t memory, uint64_t bytes, Export* made);

}  // namespace weir::comm
