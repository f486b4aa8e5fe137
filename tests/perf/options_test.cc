// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "perf/harness/buffers.h"
#include "perf/harness/flags.h"

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
      parse({"-t", "2",    "-g", "3",   "-b",       "8",  "-e", "1M", "-f", "2",  "-i", "4K", "-n",
             "5",  "-m",   "3",  "-w",  "2",        "-N", "4",  "-p", "1",  "-c", "6",  "-o", "all",
             "-d", "half", "-r", "all", "-z",       "3",  "-y", "1",  "-T", "9",  "-G", "1",  "-C",
             "1",  "-S",   "1",  "-J",  "out.json", "-a", "3",  "-R", "2",  "-u", "7",  "-I", "1",
             "-K", "4",    "-x", "2",   "-D",       "1",  "-V", "32", "-M", "1"},
            &o),
      ParseResult::kRun);
  EXPECT_EQ(o.thread_count, 2);
  EXPECT_EQ(o.ranks_per_thread, 3);
  EXPECT_EQ(o.ranks_per_process(), 6);
  EXPECT_TRUE(o.ranks_given);
  EXPECT_EQ(o.bytes_min, 8u);
  EXPECT_EQ(o.bytes_max, 1u << 20);
  EXPECT_EQ(o.step_factor, 2);
  EXPECT_EQ(o.iterations, 5);
  EXPECT_EQ(o.aggregate, 3);
  EXPECT_EQ(o.warmup, 2);
  EXPECT_EQ(o.cycles, 4);
  EXPECT_EQ(o.checks, 6);
  EXPECT_EQ(o.ops.size(), 6u);
  ASSERT_EQ(o.types.size(), 1u);
  EXPECT_EQ(o.types[0]->type, WEIR_FLOAT16);
  EXPECT_EQ(o.root, -1);
  EXPECT_EQ(o.blocking, Blocking::kBarrierOutside);
  EXPECT_EQ(o.timeout_s, 9);
  EXPECT_TRUE(o.report_cpu_time && o.timestamps && o.per_iteration && o.report_memory);
  EXPECT_EQ(o.unaligned_elements, 7u);
  EXPECT_EQ(o.per_iteration_skip, 4);
  EXPECT_EQ(o.json_file, "out.json");
  EXPECT_EQ(o.average, Average::kMax);
  EXPECT_EQ(o.registration, Registration::kSymmetric);
}

TEST(Options, EachFlagWithoutEffectHasANoteAndItsDefaultHasNone) {
  for (const char* flag : {"-p", "-y", "-G", "-x", "-D", "-V"}) {
    Options o;
    ASSERT_EQ(parse({flag, "1"}, &o), ParseResult::kRun);
    ASSERT_EQ(o.notes.size(), 1u) << flag;
    EXPECT_EQ(o.notes[0].substr(0, 3), flag + std::string(":"));
  }
  Options o;
  ASSERT_EQ(parse({"-p", "0", "-y", "0", "-G", "0", "-D", "0", "-M", "0", "-I", "0",
                   "-K", "0", "-u", "0", "-S", "0", "-C", "0", "-R", "0", "-T", "0"},
                  &o),
            ParseResult::kRun);
  EXPECT_TRUE(o.notes.empty());
}

TEST(Options, AFactorCountsAndTheStepDoesNotAsInNcclTests) {
  Options o;
  ASSERT_EQ(parse({"-b", "1", "-e", "8", "-i", "1", "-f", "2"}, &o), ParseResult::kRun);
  EXPECT_EQ(sweep_sizes(o), (std::vector<size_t>{1, 2, 4, 8}));
  for (const char* off : {"0", "1"}) {
    Options steps;
    ASSERT_EQ(parse({"-b", "1", "-e", "3", "-i", "1", "-f", off}, &steps), ParseResult::kRun);
    EXPECT_EQ(sweep_sizes(steps), (std::vector<size_t>{1, 2, 3}));
  }
}

TEST(Options, OfAFlagGivenTwiceTheLastCountsAndValuesMayBeAttached) {
  Options o;
  ASSERT_EQ(parse({"-b", "8", "-n", "7", "-x", "1", "-b1K", "-g2", "--iters=0x10", "-x", "2"}, &o),
            ParseResult::kRun);
  EXPECT_EQ(o.bytes_min, 1024u);
  EXPECT_EQ(o.ranks_per_thread, 2);
  EXPECT_EQ(o.iterations, 16);
  EXPECT_EQ(o.notes.size(), 1u);
}

