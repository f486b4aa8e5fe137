// SPDX-License-Identifier: Apache-2.0
// Every kernel says whether a gradient was not finite, whatever the state and the factors are.
#include <cmath>
#include <vector>

#include "offload/kernels/support.h"

namespace weir::offload::test {
namespace {

constexpr Method kMethods[] = {Method::kAdamW, Method::kAdam, Method::kSgdMomentum,
                               Method::kAdagrad, Method::kLion};
constexpr StateFormat kFormats[] = {StateFormat::kFloat32, StateFormat::kHalfMaster,
                                    StateFormat::kHalfMaster8};
constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16};

// As many bits as the type has: exact in each of them.
enum class Gradient { kOne, kLargest, kInfinity, kMinusInfinity, kNaN };

void put(unsigned char* at, DataType type, uint64_t element, Gradient gradient) {
  const auto row = static_cast<size_t>(gradient);
  constexpr uint32_t kFloat[] = {0x3f800000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7f800001};
  constexpr uint16_t kBf16[] = {0x3f80, 0x7f7f, 0x7f80, 0xff80, 0x7f81};
  constexpr uint16_t kF16[] = {0x3c00, 0x7bff, 0x7c00, 0xfc00, 0x7c01};
  if (type == DataType::kFloat32) return write(at, element, kFloat[row]);
  write(at, element, type == DataType::kBfloat16 ? kBf16[row] : kF16[row]);
}

// One step over a chunk of zeros, or of any bits.
struct Chunk {
  Chunk(Method method, StateFormat format, DataType gradient_type, uint64_t count)
      : layout(chunk_layout(method, format, count)),
        state(layout.chunk_bytes),
        copy(count),
        gradient(count * element_bytes(gradient_type)),
        type(gradient_type) {
    for (uint64_t i = 0; i < count; ++i) put(gradient.data(), type, i, Gradient::kOne);
  }
  bool step(const Hyper& hyper, float factor) {
    StepRange range;
    range.layout = &layout;
    range.source = state.data();
    range.destination = state.data();
    range.count = layout.element_count;
    range.gradient = gradient.data();
    range.gradient_type = type;
    range.gradient_factor = factor;
    if (has_half_master(layout.format)) range.copy_in = range.copy_out = copy.data();
    return step_range(step_factors(layout.method, hyper, 1), range);
  }
  ChunkLayout layout;
  std::vector<unsigned char> state;
  std::vector<uint16_t> copy;
  std::vector<unsigned char> gradient;
  DataType type;
};

// Calls body(method, format, type) for all of them on every instruction set.
template <class Body>
void everywhere(Body body) {
  for (const int64_t target : instruction_sets()) {
    const ForcedTarget forced(target);
    SCOPED_TRACE(hwy::TargetName(target));
    for (const Method method : kMethods)
      for (const StateFormat format : kFormats)
        for (const DataType type : kTypes) {
          SCOPED_TRACE(std::string(name_of(method)) + " " + name_of(format) + " " + name_of(type));
          body(method, format, type);
          if (testing::Test::HasFailure()) return;
        }
  }
}

TEST(NotFinite, OneGradientOfManyIsSeenWhereverItLies) {
  constexpr uint64_t kCount = 1000;
  everywhere([](Method method, StateFormat format, DataType type) {
    for (const uint64_t at : {0, 1, 63, 64, 300, 511, 767, 768, 990, 999}) {
      for (const Gradient bad : {Gradient::kInfinity, Gradient::kMinusInfinity, Gradient::kNaN}) {
        Chunk chunk(method, format, type, kCount);
        put(chunk.gradient.data(), type, at, bad);
        EXPECT_FALSE(chunk.step({}, 0.5f)) << at;
      }
    }
  });
}

TEST(NotFinite, FactorsThatHideTheResultDoNotHideTheGradient) {
  Hyper still;
  still.learning_rate = 0;
  still.beta1 = 0;
  still.beta2 = 0;
  still.momentum = 0;
  still.eps = 0;
  everywhere([&](Method method, StateFormat format, DataType type) {
    for (const float factor : {0.0f, 1.0f, 1e-30f}) {
      for (const Gradient bad : {Gradient::kInfinity, Gradient::kNaN}) {
        Chunk chunk(method, format, type, 300);
        put(chunk.gradient.data(), type, 100, bad);
        EXPECT_FALSE(chunk.step(still, factor)) << factor;
      }
      Chunk chunk(method, format, type, 300);
      EXPECT_TRUE(chunk.step(still, factor)) << factor;
    }
  });
}

TEST(NotFinite, OneThatTheFactorMakesInfiniteIsSeenToo) {
  everywhere([](Method method, StateFormat format, DataType type) {
    Chunk chunk(method, format, type, 300);
    put(chunk.gradient.data(), type, 200, Gradient::kLargest);
    EXPECT_TRUE(chunk.step({}, 1.0f));
    EXPECT_FALSE(chunk.step({}, 1e36f));
  });
}

// A state that holds infinities and NaN says nothing about the gradients.
TEST(NotFinite, AStateOfAnyBitsWithFiniteGradientsIsFine) {
  everywhere([](Method method, StateFormat format, DataType type) {
    std::mt19937_64 random(seed());
    Chunk chunk(method, format, type, 777);
    for (auto& byte : chunk.state) byte = static_cast<unsigned char>(random());
    for (auto& half : chunk.copy) half = static_cast<uint16_t>(random());
    for (uint64_t i = 0; i < 777; i += 5) put(chunk.gradient.data(), type, i, Gradient::kLargest);
    EXPECT_TRUE(chunk.step({}, 1.0f));
    put(chunk.gradient.data(), type, 776, Gradient::kNaN);
    EXPECT_FALSE(chunk.step({}, 1.0f));
  });
}

}  // namespace
}  // namespace weir::offload::test
