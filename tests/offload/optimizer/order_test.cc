// SPDX-License-Identifier: Apache-2.0
// The order in which steps take the parameters: the same in every step, so that a forward pass that
// waits for the first ones begins early in each. Positions are counted in chunks and not by a
// clock: one thread computes, in the order of the sweep.
#include "offload/optimizer/optimizer_support.h"

namespace weir::offload::test {
namespace {

constexpr uint64_t kSteps = 6;

// In memory, on drives, and with a budget that holds a part of the chunks.
struct Placed {
  const char* name;
  bool drives;
  uint64_t memory_bytes;
};
constexpr Placed kPlaces[] = {
    {"in memory", false, 0}, {"on drives", true, 0}, {"a part in memory", true, uint64_t{1} << 20}};

Groups three_groups() {
  Groups groups;
  for (const auto& [name, format] : {std::pair{"front", StateFormat::kFloat32},
                                     {"middle", StateFormat::kHalfMaster},
                                     {"back", StateFormat::kFloat32}}) {
    ParameterGroup group;
    group.name = name;
    group.element_count = 40'000;
    group.format = format;
    groups.push_back(group);
  }
  return groups;
}

struct Positions {
  uint64_t first = 0;  // chunks that were done when the first parameters were
  uint64_t last = 0;
  uint64_t all = 0;
  uint64_t read_bytes = 0;
};

std::vector<Positions> positions_of(const Placed& place, SweepOrder order) {
  ScratchDirectory scratch;
  const Groups groups = three_groups();
  OptimizerOptions options = small_options();
  options.order = order;
  options.memory_bytes = place.memory_bytes;
  if (place.drives) options.directories = {scratch / "a"};
  std::vector<Positions> positions;
  const auto optimizer = made(Optimizer::create(options, groups));
  if (optimizer == nullptr) return positions;
  EXPECT_TRUE(set_first(*optimizer, groups).ok());
  Giver giver;
  for (uint64_t step = 1; step <= kSteps; ++step) {
    Positions at;
    StepReport report;
    const auto wait = [&](uint32_t group, uint64_t first, uint64_t count, uint64_t* done) {
      const Status status = optimizer->wait(group, first, count, done);
      EXPECT_TRUE(status.ok()) << status.text();
    };
    EXPECT_TRUE(giver.give(*optimizer, groups, step).ok());
    EXPECT_TRUE(optimizer->step_start({}).ok());
    wait(0, 0, 1, &at.first);
    wait(2, groups[2].element_count - 1, 1, &at.last);
    for (uint32_t g = 0; g < groups.size(); ++g) {
      uint64_t done = 0;
      wait(g, 0, groups[g].element_count, &done);
      at.all = std::max(at.all, done);
    }
    EXPECT_TRUE(optimizer->step_finish(&report).ok());
    at.read_bytes = report.read_bytes;
    positions.push_back(at);
  }
  EXPECT_TRUE(same_bits(values_of(*optimizer, groups), in_memory(groups, kSteps))) << place.name;
  return positions;
}

TEST(Order, TheFirstParametersAreDoneFirstInEveryStep) {
  for (const Placed& place : kPlaces) {
    const std::vector<Positions> steps = positions_of(place, OptimizerOptions().order);
    ASSERT_EQ(steps.size(), kSteps);
    for (const Positions& at : steps) {
      EXPECT_EQ(at.first, 1u) << place.name;
      EXPECT_EQ(at.last, at.all) << place.name;
      EXPECT_GT(at.all, 50u) << place.name;
    }
  }
}

TEST(Order, TheLastParametersAreDoneFirstWhereTheCallerWishesIt) {
  for (const Placed& place : kPlaces) {
    const std::vector<Positions> steps = positions_of(place, SweepOrder::kLastFirst);
    ASSERT_EQ(steps.size(), kSteps);
    for (const Positions& at : steps) {
      EXPECT_EQ(at.last, 1u) << place.name;
      EXPECT_EQ(at.first, at.all) << place.name;
    }
  }
}

// The chunks in memory are the same in every step, so that every step is spared their reads.
TEST(Order, EveryStepReadsWhatIsNotInMemoryAndNoMore) {
  std::vector<uint64_t> read_bytes;
  for (const Placed& place : kPlaces) {
    const std::vector<Positions> steps = positions_of(place, OptimizerOptions().order);
    ASSERT_EQ(steps.size(), kSteps);
    for (const Positions& at : steps) EXPECT_EQ(at.read_bytes, steps[0].read_bytes) << place.name;
    read_bytes.push_back(steps[0].read_bytes);
  }
  EXPECT_EQ(read_bytes[0], 0u);
  EXPECT_GT(read_bytes[1], read_bytes[2]);
  EXPECT_GT(read_bytes[2], 0u);
}

}  // namespace
}  // namespace weir::offload::test
