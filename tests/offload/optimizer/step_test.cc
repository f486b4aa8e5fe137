// SPDX-License-Identifier: Apache-2.0
// A step gives the same bits wherever the state lies and however the gradients come.
#include <cmath>

#include "offload/optimizer/optimizer_support.h"

namespace weir::offload::test {
namespace {

// Of all working buffers of 16 KiB chunks, and some chunks.
constexpr uint64_t kSomeResident = uint64_t{9} << 19;

TEST(Step, MemoryDrivesAndMixedPlacementGiveTheSameBits) {
  const Groups groups = mixed_groups();
  const Values expected = in_memory(groups, 5);
  for (const uint64_t memory : {uint64_t{0}, kSomeResident, uint64_t{1} << 30}) {
    for (const uint32_t directories : {1, 3}) {
      ScratchDirectory scratch;
      OptimizerOptions options = small_options();
      options.memory_bytes = memory;
      for (uint32_t d = 0; d < directories; ++d)
        options.directories.push_back(scratch / std::to_string(d));
      const auto optimizer = stepped(options, groups, 5);
      ASSERT_NE(optimizer, nullptr);
      EXPECT_TRUE(same_bits(values_of(*optimizer, groups), expected))
          << memory << " bytes: " << optimizer->describe();
    }
  }
}

TEST(Step, ThreadsChunksAndDivisionsOfTheGradientDoNotMatter) {
  const Groups groups = mixed_groups();
  StepOptions clipped;
  clipped.loss_scale = 8;
  clipped.norm_max = 0.25;
  const Values expected = in_memory(groups, 3, clipped);
  for (const uint32_t threads : {1, 2, 3}) {
    for (const uint64_t chunk_bytes : {8192, 65536, 1 << 20}) {
      OptimizerOptions options = small_options();
      options.thread_count = threads;
      options.chunk_bytes = chunk_bytes;
      const auto optimizer = stepped(options, groups, 0);
      ASSERT_NE(optimizer, nullptr);
      ASSERT_OK(run_steps(*optimizer, groups, 0, 3, seed() + threads, clipped));
      EXPECT_TRUE(same_bits(values_of(*optimizer, groups), expected))
          << threads << " threads, chunks of " << chunk_bytes;
    }
  }
}

// Ranks hold consecutive parts of each group, on borders of blocks.
TEST(Step, AnyShardingGivesTheSameBitsAndStochasticOutputs) {
  const Groups whole = mixed_groups();
  const auto run = [&](uint32_t ranks) {
    std::vector<std::vector<uint16_t>> outputs(whole.size());
    for (uint32_t g = 0; g < whole.size(); ++g) outputs[g].resize(whole[g].element_count);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      Groups part = whole;
      for (ParameterGroup& group : part) {
        const uint64_t each = group.element_count / ranks / kMomentBlock * kMomentBlock;
        group.first_element = rank * each;
        group.element_count = rank + 1 == ranks ? group.element_count - rank * each : each;
      }
      OptimizerOptions options = small_options();
      options.rank = rank;
      options.rank_count = ranks;
      const auto optimizer = made(Optimizer::create(options, part));
      EXPECT_TRUE(set_first(*optimizer, part).ok());
      for (uint32_t g = 0; g < part.size(); ++g)
        EXPECT_TRUE(optimizer
                        ->set_output(g, g % 2 == 0 ? DataType::kBfloat16 : DataType::kFloat16,
                                     outputs[g].data() + part[g].first_element, true)
                        .ok());
      EXPECT_TRUE(run_steps(*optimizer, part, 0, 3).ok());
    }
    return outputs;
  };
  const auto expected = run(1);
  EXPECT_EQ(run(2), expected);
  EXPECT_EQ(run(3), expected);
}

struct Reference {
  double p = 0, m = 0, v = 0;
  void step(Method method, const Hyper& h, double g, uint64_t t) {
    const double lr = h.learning_rate;
    const double wd = h.weight_decay;
    if (method == Method::kAdamW || method == Method::kLion)
      p -= lr * wd * p;
    else
      g += wd * p;
    const auto step_count = static_cast<double>(t);
    switch (method) {
      case Method::kAdamW:
      case Method::kAdam:
        m = h.beta1 * m + (1 - h.beta1) * g;
        v = h.beta2 * v + (1 - h.beta2) * g * g;
        p -= lr * (m / (1 - std::pow(h.beta1, step_count))) /
             (std::sqrt(v / (1 - std::pow(h.beta2, step_count))) + h.eps);
        return;
      case Method::kSgdMomentum:
        m = h.momentum * m + g;
        p -= lr * m;
        return;
      case Method::kAdagrad:
        v += g * g;
        p -= lr * g / (std::sqrt(v) + h.eps);
        return;
      case Method::kLion: {
        const double c = h.beta1 * m + (1 - h.beta1) * g;
        p -= lr * (c > 0 ? 1 : c < 0 ? -1 : 0);
        m = h.beta2 * m + (1 - h.beta2) * g;
        return;
      }
    }
  }
};

TEST(Step, EachMethodFollowsAScalarReference) {
  for (uint32_t method = 0; method < kMethodCount; ++method) {
    Groups groups(1);
    groups[0].name = "w";
    groups[0].element_count = 2000;
    groups[0].method = static_cast<Method>(method);
    groups[0].hyper.weight_decay = 0.1;
    groups[0].hyper.learning_rate = 0.01;
    groups[0].hyper.eps = 1e-3;
    StepOptions scaled;
    scaled.loss_scale = 4;
    const Values got = in_memory(groups, 6, scaled);
    for (uint64_t i = 0; i < groups[0].element_count; ++i) {
      Reference reference;
      reference.p = first_value(0, i);
      for (uint64_t t = 1; t <= 6; ++t)
        reference.step(groups[0].method, groups[0].hyper, gradient_value(0, i, t) / 4, t);
      // Lion turns where the sum is zero but for its rounding.
      const double tolerance = groups[0].method == Method::kLion ? 0.021 : 2e-6;
      ASSERT_NEAR(got[0][i], reference.p, tolerance) << name_of(groups[0].method) << " " << i;
    }
  }
}

TEST(Step, ClippingScalesToTheGlobalNorm) {
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 4;
  groups[0].method = Method::kSgdMomentum;
  groups[0].hyper.learning_rate = 1;
  const auto optimizer = made(Optimizer::create(small_options(), groups));
  const float gradient[] = {6, 0, 8, 0};
  ASSERT_OK(optimizer->gradient(0, 0, 4, DataType::kFloat32, gradient));
  StepOptions options;
  options.loss_scale = 2;
  options.norm_max = 1;
  StepReport report;
  ASSERT_OK(optimizer->step(options, &report));
  EXPECT_EQ(report.norm, 5);
  const Values values = values_of(*optimizer, groups);
  EXPECT_NEAR(values[0][0], -0.6, 1e-6);
  EXPECT_NEAR(values[0][2], -0.8, 1e-6);
}

TEST(Step, AnOverflowLeavesTheStateUntouched) {
  const Groups groups = mixed_groups();
  for (const bool drives : {false, true}) {
    ScratchDirectory scratch;
    OptimizerOptions options = small_options();
    if (drives) options.directories = {scratch / "a"};
    const auto optimizer = stepped(options, groups, 2);
    ASSERT_NE(optimizer, nullptr);
    const Values before = values_of(*optimizer, groups);
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      std::deque<std::vector<float>> kept;
      for (uint32_t g = 0; g < groups.size(); ++g) {
        kept.emplace_back(groups[g].element_count, 1.0f);
        if (g == 3) kept.back()[7000] = bad;
        ASSERT_OK(optimizer->gradient(g, 0, groups[g].element_count, DataType::kFloat32,
                                      kept.back().data()));
      }
      double sum = 0;
      bool finite = true;
      ASSERT_OK(optimizer->gradient_stats(&sum, &finite));
      EXPECT_FALSE(finite);
      StepReport report;
      ASSERT_OK(optimizer->step({}, &report));
      EXPECT_TRUE(report.skipped);
      EXPECT_EQ(report.step, 2u);
    }
    EXPECT_TRUE(same_bits(values_of(*optimizer, groups), before));
    ASSERT_OK(run_steps(*optimizer, groups, 2, 4));
    EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 4)));
  }
}

