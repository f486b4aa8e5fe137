// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/options.h"

#include <gtest/gtest.h>

#include "perf/harness/buffers.h"

namespace weir::perf {
namespace {

constexpr Operation kRootedReduction = {
    .program = "test_perf",
    .c_name = "weir_test",
    .reduces = true,
    .has_root = true,
    .geometry = [](size_t, size_t, const Where&) { return Geometry(); },
    .expected = [](const Geometry&, const Where&) { return std::vector<ExpectedBlock>(); },
    .bus_factor = [](int) { return 1.0; },
    .start = [](const Call&) { return WEIR_OK; },
};

ParseResult parse(std::vector<std::string> arguments, Options* options) {
  arguments.insert(arguments.begin(), "test_perf");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  return parse_options(static_cast<int>(arguments.size()), argv.data(), kRootedReduction, options);
}

TEST(Bytes, SuffixesArePowersOf1024) {
  size_t bytes = 0;
  EXPECT_TRUE(parse_bytes("8", &bytes) && bytes == 8);
  EXPECT_TRUE(parse_bytes("64K", &bytes) && bytes == 65536);
  EXPECT_TRUE(parse_bytes("32m", &bytes) && bytes == 32u << 20);
  EXPECT_TRUE(parse_bytes("1.5G", &bytes) && bytes == 3ull << 29);
  EXPECT_TRUE(parse_bytes("2KB", &bytes) && bytes == 2048);
  for (const char* bad : {"", "K", "-8", "8X", "8KK", "1e30", "nan", "0x", "8 K"}) {
    EXPECT_FALSE(parse_bytes(bad, &bytes)) << bad;
  }
}

TEST(Options, FlagsOfNcclTestsAreUnderstood) {
  Options o;
  ASSERT_EQ(
      parse({"-t", "2",   "-g",       "1",  "-b", "8",  "-e", "1M", "-f", "2",  "-n",  "5",  "-m",
             "3",  "-w",  "2",        "-N", "4",  "-p", "1",  "-c", "6",  "-o", "all", "-d", "half",
             "-r", "all", "-z",       "1",  "-y", "1",  "-T", "9",  "-G", "1",  "-C",  "1",  "-S",
             "1",  "-J",  "out.json", "-a", "3",  "-R", "2",  "-u", "1",  "-I", "1"},
            &o),
      ParseResult::kRun);
  EXPECT_EQ(o.thread_count, 2);
  EXPECT_TRUE(o.thread_count_given);
  EXPECT_EQ(o.bytes_min, 8u);
  EXPECT_EQ(o.bytes_max, 1u << 20);
  EXPECT_EQ(o.step_factor, 2);
  EXPECT_EQ(o.iterations, 5);
  EXPECT_EQ(o.aggregate, 3);
  EXPECT_EQ(o.warmup, 2);
  EXPECT_EQ(o.cycles, 4);
  EXPECT_EQ(o.checks, 6);
  EXPECT_EQ(o.ops.size(), 6u);
  EXPECT_EQ(o.types[0]->type, WEIR_FLOAT16);
  EXPECT_EQ(o.root, -1);
  EXPECT_EQ(o.timeout_s, 9);
  EXPECT_TRUE(o.report_cpu_time && o.timestamps && o.unaligned && o.per_iteration);
  EXPECT_EQ(o.json_file, "out.json");
  EXPECT_EQ(o.average, Average::kMax);
  EXPECT_EQ(o.registration, Registration::kSymmetric);
  EXPECT_EQ(o.notes.size(), 3u);  // -p, -y, -G
}

TEST(Options, LongNamesAreTheSame) {
  Options o;
  ASSERT_EQ(parse({"--minbytes", "1K", "--maxbytes", "4K", "--stepbytes", "1K", "--iters", "3",
                   "--datatype", "all", "--op", "max", "--root", "1"},
                  &o),
            ParseResult::kRun);
  EXPECT_EQ(sweep_sizes(o), (std::vector<size_t>{1024, 2048, 3072, 4096}));
  EXPECT_EQ(o.types.size(), 12u);
  EXPECT_EQ(o.root, 1);
}

TEST(Options, BadValuesAreRefusedWithTheFlagAndTheRemedy) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"-b", "8Q"}, "-b 8Q: not a size"},
      {{"-b", "8", "-e", "4"}, "-e 4 is smaller"},
      {{"-f", "1"}, "-f 1"},
      {{"-n", "0"}, "-n 0"},
      {{"-n", "3x"}, "-n 3x"},
      {{"-d", "quad"}, "one of int8"},
      {{"-o", "xor"}, "one of sum"},
      {{"-r", "-1"}, "give a rank"},
      {{"-g", "2"}, "--ranks 2"},
      {{"-t", "0"}, "nthreads"},
      {{"--ranks", "0"}, "ranks"},
      {{"--pin", "maybe"}, "auto, on, off"},
      {{"-b", "0", "-e", "1G", "-i", "1"}, "larger step"},
      {{"-b", "0", "-e", "8", "-i", "0"}, "-i 0"},
      {{"-I", "1", "-z", "0"}, "choose one"},
      {{"-m", "2", "-z", "0"}, "choose one"},
      {{"--no-such-flag"}, "no-such-flag"},
  };
  for (const auto& [arguments, complaint] : cases) {
    Options o;
    testing::internal::CaptureStderr();
    EXPECT_EQ(parse(arguments, &o), ParseResult::kExitUsage);
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find(complaint), std::string::npos) << text << "\nlooked for: " << complaint;
  }
}

TEST(Options, OneSizeAboveTheDefaultNeedsNoMaximum) {
  Options o;
  ASSERT_EQ(parse({"-b", "64M"}, &o), ParseResult::kRun);
  EXPECT_EQ(sweep_sizes(o), (std::vector<size_t>{64u << 20}));
}

TEST(SlotPlan, RotatingBuffersExceedTheCacheOverAllRanks) {
  for (const size_t bytes : {0u, 8u, 100u, 4096u, 1u << 20, 64u << 20}) {
    for (const int ranks : {1, 2, 7}) {
      SlotLimits limits;
      limits.cache_bytes = 32u << 20;
      limits.local_rank_count = ranks;
      const SlotPlan plan = plan_slots(bytes, bytes, limits);
      EXPECT_GE(plan.send_stride, bytes + kGuardBytes);
      const size_t all = plan.slot_count * (plan.send_stride + plan.recv_stride);
      EXPECT_GE(all * static_cast<size_t>(ranks), limits.cache_bytes) << bytes;
    }
  }
}

TEST(SlotPlan, FixedBuffersAreOneUnlessAGroupNeedsMore) {
  SlotLimits limits;
  limits.fixed = true;
  EXPECT_EQ(plan_slots(8, 8, limits).slot_count, 1u);
  limits.slot_count_min = 5;
  EXPECT_EQ(plan_slots(8, 8, limits).slot_count, 5u);
}

}  // namespace
}  // namespace weir::perf
