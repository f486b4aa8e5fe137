// SPDX-License-Identifier: Apache-2.0
// The arguments of the kernel that makes several copies at once, passed by value, and how they are
// divided over its blocks. The layout is the same for the library, the kernel that nvcc compiles,
// and its host function in Weir's stand-in for CUDA. Plain data; pure functions.
//
// The copies take turns with the blocks: block b works on copy b % count, so that all of them, and
// with them the links to all peers, are busy from the beginning.
#pragma once

#include <cstdint>

#include "cuda/kernels/qualifiers.h"
#include "cuda/kernels/reduce_arguments.h"

namespace weir::kernels {

inline constexpr uint32_t kCopyThreads = 512;
// As much as the threads of a block have under way at once.
inline constexpr uint64_t kCopyBytesPerBlock = uint64_t{32} << 10;
// Enough under way for the links of a device (450 GB/s and 2 us), and no more, since the program
// may compute meanwhile.
inline constexpr uint32_t kCopyBlocksMax = 64;
// Shares of a copy begin at multiples of this.
inline constexpr uint64_t kCopyAlign = 256;

struct CopyPiece {
  char* to = nullptr;
  const char* from = nullptr;
  uint64_t bytes = 0;
};

struct CopyArguments {
  uint32_t count = 0;  // 1 to kRanksMax
  uint32_t zero = 0;
  CopyPiece copies[kRanksMax] = {};  // none overlaps another one's destination
};
static_assert(sizeof(CopyArguments) == 8 + 24 * kRanksMax);
static_assert(sizeof(CopyArguments) < 4096, "parameters of a kernel");

inline constexpr const char* kCopyName = "weir_copies";

// How many blocks to launch: as many for each copy.
inline uint32_t copy_block_count(const CopyArguments& a) {
  uint64_t longest = 0;
  for (uint32_t i = 0; i < a.count; ++i) {
    longest = a.copies[i].bytes > longest ? a.copies[i].bytes : longest;
  }
  const uint64_t most = kCopyBlocksMax / a.count > 0 ? kCopyBlocksMax / a.count : 1;
  const uint64_t wanted = (longest + kCopyBytesPerBlock - 1) / kCopyBytesPerBlock;
  return a.count * static_cast<uint32_t>(wanted < 1 ? 1 : (wanted < most ? wanted : most));
}

// What a block copies.
WEIR_KERNEL CopyPiece share_of_block(const CopyArguments& a, uint32_t block, uint32_t block_count) {
  const CopyPiece& all = a.copies[block % a.count];
  const uint64_t shares = block_count / a.count;
  const uint64_t share =
      ((all.bytes + shares - 1) / shares + kCopyAlign - 1) / kCopyAlign * kCopyAlign;
  const uint64_t wanted = block / a.count * share;
  const uint64_t begin = wanted < all.bytes ? wanted : all.bytes;
  const uint64_t left = all.bytes - begin;
  CopyPiece piece;
  piece.to = all.to + begin;
  piece.from = all.from + begin;
  piece.bytes = left < share ? left : share;
  return piece;
}

}  // namespace weir::kernels
