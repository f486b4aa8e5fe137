// SPDX-License-Identifier: Apache-2.0
// Errors: of drives at every request, and of callers.
#include <functional>
#include <set>

#include "offload/optimizer/optimizer_support.h"
#include "offload/store/simulated_disk.h"

namespace weir::offload::test {
namespace {

Groups few_groups() {
  Groups groups = mixed_groups();
  groups.resize(2);
  groups[0].element_count = 3000;
  groups[1].element_count = 2500;
  return groups;
}

// A failed request of a step: the state before it, or an optimizer that says it is of no more use
// and whose directories hold the step before or the step itself.
TEST(Fault, AnyFailedRequestOfAStepIsReportedAndLosesNothing) {
  const Groups groups = few_groups();
  const Values before = in_memory(groups, 2);
  const Values after = in_memory(groups, 3);
  bool hit = true;
  uint64_t usable = 0;
  uint64_t poisoned = 0;
  for (uint64_t k = 0; hit; ++k) {
    SimulatedDrive drive(seed() + k);
    OptimizerOptions options = small_options();
    options.directories = {"/a"};
    options.memory_bytes = k % 2 == 0 ? 0 : (uint64_t{1} << 23);
    {
      SimulatedDisk disk(drive, 8);
      options.disk = &disk;
      const auto optimizer = stepped(options, groups, 0);
      ASSERT_NE(optimizer, nullptr);
      Values outputs = in_memory(groups, 0);
      for (uint32_t g = 0; g < groups.size(); ++g)
        ASSERT_OK(optimizer->set_output(g, DataType::kFloat32, outputs[g].data(), false));
      ASSERT_OK(run_steps(*optimizer, groups, 0, 2));
      Giver giver;
      ASSERT_OK(giver.give(*optimizer, groups, 3));
      drive.fail_at_request = drive.requests() + k;
      const Status status = optimizer->step({}, nullptr);
      hit = drive.fault_happened();
      drive.fail_at_request.reset();
      ASSERT_EQ(status.ok(), !hit) << k;
      if (hit) {
        float value = 0;
        if (optimizer->get_parameters(0, 0, 1, DataType::kFloat32, &value).ok()) {
          ++usable;
          EXPECT_TRUE(same_bits(values_of(*optimizer, groups), before)) << k;
          EXPECT_TRUE(same_bits(outputs, before)) << k;
          ASSERT_OK(optimizer->step({}, nullptr));
        } else {
          ++poisoned;
          EXPECT_NE(optimizer->step({}, nullptr).text().find("can no longer be used"),
                    std::string::npos);
        }
      }
    }
    SimulatedDisk disk(drive, 8);
    options.disk = &disk;
    const auto opened = made(Optimizer::open(options, groups));
    ASSERT_NE(opened, nullptr);
    uint64_t step = 0;
    ASSERT_OK(opened->committed_step(&step));
    ASSERT_TRUE(step == 2 || step == 3) << step;
    EXPECT_TRUE(same_bits(values_of(*opened, groups), step == 2 ? before : after)) << k;
  }
  EXPECT_GT(usable, 4u);
  EXPECT_GT(poisoned, 1u);
}

// The steps since the last commit are lost with the one that failed: gradients of that one belong
// to a state that is gone, be they given or accumulated.
TEST(Fault, AfterStepsThatAreNotCommittedTheGradientsAreDroppedAndTheTextSaysWhatToRepeat) {
  const Groups groups = few_groups();
  const Values committed = in_memory(groups, 3);
  const Values after = in_memory(groups, 6);
  uint64_t usable = 0;
  bool hit = true;
  for (uint64_t k = 0; hit; ++k) {
    SCOPED_TRACE(k);
    SimulatedDrive drive(seed() + k);
    SimulatedDisk disk(drive, 8);
    OptimizerOptions options = small_options();
    options.directories = {"/a"};
    options.durable_every = 3;
    options.disk = &disk;
    const auto optimizer = stepped(options, groups, 5);
    ASSERT_NE(optimizer, nullptr);
    std::vector<std::vector<unsigned char>> gradients;
    for (uint32_t g = 0; g < groups.size(); ++g) {
      const uint64_t count = groups[g].element_count;
      gradients.push_back(gradient_bytes(groups[g], g, 0, count, 6, DataType::kFloat32));
      const auto give = g == 0 ? &Optimizer::gradient : &Optimizer::accumulate;
      ASSERT_OK((*optimizer.*give)(g, 0, count, DataType::kFloat32, gradients[g].data()));
    }
    drive.fail_at_request = drive.requests() + k;
    StepReport report;
    const Status status = optimizer->step({}, &report);
    hit = drive.fault_happened();
    drive.fail_at_request.reset();
    ASSERT_EQ(status.ok(), !hit);
    float value = 0;
    if (!hit || !optimizer->get_parameters(0, 0, 1, DataType::kFloat32, &value).ok()) continue;
    ++usable;
    for (const char* text : {"step 6: ", "back at step 3", "durable_every is 3",
                             "gradients are dropped", "repeat steps 4 to 6"})
      EXPECT_NE(status.text().find(text), std::string::npos) << status.text();
    EXPECT_EQ(report.step, 3u);
    uint64_t step = 0;
    ASSERT_OK(optimizer->committed_step(&step));
    EXPECT_EQ(step, 3u);
    EXPECT_TRUE(same_bits(values_of(*optimizer, groups), committed));
    const Status repeated = optimizer->step({}, nullptr);
    EXPECT_NE(repeated.text().find("have no gradient"), std::string::npos) << repeated.text();
    ASSERT_OK(run_steps(*optimizer, groups, 3, 6));
    EXPECT_TRUE(same_bits(values_of(*optimizer, groups), after));
  }
  EXPECT_GT(usable, 4u);
}

std::vector<std::pair<std::string, Status>> results_of_every_call(Optimizer& optimizer) {
  constexpr DataType kType = DataType::kFloat32;
  float value = 0;
  double sum = 0;
  bool finite = false;
  uint64_t number = 0;
  StoreReport report;
  return {{"restore", optimizer.restore({{"/held"}})},
          {"set_parameters", optimizer.set_parameters(0, 0, 1, kType, &value)},
          {"get_parameters", optimizer.get_parameters(0, 0, 1, kType, &value)},
          {"set_output", optimizer.set_output(0, kType, nullptr, false)},
          {"set_hyper", optimizer.set_hyper(0, {})},
          {"gradient", optimizer.gradient(0, 0, 1, kType, &value)},
          {"accumulate", optimizer.accumulate(0, 0, 1, kType, &value)},
          {"gradient_stats", optimizer.gradient_stats(&sum, &finite)},
          {"step", optimizer.step({}, nullptr)},
          {"step_start", optimizer.step_start({})},
          {"wait", optimizer.wait(0, 0, 1)},
          {"step_finish", optimizer.step_finish(nullptr)},
          {"accept", optimizer.accept()},
          {"undo", optimizer.undo()},
          {"commit", optimizer.commit()},
          {"committed_step", optimizer.committed_step(&number)},
          {"peers_committed", optimizer.peers_committed(1)},
          {"roll_back", optimizer.roll_back(1)},
          {"checkpoint", optimizer.checkpoint({"/other"})},
          {"memory", optimizer.memory_bytes(&number)},
          {"store_report", optimizer.store_report(&report)}};
}

// Calls that write, commit and sync in every way there is; the first that fails, with its error.
std::pair<std::string, Status> first_failure(Optimizer& optimizer, const Groups& groups) {
  Giver giver;
  StepOptions hold;
  hold.hold = true;
  const auto stepped = [&](uint64_t step, const StepOptions& options) {
    const Status given = giver.give(optimizer, groups, step);
    return given.ok() ? optimizer.step(options, nullptr) : given;
  };
  const auto started = [&](uint64_t step) -> Status {
    WEIR_RETURN_IF_ERROR(giver.give(optimizer, groups, step));
    WEIR_RETURN_IF_ERROR(optimizer.step_start({}));
    return optimizer.step_finish(nullptr);
  };
  const std::pair<std::string, std::function<Status()>> calls[] = {
      {"first step", [&] { return stepped(1, {}); }},
      {"commit", [&] { return optimizer.commit(); }},
      {"checkpoint", [&] { return optimizer.checkpoint({"/held"}); }},
      {"step", [&] { return stepped(2, {}); }},
      {"committing step", [&] { return stepped(3, {}); }},
      {"step over the files of the checkpoint", [&] { return started(4); }},
      {"step that is held", [&] { return stepped(5, hold); }},
      {"accept", [&] { return optimizer.accept(); }},
      {"step that is started", [&] { return started(6); }},
      {"checkpoint that commits", [&] { return optimizer.checkpoint({"/held again"}); }}};
  for (const auto& [name, call] : calls)
    if (const Status status = call(); !status.ok()) return {name, status};
  return {};
}

TEST(Fault, AfterAFailedSyncEveryCallReturnsTheFirstFailure) {
  const Groups groups = few_groups();
  std::set<std::string> poisoned;
  bool hit = true;
  for (uint64_t k = 0; hit; ++k) {
    SCOPED_TRACE(k);
    SimulatedDrive drive(seed() + k);
    SimulatedDisk disk(drive, 8);
    OptimizerOptions options = small_options();
    options.directories = {"/a"};
    options.durable_every = 2;
    options.disk = &disk;
    const auto optimizer = stepped(options, groups, 0);
    ASSERT_NE(optimizer, nullptr);
    drive.fail_at_request = drive.requests() + k;
    const auto [name, status] = first_failure(*optimizer, groups);
    hit = drive.fault_happened();
    drive.fail_at_request.reset();
    if (status.text().find("poisoned") == std::string::npos) continue;
    poisoned.insert(name);
    for (const char* text : {"can no longer be used", "Input/output error", "destroy it and open"})
      EXPECT_NE(status.text().find(text), std::string::npos) << name << ": " << status.text();
    for (const auto& [call, result] : results_of_every_call(*optimizer)) {
      EXPECT_EQ(result.code(), status.code()) << name << ", then " << call;
      EXPECT_NE(result.text().find(call + ": " + status.text()), std::string::npos)
          << name << ", then " << call << ": " << result.text();
    }
    EXPECT_NE(optimizer->describe().find(status.text()), std::string::npos);
    if (::testing::Test::HasFailure()) return;
  }
  const std::set<std::string> expected = {"first step",
                                          "commit",
                                          "checkpoint",
                                          "committing step",
                                          "step over the files of the checkpoint",
                                          "step that is held",
                                          "accept",
                                          "checkpoint that commits"};
  EXPECT_EQ(poisoned, expected);
}

TEST(Usage, MissingAndDoubleRangesAreNamed) {
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 100;
  const auto optimizer = made(Optimizer::create(small_options(), groups));
  const std::vector<float> values(100);
  ASSERT_OK(optimizer->gradient(0, 10, 20, DataType::kFloat32, values.data()));
  const Status twice = optimizer->gradient(0, 25, 10, DataType::kFloat32, values.data());
  EXPECT_EQ(twice.code(), Code::kInvalidArgument);
  EXPECT_NE(twice.text().find("'w', elements 25 to 29"), std::string::npos) << twice.text();
  const Status missing = optimizer->step({}, nullptr);
  EXPECT_EQ(missing.code(), Code::kInvalidArgument);
  EXPECT_NE(missing.text().find("'w', elements 0 to 9"), std::string::npos) << missing.text();
  ASSERT_OK(optimizer->gradient(0, 0, 10, DataType::kFloat32, values.data()));
  EXPECT_NE(optimizer->step({}, nullptr).text().find("elements 30 to 99"), std::string::npos);
  ASSERT_OK(optimizer->gradient(0, 30, 70, DataType::kFloat32, values.data()));
  ASSERT_OK(optimizer->step({}, nullptr));
  EXPECT_EQ(optimizer->set_parameters(0, 0, 1, DataType::kFloat32, values.data()).code(),
            Code::kInvalidUsage);
}

TEST(Usage, ABudgetThatIsTooSmallIsFoundAtTheStart) {
  ScratchDirectory scratch;
  OptimizerOptions options = small_options();
  options.directories = {scratch / "a"};
  options.memory_bytes = 1 << 16;
  const auto failed = Optimizer::create(options, mixed_groups());
  EXPECT_EQ(failed.status().code(), Code::kNoMemory);
  EXPECT_NE(failed.status().text().find("memory_bytes is 65536"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(scratch / "a"));
}

TEST(Usage, BadArgumentsNameArgumentAndValue) {
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 100;
  OptimizerOptions options = small_options();
  options.chunk_bytes = 5000;
  EXPECT_NE(Optimizer::create(options, groups).status().text().find("chunk_bytes is 5000"),
            std::string::npos);
  Groups twice = groups;
  twice.push_back(groups[0]);
  EXPECT_FALSE(Optimizer::create(small_options(), twice).ok());
  const auto optimizer = made(Optimizer::create(small_options(), groups));
  float value = 0;
  for (const Status& status :
       {optimizer->gradient(1, 0, 1, DataType::kFloat32, &value),
        optimizer->gradient(0, 100, 1, DataType::kFloat32, &value),
        optimizer->gradient(0, 1, ~uint64_t{0}, DataType::kFloat32, &value),
        optimizer->gradient(0, 0, 1, DataType::kFloat64, &value),
        optimizer->gradient(0, 0, 1, DataType::kFloat32, nullptr), optimizer->wait(0, 100, 1)})
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.text();
  StepOptions bad;
  bad.loss_scale = -1;
  EXPECT_NE(optimizer->step(bad, nullptr).text().find("loss_scale is -1"), std::string::npos);
}

}  // namespace
}  // namespace weir::offload::test
