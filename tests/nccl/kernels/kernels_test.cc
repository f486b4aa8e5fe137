// SPDX-License-Identifier: Apache-2.0
// The reduction kernels for devices, run by the host or by a device (kernel_runner.h), beside those
// of the core: the same bits.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <iostream>
#include <random>
#include <vector>

#include "core/engine/reduce.h"
#include "cuda/kernels/reduce_layout.h"
#include "nccl/kernels/kernel_runner.h"

namespace weir::kernels {
namespace {

using Bytes = std::vector<unsigned char, test::Allocator<unsigned char>>;

uint64_t seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  const uint64_t value = text == nullptr ? 20260801 : std::strtoull(text, nullptr, 10);
  std::cout << "WEIR_TEST_SEED=" << value << "\n";
  return value;
}

// Bits of all kinds: numbers of like size, so that sums round, and now and then anything at all.
Bytes random_bytes(std::mt19937_64& random, DataType type, size_t count) {
  const size_t width = element_bytes(type);
  Bytes bytes(count * width);
  for (size_t i = 0; i < count; ++i) {
    uint64_t bits = random();
    if (bits % 8 != 0) {
      const float near = static_cast<float>(static_cast<int64_t>(random() % 4001) - 2000) / 512.0f;
      const double near_double = near;
      uint32_t word = 0;
      std::memcpy(&word, &near, sizeof word);
      if (type == DataType::kFloat32) bits = word;
      if (type == DataType::kFloat64) std::memcpy(&bits, &near_double, sizeof bits);
      if (type == DataType::kBfloat16) bits = word >> 16;
      if (type == DataType::kFloat16) bits = (random() & 0x83ff) | (random() % 20 + 5) << 10;
    }
    std::memcpy(bytes.data() + i * width, &bits, width);
  }
  return bytes;
}

struct Case {
  DataType type;
  Fold fold;
  uint32_t source_count;
  size_t count;
  bool average = false;
  bool scaled = false;
};

// Sources and destinations at some element of a buffer, alike or not, and the first destination in
// place of a source or not.
void compare(std::mt19937_64& random, const Case& it) {
  const size_t width = element_bytes(it.type);
  const bool alike = random() % 2 == 0;
  const size_t shift = random() % 17;
  const auto place = [&] { return (alike ? shift : random() % 17) * width; };
  const bool in_place = random() % 2 == 0;
  ReduceArguments a;
  a.count = it.count;
  a.source_count = it.source_count;
  a.destination_count = static_cast<uint32_t>(1 + random() % 3);
  a.fold = static_cast<ReduceFold>(it.fold);
  a.divisor = it.average ? it.source_count : 1;
  a.scaled = it.scaled ? 1 : 0;
  std::vector<Bytes> sources;
  std::vector<Bytes> scaled;  // what the core folds
  std::vector<const void*> folded;
  std::vector<size_t> places;
  for (uint32_t s = 0; s < it.source_count; ++s) {
    sources.push_back(random_bytes(random, it.type, it.count + 32));
    places.push_back(place());
  }
  const ReduceKernel kernel = reduce_kernel(it.type, it.fold, Arithmetic::kNccl);
  for (uint32_t s = 0; s < it.source_count; ++s) {
    a.sources[s] = sources[s].data() + places[s];
    scaled.emplace_back(static_cast<const unsigned char*>(a.sources[s]),
                        static_cast<const unsigned char*>(a.sources[s]) + it.count * width);
    if (!it.scaled) continue;
    const Bytes factor = random_bytes(random, it.type, 1);
    std::memcpy(&a.scales[s], factor.data(), width);
    ReduceArgs args;
    const void* source = scaled.back().data();
    args.dst = scaled.back().data();
    args.sources = &source;
    args.source_count = 1;
    args.element_count = it.count;
    args.scaled_source = 0;
    args.scale = factor.data();
    kernel(args);
  }
  for (const Bytes& source : scaled) folded.push_back(source.data());
  Bytes wanted(it.count * width);
  ReduceArgs args;
  args.dst = wanted.data();
  args.sources = folded.data();
  args.source_count = it.source_count;
  args.element_count = it.count;
  args.divisor = a.divisor;
  kernel(args);

  std::vector<Bytes> destinations;
  for (uint32_t d = 0; d < a.destination_count; ++d) {
    destinations.emplace_back((it.count + 32) * width, static_cast<unsigned char>(0xcd));
    a.destinations[d] = destinations.back().data() + place();
  }
  if (in_place) a.destinations[0] = const_cast<void*>(a.sources[random() % it.source_count]);
  const unsigned blocks = lay_out(&a, width);
  EXPECT_LE(blocks, kBlocksMax);
  test::run(static_cast<uint32_t>(it.type), a, blocks);
  for (uint32_t d = 0; d < a.destination_count; ++d) {
    const auto* got = static_cast<const unsigned char*>(a.destinations[d]);
    ASSERT_EQ(Bytes(got, got + it.count * width), wanted)
        << "type " << static_cast<int>(it.type) << ", fold " << static_cast<int>(it.fold) << ", "
        << it.source_count << " sources, " << it.count << " elements, average " << it.average
        << ", scaled " << it.scaled << ", destination " << d;
    if (d == 0 && in_place) continue;
    const Bytes& whole = destinations[d];
    const auto begin = static_cast<size_t>(got - whole.data());
    for (size_t i = 0; i < whole.size(); ++i) {
      if (i >= begin && i < begin + it.count * width) continue;
      ASSERT_EQ(whole[i], 0xcd) << "written outside, byte " << i;
    }
  }
}

TEST(ReduceKernels, EveryTypeAndFoldGivesTheBitsOfTheCore) {
  std::mt19937_64 random(seed());
  for (uint32_t type = 0; type < kDataTypeCount; ++type) {
    for (uint32_t fold = 0; fold < kFoldCount; ++fold) {
      for (int round = 0; round < 12; ++round) {
        const auto sources = static_cast<uint32_t>(2 + random() % (round % 6 == 0 ? 63 : 5));
        compare(random, {static_cast<DataType>(type), static_cast<Fold>(fold), sources,
                         static_cast<size_t>(1 + random() % (round % 4 == 0 ? 20000 : 300))});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(ReduceKernels, AveragesAndPreMultipliedSumsToo) {
  std::mt19937_64 random(seed());
  for (uint32_t type = 0; type < kDataTypeCount; ++type) {
    for (int round = 0; round < 24; ++round) {
      const auto sources = static_cast<uint32_t>(2 + random() % 9);
      compare(random, {static_cast<DataType>(type), Fold::kSum, sources,
                       static_cast<size_t>(1 + random() % 700), round % 2 == 0, round % 2 == 1});
      if (HasFatalFailure()) return;
    }
  }
}

// All codes of the 8-bit floats beside each other, and all of the 16-bit ones beside a few.
TEST(ReduceKernels, EveryCodeOfASmallFloat) {
  for (const DataType type :
       {DataType::kFloat8E4M3, DataType::kFloat8E5M2, DataType::kFloat16, DataType::kBfloat16}) {
    const size_t width = element_bytes(type);
    const size_t codes = width == 1 ? 256 : 65536;
    const uint16_t others[] = {0,      0x8000, 1,      0x3c00, 0x7bff, 0x7c00, 0xfc00,
                               0x7e01, 0x3f80, 0x0400, 0x8001, 0x7f7f, 0x4248};
    const size_t rows = width == 1 ? 256 : sizeof others / sizeof others[0];
    Bytes first(rows * codes * width);
    Bytes second(first.size());
    for (size_t row = 0; row < rows; ++row) {
      for (size_t code = 0; code < codes; ++code) {
        const size_t at = (row * codes + code) * width;
        const size_t other = width == 1 ? row : others[row];
        std::memcpy(first.data() + at, &code, width);
        std::memcpy(second.data() + at, &other, width);
      }
    }
    for (const Fold fold : {Fold::kSum, Fold::kProd, Fold::kMax, Fold::kMin}) {
      Bytes wanted(first.size());
      Bytes got(first.size());
      const void* sources[] = {first.data(), second.data()};
      ReduceArgs args;
      args.dst = wanted.data();
      args.sources = sources;
      args.source_count = 2;
      args.element_count = first.size() / width;
      reduce_kernel(type, fold, Arithmetic::kNccl)(args);
      ReduceArguments a;
      a.count = args.element_count;
      a.source_count = 2;
      a.destination_count = 1;
      a.fold = static_cast<ReduceFold>(fold);
      a.sources[0] = sources[0];
      a.sources[1] = sources[1];
      a.destinations[0] = got.data();
      const unsigned blocks = lay_out(&a, width);
      test::run(static_cast<uint32_t>(type), a, blocks);
      EXPECT_TRUE(got == wanted) << "type " << static_cast<int>(type) << ", fold "
                                 << static_cast<int>(fold);
    }
  }
}

TEST(ReduceKernels, VectorsAreUsedWhereAllBuffersAllowIt) {
  alignas(16) static float memory[3][64];
  ReduceArguments a;
  a.count = 50;
  a.source_count = 2;
  a.destination_count = 1;
  a.sources[0] = memory[0] + 1;
  a.sources[1] = memory[1] + 5;
  a.destinations[0] = memory[2] + 9;
  EXPECT_EQ(lay_out(&a, sizeof(float)), 1u);
  EXPECT_EQ(a.head_count, 3u);
  a.sources[1] = memory[1] + 6;
  (void)lay_out(&a, sizeof(float));
  EXPECT_EQ(a.head_count, 50u);
  a.sources[1] = memory[1] + 1;
  a.count = 2;
  (void)lay_out(&a, sizeof(float));
  EXPECT_EQ(a.head_count, 2u);
  a.count = uint64_t{1} << 40;
  EXPECT_EQ(lay_out(&a, sizeof(float)), kBlocksMax);
}

}  // namespace
}  // namespace weir::kernels