TEST(Options, ASkipOfAllIterationsIsLeftOutWithANote) {
  const std::pair<std::vector<std::string>, int64_t> cases[] = {
      {{"-I", "1", "-n", "5", "-K", "4"}, 4},
      {{"-I", "1", "-n", "5", "-K", "5"}, 0},
      {{"-I", "1", "-K", "19"}, 19},
      {{"-I", "1", "-K", "20"}, 0},
      {{"-n", "5", "-K", "2"}, 0},
  };
  for (const auto& [arguments, skip] : cases) {
    Options o;
    ASSERT_EQ(parse(arguments, &o), ParseResult::kRun);
    EXPECT_EQ(o.per_iteration_skip, skip);
    EXPECT_EQ(o.notes.empty(), skip > 0);
  }
}

TEST(Options, ThePageHasARowForEachFlag) {
  std::ifstream file(WEIR_PERF_PAGE);
  ASSERT_TRUE(file) << WEIR_PERF_PAGE;
  std::vector<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.substr(0, 4) == "| `-") rows.push_back(line.substr(0, line.find(" | ")));
  }
  size_t shown = 0;
  for (const Flag& flag : flags()) {
    if (flag.heading == Heading::kHidden) continue;
    ++shown;
    std::string names = std::string("`") + flag.names + "`";
    if (const size_t comma = names.find(','); comma != std::string::npos) {
      names.replace(comma, 1, "`, `");
    }
    EXPECT_EQ(std::count(rows.begin(), rows.end(), "| " + names), 1) << names;
  }
  EXPECT_EQ(rows.size(), shown);
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
      {{"-b", "8Q"}, "8Q is not a size"},
      {{"-b", "8", "-e", "4"}, "-e 4 is smaller"},
      {{"-f", "-1"}, "-1 is not a factor"},
      {{"-n", "0"}, "0 is not a number of iterations"},
      {{"-n", "3x"}, "3x is not"},
      {{"-d", "quad"}, "one of int8"},
      {{"-o", "xor"}, "one of sum"},
      {{"-r", "-1"}, "give a rank"},
      {{"-g", "0"}, "-g,--ngpus: 0 is not a number from 1 to 1024"},
      {{"-t", "64", "-g", "64"}, "at most 1024 ranks"},
      {{"-z", "4"}, "4 is not a number from 0 to 3"},
      {{"-x", "fast"}, "fast is not a number"},
      {{"-t", "0"}, "nthreads"},
      {{"--ranks", "0"}, "ranks"},
      {{"--pin", "maybe"}, "auto, on, off"},
      {{"-b", "0", "-e", "1G", "-i", "1"}, "larger step"},
      {{"-b", "0", "-e", "8", "-i", "0"}, "-i 0"},
      {{"-I", "1", "-n", "2000000"}, "give at most -n 1048576"},
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

TEST(Split, RulesAndNumbersAreThoseOfNcclTests) {
  const auto color = [](const char* mask, const char* rule, int process) {
    Split split;
    EXPECT_EQ(read_split(mask, rule, &split), "") << (rule != nullptr ? rule : mask);
    return split.color(process);
  };
  EXPECT_EQ(color(nullptr, nullptr, 13), 0);
  EXPECT_EQ(color("7", nullptr, 13), 5);
  EXPECT_EQ(color("0x10", nullptr, 17), 16);
  EXPECT_EQ(color("0x7", "MOD 2", 13), 5);  // the mask comes first
  EXPECT_EQ(color(nullptr, "AND 0x7", 13), 5);
  EXPECT_EQ(color(nullptr, "&7", 13), 5);
  EXPECT_EQ(color(nullptr, "or 0b10", 13), 15);
  EXPECT_EQ(color(nullptr, "| 2", 13), 15);
  EXPECT_EQ(color(nullptr, "MOD 8", 13), 5);
  EXPECT_EQ(color(nullptr, "%8", 13), 5);
  EXPECT_EQ(color(nullptr, "DIV 8", 13), 1);
  EXPECT_EQ(color(nullptr, "/ 4", 13), 3);
}

TEST(Split, WhatIsNoRuleIsRefused) {
  Split split;
  for (const char* bad : {"", "MOD", "MOD 0", "DIV 0", "MOD -2", "XOR 3", "AND 0xg", "MOD 2 3"}) {
    EXPECT_NE(read_split(nullptr, bad, &split).find("NCCL_TESTS_SPLIT "), std::string::npos) << bad;
  }
  for (const char* bad : {"", "x", "-1", "100000000"}) {
    EXPECT_NE(read_split(bad, nullptr, &split).find("NCCL_TESTS_SPLIT_MASK"), std::string::npos)
        << bad;
  }
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
