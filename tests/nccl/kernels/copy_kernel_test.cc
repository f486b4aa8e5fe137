// SPDX-License-Identifier: Apache-2.0
// The kernel that makes several copies at once, as a function of the host: what its blocks do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cuda/kernels/copy_host.h"

namespace weir::kernels {
namespace {

constexpr size_t kLengths[] = {1, 255, 256, 257, 32768, 100'003, 1'000'001};

std::vector<char> numbered(size_t bytes, int seed) {
  std::vector<char> it(bytes);
  for (size_t i = 0; i < bytes; ++i) it[i] = static_cast<char>(i * 7 + static_cast<size_t>(seed));
  return it;
}

TEST(CopyKernel, EveryByteIsCopiedAndNoOtherOne) {
  for (const uint32_t count : {1u, 2u, 3u, 7u, 8u, 64u}) {
    std::vector<std::vector<char>> from;
    std::vector<std::vector<char>> to;
    CopyArguments arguments;
    arguments.count = count;
    for (uint32_t i = 0; i < count; ++i) {
      // Of different lengths, and at any address.
      from.push_back(numbered(kLengths[i % std::size(kLengths)] + 3, static_cast<int>(i)));
      to.emplace_back(from.back().size(), 'x');
      arguments.copies[i] = {to[i].data() + 1, from[i].data() + 1, from[i].size() - 3};
    }
    copy_on_host(arguments, copy_block_count(arguments));
    for (uint32_t i = 0; i < count; ++i) {
      std::vector<char> expected = from[i];
      expected.front() = 'x';
      std::fill(expected.end() - 2, expected.end(), 'x');
      EXPECT_EQ(to[i], expected) << "copy " << i << " of " << count;
    }
  }
}

// With fewer blocks than copies nothing would be read from some peers before others are done.
TEST(CopyKernel, TheFirstBlocksBelongToDifferentCopies) {
  std::vector<char> memory(size_t{8} << 20);
  for (uint32_t count = 1; count <= kRanksMax; ++count) {
    CopyArguments arguments;
    arguments.count = count;
    const uint64_t bytes = memory.size() / count;
    for (uint32_t i = 0; i < count; ++i) arguments.copies[i] = {nullptr, &memory[i * bytes], bytes};
    const uint32_t blocks = copy_block_count(arguments);
    EXPECT_EQ(blocks % count, 0u);
    EXPECT_LE(blocks, std::max(kCopyBlocksMax, count));
    for (uint32_t block = 0; block < count; ++block) {
      const CopyPiece piece = share_of_block(arguments, block, blocks);
      EXPECT_EQ(piece.from, &memory[block * bytes]);
      EXPECT_GT(piece.bytes, 0u);
    }
  }
}

}  // namespace
}  // namespace weir::kernels