TEST(Step, AnOverflowOfAnotherRankSkipsToo) {
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 10;
  const auto optimizer = made(Optimizer::create(small_options(), groups));
  Giver giver;
  ASSERT_OK(giver.give(*optimizer, groups, 1));
  StepOptions options;
  options.sum_of_squares_of_scaled_gradients = INFINITY;
  StepReport report;
  ASSERT_OK(optimizer->step(options, &report));
  EXPECT_TRUE(report.skipped);
}

TEST(Step, WaitReturnsWhenTheOutputsOfARangeAreThere) {
  const Groups groups = mixed_groups();
  for (const bool drives : {false, true}) {
    ScratchDirectory scratch;
    OptimizerOptions options = small_options();
    options.thread_count = 2;
    if (drives) options.directories = {scratch / "a"};
    const auto optimizer = stepped(options, groups, 0);
    ASSERT_NE(optimizer, nullptr);
    Values outputs;
    for (uint32_t g = 0; g < groups.size(); ++g) {
      outputs.emplace_back(groups[g].element_count);
      if (groups[g].element_count > 0)
        ASSERT_OK(optimizer->set_output(g, DataType::kFloat32, outputs[g].data(), false));
    }
    Giver giver;
    for (uint64_t step = 1; step <= 5; ++step) {
      ASSERT_OK(giver.give(*optimizer, groups, step));
      ASSERT_OK(optimizer->step_start({}));
      Values seen;
      for (uint32_t g = 0; g < groups.size(); ++g) {
        ASSERT_OK(optimizer->wait(g, 0, groups[g].element_count));
        seen.push_back(outputs[g]);
      }
      EXPECT_EQ(optimizer->commit().code(), Code::kInvalidUsage);
      StepReport report;
      ASSERT_OK(optimizer->step_finish(&report));
      EXPECT_EQ(report.step, step);
      EXPECT_TRUE(same_bits(seen, in_memory(groups, step)));
    }
    EXPECT_TRUE(same_bits(values_of(*optimizer, groups), outputs));
    EXPECT_EQ(optimizer->step_finish(nullptr).code(), Code::kInvalidUsage);
    ASSERT_OK(optimizer->wait(0, 0, 1));
  }
}

TEST(Step, TraceAndReportShowWhatTheDrivesDid) {
  ScratchDirectory scratch;
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 100'000;
  OptimizerOptions options = small_options();
  options.directories = {scratch / "a"};
  options.trace_file = scratch / "trace.json";
  const auto optimizer = made(Optimizer::create(options, groups));
  Giver giver;
  ASSERT_OK(giver.give(*optimizer, groups, 1));
  StepReport report;
  ASSERT_OK(optimizer->step({}, &report));
  EXPECT_TRUE(report.committed);
  EXPECT_EQ(report.parameter_count, 100'000u);
  EXPECT_GE(report.read_bytes, 1'200'000u);
  EXPECT_EQ(report.read_bytes, report.written_bytes);
  EXPECT_GT(report.seconds, 0);
  EXPECT_GT(std::filesystem::file_size(scratch / "trace.json"), 1000u);
}

}  // namespace
}  // namespace weir::offload::test
