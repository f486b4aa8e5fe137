// SPDX-License-Identifier: Apache-2.0
// A gradient that is not finite though the sum of squares that was given is: found by the step,
// which is not committed, or not kept, and the report says where it was.
#include <cmath>

#include "offload/optimizer/optimizer_support.h"

namespace weir::offload::test {
namespace {

constexpr uint64_t kSomeResident = uint64_t{9} << 19;

struct Bad {
  uint32_t group;
  uint64_t element;
  float value;
};

// Gradients of one type, some of them not finite; they stay until the next step's.
class BadGiver {
 public:
  Status give(Optimizer& optimizer, const Groups& groups, uint64_t step, DataType type,
              const std::vector<Bad>& bad) {
    kept_.clear();
    for (uint32_t g = 0; g < groups.size(); ++g) {
      const uint64_t count = groups[g].element_count;
      kept_.push_back(gradient_bytes(groups[g], g, 0, count, step, type));
      for (const Bad& one : bad)
        if (one.group == g)
          from_float(&one.value, 1, {}, type,
                     kept_.back().data() + one.element * element_bytes(type));
      WEIR_RETURN_IF_ERROR(optimizer.gradient(g, 0, count, type, kept_.back().data()));
    }
    return {};
  }

 private:
  std::deque<std::vector<unsigned char>> kept_;
};

// The caller says that all is finite.
StepOptions vouched() {
  StepOptions options;
  options.sum_of_squares_of_scaled_gradients = 1;
  return options;
}

std::vector<std::vector<Bad>> places() {
  std::vector<std::vector<Bad>> all = {{{0, 0, NAN}}, {{0, 9000, INFINITY}, {6, 5002, NAN}}};
  for (const auto& [group, element] :
       {std::pair<uint32_t, uint64_t>{1, 5000}, {3, 7776}, {4, 3000}, {5, 0}, {6, 255}})
    all.push_back({{group, element, -INFINITY}});
  return all;
}

void expect_place(const StepReport& report, const std::vector<Bad>& bad) {
  EXPECT_EQ(report.not_finite.count, bad.size());
  EXPECT_EQ(report.not_finite.group, bad[0].group);
  EXPECT_EQ(report.not_finite.element, bad[0].element);
}

struct Outputs {
  Outputs(Optimizer& optimizer, const Groups& groups) {
    for (uint32_t g = 0; g < groups.size(); ++g) {
      values.emplace_back(groups[g].element_count);
      if (groups[g].element_count == 0) continue;
      EXPECT_TRUE(optimizer.set_output(g, DataType::kFloat32, values[g].data(), false).ok());
    }
  }
  Values values;
};

// Whatever the gradients' type and wherever the value lies, step 3 is skipped and the run goes on.
void expect_skipped(OptimizerOptions options) {
  const Groups groups = mixed_groups();
  ScratchDirectory scratch;
  if (!options.directories.empty()) options.directories = {scratch / "a", scratch / "b"};
  const auto optimizer = made(Optimizer::create(options, groups));
  ASSERT_NE(optimizer, nullptr);
  Outputs outputs(*optimizer, groups);
  ASSERT_OK(set_first(*optimizer, groups));
  ASSERT_OK(run_steps(*optimizer, groups, 0, 2, 0, vouched()));
  const Values before = values_of(*optimizer, groups);
  ASSERT_TRUE(same_bits(before, in_memory(groups, 2)));
  BadGiver giver;
  for (const DataType type : {DataType::kFloat32, DataType::kBfloat16, DataType::kFloat16}) {
    for (const std::vector<Bad>& bad : places()) {
      StepReport report;
      ASSERT_OK(giver.give(*optimizer, groups, 3, type, bad));
      ASSERT_OK(optimizer->step_start(vouched()));
      for (uint32_t g = 0; g < groups.size(); ++g)
        ASSERT_OK(optimizer->wait(g, 0, groups[g].element_count));
      ASSERT_OK(optimizer->step_finish(&report));
      EXPECT_TRUE(report.skipped);
      EXPECT_EQ(report.step, 2u);
      EXPECT_EQ(report.committed, !options.directories.empty());
      expect_place(report, bad);
      EXPECT_TRUE(same_bits(outputs.values, before));
      if (::testing::Test::HasFailure()) return;
    }
  }
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), before));
  if (!options.directories.empty()) {
    uint64_t committed = 0;
    ASSERT_OK(optimizer->committed_step(&committed));
    EXPECT_EQ(committed, 2u);
  }
  ASSERT_OK(run_steps(*optimizer, groups, 2, 4, 0, vouched()));
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 4)));
}

