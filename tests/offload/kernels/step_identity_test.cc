// SPDX-License-Identifier: Apache-2.0
// The bits of a step do not depend on instruction set, alignment, chunking, sharding, thread count,
// place of the result or the caller's floating-point control register.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "offload/kernels/float_environment.h"
#include "offload/kernels/parts.h"
#include "offload/kernels/support.h"

namespace weir::offload {
namespace {

using namespace test;

constexpr uint64_t kIndexBefore2To32 = (uint64_t{1} << 32) - 300;

struct Sample {
  Method method;
  StateFormat format;
  DataType gradient_type;
  DataType parameter_type;
  bool stochastic;
  bool hostile;  // any bytes for state and gradient
  uint64_t count;
};

std::string describe(const Sample& s) {
  return std::string(name_of(s.method)) + " " + name_of(s.format) + " gradient " +
         name_of(s.gradient_type) + " parameter " + name_of(s.parameter_type) +
         (s.stochastic ? " stochastic" : "") + (s.hostile ? " hostile" : "") + " count " +
         std::to_string(s.count);
}

class Inputs {
 public:
  explicit Inputs(const Sample& sample)
      : Inputs(sample, sample.hostile ? Draw::kHostile : Draw::kTame, seed() + sample.count) {}
  Inputs(const Sample& sample, Draw draw, uint64_t draw_seed)
      : layout(chunk_layout(sample.method, sample.format, sample.count)),
        chunk(layout.chunk_bytes),
        copy(sample.count),
        gradient(sample.count * element_bytes(sample.gradient_type)) {
    Values values(draw_seed, draw);
    std::vector<float> p(sample.count), m(sample.count), v(sample.count);
    for (uint64_t i = 0; i < sample.count; ++i) {
      p[i] = values.next(1);
      m[i] = values.next(1e-3f);
      v[i] = values.next_positive(1e-6f);
      store_element(gradient.data(), sample.gradient_type, i, values.next(1e-3f));
    }
    encode_state(layout, 0, sample.count, p.data(), m.data(), v.data(), chunk.data(), copy.data());
    if (sample.hostile && sample.format != StateFormat::kFloat32) {
      // Also state that no step has made.
      for (uint64_t i = 0; i < layout.state_bytes; i += 1 + values.bits() % 64) {
        chunk[i] = static_cast<unsigned char>(values.bits());
      }
    }
  }
  ChunkLayout layout;
  std::vector<unsigned char> chunk;
  std::vector<uint16_t> copy;
  std::vector<unsigned char> gradient;
};

struct Outputs {
  std::vector<unsigned char> chunk, copy, parameter;
  bool operator==(const Outputs&) const = default;
};

struct Manner {
  size_t misalignment = 0;
  bool in_place = true;
  bool streaming = true;
  std::function<void(const StepFactors&, const StepRange&)> call =
      [](const auto& f, const auto& r) { step_range(f, r); };
};

Outputs run(const Sample& sample, const Inputs& inputs, const Manner& manner) {
  const size_t shift = manner.misalignment;
  const bool half = has_half_master(sample.format);
  GuardedBytes source(inputs.layout.chunk_bytes);
  GuardedBytes destination(inputs.layout.chunk_bytes);
  GuardedBytes gradient(inputs.gradient.size(), shift);
  GuardedBytes copy_in(inputs.copy.size() * 2, (shift * 3) % 64);
  GuardedBytes copy_out(inputs.copy.size() * 2, (shift * 5) % 64);
  GuardedBytes parameter(sample.count * element_bytes(sample.parameter_type), (shift * 7) % 64);
  std::memcpy(source.data(), inputs.chunk.data(), source.size());
  std::memcpy(gradient.data(), inputs.gradient.data(), gradient.size());
  std::memcpy(copy_in.data(), inputs.copy.data(), copy_in.size());

  Hyper hyper;
  hyper.weight_decay = 0.01;
  const StepFactors factors = step_factors(sample.method, hyper, 7);
  StepRange range;
  range.layout = &inputs.layout;
  range.source = source.data();
  range.destination = manner.in_place ? source.data() : destination.data();
  range.count = sample.count;
  range.gradient = gradient.data();
  range.gradient_type = sample.gradient_type;
  range.gradient_factor = 0.625f;
  if (half) {
    range.copy_in = copy_in.as<uint16_t>();
    range.copy_out = manner.in_place ? copy_in.as<uint16_t>() : copy_out.as<uint16_t>();
    range.write_copy_plane = true;
  }
  range.parameter_out = parameter.data();
  range.parameter_type = sample.parameter_type;
  range.stochastic_rounding = sample.stochastic;
  range.streaming = manner.streaming;
  range.seed = 99;
  range.first_index = kIndexBefore2To32;
  EXPECT_TRUE(validate(range).ok()) << validate(range).text();
  manner.call(factors, range);

  Outputs out;
  // Only the planes: what lies between them belongs to nobody.
  GuardedBytes& written = manner.in_place ? source : destination;
  for (const PlaneExtent& plane : inputs.layout.planes) {
    const unsigned char* at = written.data() + plane.offset_bytes;
    out.chunk.insert(out.chunk.end(), at, at + plane.bytes);
  }
  if (half) out.copy = (manner.in_place ? copy_in : copy_out).copy();
  out.parameter = parameter.copy();
  return out;
}

void in_pieces(const StepFactors& factors, const StepRange& range, uint64_t piece) {
  if (range.layout->format == StateFormat::kHalfMaster8) {
    piece = (piece + kMomentBlock - 1) / kMomentBlock * kMomentBlock;
  }
  // From the last one on, so that order cannot matter either.
  for (uint64_t begin = (range.count - 1) / piece * piece;; begin -= piece) {
    step_range(factors, part_of(range, begin, std::min(piece, range.count - begin)));
    if (begin == 0) return;
  }
}

std::vector<Sample> samples(uint64_t count) {
  std::vector<Sample> all;
  for (const Method method : kMethods) {
    for (const StateFormat format : kFormats) {
      for (const bool hostile : {false, true}) {
        const size_t turn = all.size();
        const DataType gradient = kGradientTypes[turn % 3];
        all.push_back({method, format, gradient, DataType::kBfloat16, true, hostile, count});
        all.push_back({method, format, kGradientTypes[(turn + 1) % 3], DataType::kFloat16, hostile,
                       hostile, count});
        all.push_back({method, format, DataType::kBfloat16, kGradientTypes[turn % 2 * 2], false,
                       hostile, count});
      }
    }
  }
  return all;
}

void expect_same(const Outputs& expected, const Outputs& actual, const Sample& sample,
                 const std::string& manner) {
  EXPECT_EQ(expected.chunk == actual.chunk, true) << describe(sample) << ": state, " << manner;
  EXPECT_EQ(expected.copy == actual.copy, true) << describe(sample) << ": copy, " << manner;
  EXPECT_EQ(expected.parameter == actual.parameter, true)
      << describe(sample) << ": parameter, " << manner;
}

TEST(StepIdentity, InstructionSetsGiveTheSameBits) {
  const std::vector<int64_t> targets = instruction_sets();
  for (const uint64_t count : {1u, 31u, 64u, 100u, 700u}) {
    for (const Sample& sample : samples(count)) {
      const Inputs inputs(sample);
      Outputs first;
      for (const int64_t target : targets) {
        const ForcedTarget forced(target);
        const Outputs out = run(sample, inputs, {});
        if (target == targets.front()) {
          first = out;
        } else {
          expect_same(first, out, sample, hwy::TargetName(target));
        }
      }
      if (HasFailure()) return;
    }
  }
}

// Known from x86 and from Arm: instruction sets that no one machine has beside each other.
TEST(StepIdentity, TheBitsAreThoseOfOtherMachines) {
  uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a
  for (const Sample& sample : samples(700)) {
    if (sample.hostile) continue;
    const Outputs out = run(sample, Inputs(sample, Draw::kEven, 1), {});
    for (const auto* bytes : {&out.chunk, &out.copy, &out.parameter}) {
      for (const unsigned char byte : *bytes) digest = (digest ^ byte) * 0x100000001b3u;
    }
  }
  EXPECT_EQ(digest, 13250711869721210855u);
}

TEST(StepIdentity, EveryInstructionSetIsTried) {
#if defined(__x86_64__)
  EXPECT_GE(instruction_sets().size(), 2u);
#endif
  for (const int64_t target : instruction_sets()) {
    const ForcedTarget forced(target);
    EXPECT_STREQ(step_kernel_target(), hwy::TargetName(target));
  }
}

TEST(StepIdentity, ManyOrdinaryValuesGiveTheSameBits) {
  const std::vector<int64_t> targets = instruction_sets();
  for (const Method method : kMethods) {
    for (const bool hostile : {false, true}) {
      const Sample sample{
          method, StateFormat::kFloat32, DataType::kFloat32, DataType::kFloat16, false, hostile,
          100'003};
      const Inputs inputs(sample);
      Outputs first;
      for (const int64_t target : targets) {
        const ForcedTarget forced(target);
        const Outputs out = run(sample, inputs, {});
        if (target == targets.front()) first = out;
        expect_same(first, out, sample, hwy::TargetName(target));
      }
    }
  }
}

TEST(StepIdentity, AlignmentAndPlaceOfTheResultDoNotMatter) {
  for (const Sample& sample : samples(700)) {
    const Inputs inputs(sample);
    const Outputs expected = run(sample, inputs, {});
    for (size_t shift = 1; shift < 64; shift += 3) {
      Manner manner;
      manner.misalignment = shift;
      manner.in_place = shift % 2 == 0;
      manner.streaming = shift % 3 == 0;
      expect_same(expected, run(sample, inputs, manner), sample, "shift " + std::to_string(shift));
    }
    if (HasFailure()) return;
  }
}

TEST(StepIdentity, PiecesInAnyOrderGiveTheSameBits) {
  for (const Sample& sample : samples(1030)) {
    const Inputs inputs(sample);
    const Outputs expected = run(sample, inputs, {});
    for (const uint64_t piece : {1u, 7u, 32u, 33u, 256u, 512u, 1000u}) {
      Manner manner;
      manner.call = [piece](const auto& f, const auto& r) { in_pieces(f, r, piece); };
      expect_same(expected, run(sample, inputs, manner), sample, "pieces " + std::to_string(piece));
    }
    if (HasFailure()) return;
  }
}

TEST(StepIdentity, ThreadCountsGiveTheSameBits) {
  for (const StateFormat format : kFormats) {
    const Sample sample{Method::kAdamW, format, DataType::kBfloat16, DataType::kBfloat16,
                        true,           true,   3 * kStepBlock + 777};
    const Inputs inputs(sample);
    const Outputs expected = run(sample, inputs, {});
    for (const uint32_t threads : {1u, 2u, 3u, 8u}) {
      auto pool = WorkerPool::create({.thread_count = threads});
      ASSERT_TRUE(pool.ok()) << pool.status().text();
      Manner manner;
      manner.call = [&](const auto& f, const auto& r) { parallel_step(*pool.value(), f, r); };
      expect_same(expected, run(sample, inputs, manner), sample, std::to_string(threads));
    }
  }
}

// The same elements as the second half of one chunk and as a chunk of their own.
TEST(StepIdentity, AnotherShardingGivesTheSameBits) {
  for (const StateFormat format : kFormats) {
    constexpr uint64_t kCount = 1024, kCut = 512;
    const Sample sample{Method::kAdamW, format, DataType::kFloat32, DataType::kBfloat16, true,
                        false,          kCount};
    const Inputs whole(sample);
    std::vector<float> p(kCount), m(kCount), v(kCount);
    decode_state(whole.layout, 0, kCount, whole.chunk.data(), whole.copy.data(), p.data(), m.data(),
                 v.data());
    const Sample part_sample{Method::kAdamW, format, DataType::kFloat32, DataType::kBfloat16,
                             true,           false,  kCount - kCut};
    Inputs part(part_sample);
    encode_state(part.layout, 0, kCount - kCut, p.data() + kCut, m.data() + kCut, v.data() + kCut,
                 part.chunk.data(), part.copy.data());
    std::memcpy(part.gradient.data(), whole.gradient.data() + kCut * 4, (kCount - kCut) * 4);
    Manner moved;
    moved.call = [](const auto& f, StepRange r) {
      r.first_index += kCut;
      step_range(f, r);
    };
    const Outputs all = run(sample, whole, {});
    const Outputs half = run(part_sample, part, moved);
    EXPECT_TRUE(
        std::equal(half.parameter.begin(), half.parameter.end(), all.parameter.begin() + kCut * 2));
    const PlaneExtent& in_all = whole.layout.plane(Plane::kSecondMoment);
    const PlaneExtent& in_half = part.layout.plane(Plane::kSecondMoment);
    const uint64_t bytes = in_all.bytes / kCount;
    // `chunk` of Outputs holds the planes without gaps.
    const uint64_t before_all = 2 * kCut * (format == StateFormat::kFloat32 ? 8 : 2 + bytes);
    const uint64_t before_half = before_all / 2;
    EXPECT_TRUE(std::equal(half.chunk.begin() + before_half,
                           half.chunk.begin() + before_half + in_half.bytes,
                           all.chunk.begin() + before_all + kCut * bytes))
        << name_of(format);
  }
}

TEST(StepIdentity, TheCallersControlRegisterNeitherMattersNorChanges) {
  for (const Sample& sample : samples(300)) {
    const Inputs inputs(sample);
    const Outputs expected = run(sample, inputs, {});
    const uint64_t saved = FloatEnvironment::read();
#if defined(__x86_64__)
    FloatEnvironment::write(saved | 0x6000);  // towards zero
#else
    FloatEnvironment::write(saved);
#endif
    const uint64_t before = FloatEnvironment::read();
    const Outputs out = run(sample, inputs, {});
    const uint64_t after = FloatEnvironment::read();
    FloatEnvironment::write(saved);
    EXPECT_EQ(before, after);
    expect_same(expected, out, sample, "rounding towards zero");
    if (HasFailure()) return;
  }
}

// Whatever the half format, the step itself is that of f32 on the restored state.
TEST(StepIdentity, HalfMasterStepsAsFloat32OnTheSameState) {
  for (const Method method : kMethods) {
    for (const StateFormat format : {StateFormat::kHalfMaster, StateFormat::kHalfMaster8}) {
      constexpr uint64_t kCount = 5000;
      const Sample sample{method, format, DataType::kBfloat16, DataType::kFloat32, false,
                          false,  kCount};
      const Inputs inputs(sample);
      std::vector<float> p(kCount), m(kCount), v(kCount);
      decode_state(inputs.layout, 0, kCount, inputs.chunk.data(), inputs.copy.data(), p.data(),
                   m.data(), v.data());
      Sample plain = sample;
      plain.format = StateFormat::kFloat32;
      Inputs same(plain);
      same.gradient = inputs.gradient;
      encode_state(same.layout, 0, kCount, p.data(), m.data(), v.data(), same.chunk.data(),
                   nullptr);
      const Outputs half = run(sample, inputs, {});
      const Outputs whole = run(plain, same, {});
      EXPECT_EQ(half.parameter == whole.parameter, true) << describe(sample);
    }
  }
}

}  // namespace
}  // namespace weir::offload