TEST(NotFiniteStep, OnDrivesIsSkippedBeforeItsCommit) {
  for (const uint64_t memory : {uint64_t{0}, kSomeResident, uint64_t{1} << 30}) {
    for (const uint32_t threads : {1, 2}) {
      SCOPED_TRACE(std::to_string(memory) + " bytes, " + std::to_string(threads) + " threads");
      OptimizerOptions options = small_options();
      options.thread_count = threads;
      options.memory_bytes = memory;
      options.directories = {"a directory"};
      expect_skipped(options);
    }
  }
}

TEST(NotFiniteStep, InMemoryWithASecondSlotIsNotKept) {
  OptimizerOptions options = small_options();
  options.undo_in_memory = true;
  expect_skipped(options);
}

TEST(NotFiniteStep, InMemoryWithoutASecondSlotIsTakenAndReported) {
  const Groups groups = mixed_groups();
  const auto optimizer = stepped(small_options(), groups, 0);
  ASSERT_NE(optimizer, nullptr);
  BadGiver giver;
  ASSERT_OK(giver.give(*optimizer, groups, 1, DataType::kBfloat16, {{3, 700, NAN}}));
  StepReport report;
  ASSERT_OK(optimizer->step(vouched(), &report));
  EXPECT_FALSE(report.skipped);
  EXPECT_EQ(report.step, 1u);
  expect_place(report, {{3, 700, NAN}});
  ASSERT_OK(run_steps(*optimizer, groups, 1, 2));
}

TEST(NotFiniteStep, ThatIsHeldIsReportedAndCanBeTakenBack) {
  const Groups groups = mixed_groups();
  for (const bool drives : {false, true}) {
    ScratchDirectory scratch;
    OptimizerOptions options = small_options();
    options.undo_in_memory = true;
    if (drives) options.directories = {scratch / "a"};
    const auto optimizer = stepped(options, groups, 0);
    ASSERT_NE(optimizer, nullptr);
    BadGiver giver;
    ASSERT_OK(giver.give(*optimizer, groups, 1, DataType::kFloat32, {{1, 8999, INFINITY}}));
    StepOptions hold;
    hold.hold = true;
    StepReport report;
    ASSERT_OK(optimizer->step(hold, &report));
    EXPECT_FALSE(report.skipped);
    expect_place(report, {{1, 8999, INFINITY}});
    ASSERT_OK(optimizer->undo());
    EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 0)));
  }
}

// What is not committed is written over by the step, so that only the last commit is left.
TEST(NotFiniteStep, AfterStepsThatAreNotCommittedIsAnErrorThatSaysHowFarItWentBack) {
  const Groups groups = mixed_groups();
  ScratchDirectory scratch;
  OptimizerOptions options = small_options();
  options.durable_every = 3;
  options.directories = {scratch / "a"};
  const auto optimizer = stepped(options, groups, 5, vouched());
  ASSERT_NE(optimizer, nullptr);
  BadGiver giver;
  ASSERT_OK(giver.give(*optimizer, groups, 6, DataType::kFloat32, {{4, 17, NAN}, {5, 0, NAN}}));
  StepReport report;
  const Status status = optimizer->step(vouched(), &report);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  for (const char* text : {"step 6: 2 gradients", "element 17 of group 'lion'", "back at step 3",
                           "durable_every is 3", "repeat steps 4 to 6"})
    EXPECT_NE(status.text().find(text), std::string::npos) << status.text();
  EXPECT_EQ(report.step, 3u);
  expect_place(report, {{4, 17, NAN}, {5, 0, NAN}});
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 3)));
  ASSERT_OK(run_steps(*optimizer, groups, 3, 6, 0, vouched()));
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 6)));
}

// The first of a run, whose state was committed by the step itself.
TEST(NotFiniteStep, ThatIsTheFirstLeavesTheStateAsItWasSet) {
  const Groups groups = mixed_groups();
  ScratchDirectory scratch;
  OptimizerOptions options = small_options();
  options.directories = {scratch / "a"};
  const auto optimizer = stepped(options, groups, 0);
  ASSERT_NE(optimizer, nullptr);
  BadGiver giver;
  ASSERT_OK(giver.give(*optimizer, groups, 1, DataType::kFloat16, {{6, 1, NAN}}));
  StepReport report;
  ASSERT_OK(optimizer->step(vouched(), &report));
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.step, 0u);
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 0)));
  ASSERT_OK(run_steps(*optimizer, groups, 0, 2));
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, 2)));
}

struct Home {
  const char* name;
  bool on_drives;
  bool undo_in_memory;
  uint32_t durable_every;
};
constexpr Home kHomes[] = {{"memory", false, false, 1},
                           {"memory with undo", false, true, 1},
                           {"drives", true, false, 1},
                           {"drives, steps not committed", true, false, 3}};

// Calls body(optimizer), whose state has taken two steps, for each home.
template <class Body>
void in_every_home(const Groups& groups, Body body) {
  for (const Home& home : kHomes) {
    SCOPED_TRACE(home.name);
    ScratchDirectory scratch;
    OptimizerOptions options = small_options();
    options.undo_in_memory = home.undo_in_memory;
    options.durable_every = home.durable_every;
    if (home.on_drives) options.directories = {scratch / "a"};
    const auto optimizer = stepped(options, groups, 2);
    ASSERT_NE(optimizer, nullptr);
    body(*optimizer);
    if (::testing::Test::HasFailure()) return;
  }
}

// What counts is the gradient that goes into the state: divided by the loss scale and clipped.
TEST(NotFiniteStep, AFiniteGradientThatTheLossScaleMakesInfiniteIsSkippedUnlessItIsClipped) {
  const Groups groups = mixed_groups();
  const std::vector<Bad> large = {{4, 17, 1e37f}};
  const Values before = in_memory(groups, 2);
  Values clipped;
  for (const bool is_given : {false, true}) {
    in_every_home(groups, [&](Optimizer& optimizer) {
      BadGiver giver;
      ASSERT_OK(giver.give(optimizer, groups, 3, DataType::kFloat32, large));
      StepOptions options;
      options.loss_scale = 1e-2;
      double sum = 0;
      bool all_finite = false;
      ASSERT_OK(optimizer.gradient_stats(&sum, &all_finite));
      EXPECT_TRUE(all_finite);
      if (is_given) options.sum_of_squares_of_scaled_gradients = sum;
      StepReport report;
      ASSERT_OK(optimizer.step(options, &report));
      EXPECT_TRUE(report.skipped);
      EXPECT_EQ(report.step, 2u);
      EXPECT_NEAR(report.norm / 1e39, 1, 1e-6);
      expect_place(report, large);
      EXPECT_TRUE(same_bits(values_of(optimizer, groups), before));

      ASSERT_OK(giver.give(optimizer, groups, 3, DataType::kFloat32, large));
      options.norm_max = 1;
      ASSERT_OK(optimizer.step(options, &report));
      EXPECT_FALSE(report.skipped);
      EXPECT_EQ(report.step, 3u);
      const Values after = values_of(optimizer, groups);
      if (clipped.empty()) clipped = after;
      EXPECT_TRUE(same_bits(after, clipped));
      for (const std::vector<float>& group : after)
        for (const float value : group) ASSERT_TRUE(std::isfinite(value));
    });
  }
}

TEST(NotFiniteStep, ANormThatOverflowsIsSkippedWhetherItIsClippedOrNot) {
  const Groups groups = mixed_groups();
  const Values before = in_memory(groups, 2);
  in_every_home(groups, [&](Optimizer& optimizer) {
    for (const double norm_max : {0.0, 1.0}) {
      BadGiver giver;
      ASSERT_OK(giver.give(optimizer, groups, 3, DataType::kFloat32, {{0, 9, 1e37f}}));
      StepOptions options;
      options.loss_scale = 1e-300;
      options.norm_max = norm_max;
      StepReport report;
      ASSERT_OK(optimizer.step(options, &report));
      EXPECT_TRUE(report.skipped);
      EXPECT_EQ(report.step, 2u);
      EXPECT_EQ(report.norm, INFINITY);
      EXPECT_GT(report.not_finite.count, 0u);
      EXPECT_TRUE(same_bits(values_of(optimizer, groups), before));
    }
  });
}

// The one whose own gradients stay finite knows of the others by the sum that they share.
TEST(NotFiniteStep, AllRanksSkipForTheGradientOfOne) {
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 10;
  const std::vector<float> gradients[] = {std::vector<float>(10, 1.0f),
                                          std::vector<float>(10, 1e37f)};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    OptimizerOptions options = small_options();
    options.rank = rank;
    options.rank_count = 2;
    const auto optimizer = stepped(options, groups, 0);
    ASSERT_NE(optimizer, nullptr);
    ASSERT_OK(optimizer->gradient(0, 0, 10, DataType::kFloat32, gradients[rank].data()));
    StepOptions step;
    step.loss_scale = 1e-2;
    step.sum_of_squares_of_scaled_gradients = 10 * 1e74;
    StepReport report;
    ASSERT_OK(optimizer->step(step, &report));
    EXPECT_TRUE(report.skipped);
    EXPECT_EQ(report.not_finite.count, rank * 10);
  }
}

TEST(NotFiniteStep, FiniteGradientsWhoseNormIsNoFloatAreStepped) {
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 10'000;
  groups[0].method = Method::kSgdMomentum;
  groups[0].hyper.learning_rate = 1e-37;
  const std::vector<float> gradient(groups[0].element_count, 1e37f);
  in_every_home(groups, [&](Optimizer& optimizer) {
    const Values before = values_of(optimizer, groups);
    ASSERT_OK(optimizer.gradient(0, 0, gradient.size(), DataType::kFloat32, gradient.data()));
    StepReport report;
    ASSERT_OK(optimizer.step({}, &report));
    EXPECT_FALSE(report.skipped);
    EXPECT_NEAR(report.norm / 1e39, 1, 1e-6);
    const Values after = values_of(optimizer, groups);
    for (size_t i = 0; i < gradient.size(); ++i) ASSERT_NEAR(after[0][i], before[0][i] - 1, 1e-5);
  });
}

// The sum says so itself: the report names the place as well, or that it lies with another rank.
TEST(NotFiniteStep, ThatTheSumTellsOfIsReportedWithItsPlace) {
  const Groups groups = mixed_groups();
  const auto optimizer = stepped(small_options(), groups, 0);
  ASSERT_NE(optimizer, nullptr);
  BadGiver giver;
  StepReport report;
  ASSERT_OK(giver.give(*optimizer, groups, 1, DataType::kFloat32, {{3, 70, NAN}, {3, 71, NAN}}));
  ASSERT_OK(optimizer->step({}, &report));
  EXPECT_TRUE(report.skipped);
  expect_place(report, {{3, 70, NAN}, {3, 71, NAN}});
  ASSERT_OK(giver.give(*optimizer, groups, 1, DataType::kFloat32, {}));
  StepOptions other_rank;
  other_rank.sum_of_squares_of_scaled_gradients = NAN;
  ASSERT_OK(optimizer->step(other_rank, &report));
  EXPECT_TRUE(report.skipped);
  EXPECT_EQ(report.not_finite.count, 0u);
}

// The sum is of the gradients as they are given, before they are divided by the loss scale.
TEST(Norm, IsThatOfTheGradientsDividedByTheLossScale) {
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 2;
  groups[0].method = Method::kSgdMomentum;
  groups[0].hyper.learning_rate = 1;
  const float scaled[] = {6 * 1024, 8 * 1024};
  for (const bool is_given : {false, true}) {
    const auto optimizer = made(Optimizer::create(small_options(), groups));
    ASSERT_OK(optimizer->gradient(0, 0, 2, DataType::kFloat32, scaled));
    StepOptions options;
    options.loss_scale = 1024;
    options.norm_max = 5;
    double sum = 0;
    bool finite = false;
    ASSERT_OK(optimizer->gradient_stats(&sum, &finite));
    EXPECT_EQ(sum, 100.0 * 1024 * 1024);
    if (is_given) options.sum_of_squares_of_scaled_gradients = sum;
    StepReport report;
    ASSERT_OK(optimizer->step(options, &report));
    EXPECT_EQ(report.norm, 10);
    const Values values = values_of(*optimizer, groups);
    EXPECT_NEAR(values[0][0], -3, 1e-6);
    EXPECT_NEAR(values[0][1], -4, 1e-6);
  }
}

}  // namespace
}  // namespace weir::offload::test
