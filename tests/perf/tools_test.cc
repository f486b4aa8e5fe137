// SPDX-License-Identifier: Apache-2.0
// The perf programs as a user runs them, with small sizes.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "perf/command.h"
#include "support/attempts.h"

namespace weir::test {
namespace {

const std::vector<std::string>& all_tools() {
  static const std::vector<std::string> tools = {
      "all_reduce_perf", "all_gather_perf", "reduce_scatter_perf", "alltoall_perf",
      "alltoallv_perf",  "broadcast_perf",  "reduce_perf",         "gather_perf",
      "scatter_perf",    "sendrecv_perf",   "tag_sendrecv_perf"};
  return tools;
}

// Quick: four sizes, few iterations, one set of buffers.
std::vector<std::string> small(std::vector<std::string> more) {
  std::vector<std::string> arguments = {
      "-b", "4", "-e", "40K", "-f", "20", "-n", "3", "--fixed-buffers"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The numbers and words of the lines that are not comments.
std::vector<std::vector<std::string>> table_of(const std::string& out) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    rows.emplace_back();
    for (std::string word; words >> word;) rows.back().push_back(word);
  }
  return rows;
}

std::string temporary_path(const char* name) {
  return testing::TempDir() + "weir-perf-" + std::to_string(getpid()) + "-" + name;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void expect_good_table(const std::string& tool, const CommandResult& run, size_t row_count) {
  EXPECT_EQ(run.status, 0) << tool << "\n" << run.out << run.err;
  EXPECT_NE(run.out.find("# Out of bounds values : 0 OK\n"), std::string::npos) << tool << run.out;
  EXPECT_NE(run.out.find("# Avg bus bandwidth    : "), std::string::npos) << tool;
  const auto rows = table_of(run.out);
  EXPECT_EQ(rows.size(), row_count) << tool << "\n" << run.out;
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 13u) << tool << "\n" << run.out;  // nccl-tests' columns
    EXPECT_EQ(row[8], "0") << tool;
    EXPECT_EQ(row[12], "0") << tool;
  }
}

TEST(PerfTools, EachIsRightOnOneTwoAndThreeProcesses) {
  for (const std::string& tool : all_tools()) {
    for (const char* ranks : {"1", "2", "3"}) {
      expect_good_table(tool + " --ranks " + ranks, run_tool(tool, small({"--ranks", ranks})), 4);
    }
  }
}

TEST(PerfTools, EachIsRightOnThreads) {
  for (const std::string& tool : all_tools()) {
    expect_good_table(tool + " -t 3", run_tool(tool, small({"-t", "3"})), 4);
  }
}

TEST(PerfTools, ThreadsAndProcessesTogetherMakeTheRanks) {
  const CommandResult run = run_tool("all_reduce_perf", small({"--ranks", "2", "-t", "2"}));
  expect_good_table("2 x 2", run, 4);
  EXPECT_NE(run.out.find("# nThread 2 nGpus 1 "), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("# nRanks 4 processes 2 "), std::string::npos) << run.out;
}

// The lines on devices, by rank: the process of each (the number `field` of the line).
std::vector<std::string> pids_of(const std::string& out, size_t field = 3) {
  std::vector<std::string> pids;
  const std::regex device("#  Rank +(\\d+) Group +(\\d+) Pid +(\\d+) on +\\S+ device +\\d+ .*");
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (!std::regex_match(line, found, device)) continue;
    EXPECT_EQ(found[1], std::to_string(pids.size()));
    pids.push_back(found[field]);
  }
  return pids;
}

TEST(PerfTools, RanksPerThreadAreRanksOfOneProcess) {
  for (const std::string& tool : all_tools()) {
    const CommandResult run = run_tool(tool, small({"-g", "3"}));
    expect_good_table(tool + " -g 3", run, 4);
    const std::vector<std::string> pids = pids_of(run.out);
    ASSERT_EQ(pids.size(), 3u) << run.out;
    EXPECT_EQ(std::set<std::string>(pids.begin(), pids.end()).size(), 1u) << run.out;
  }
  EXPECT_EQ(pids_of(run_tool("all_reduce_perf", small({"-g", "1"})).out).size(), 1u);
}

TEST(PerfTools, RanksAreProcessesTimesThreadsTimesRanksPerThread) {
  const CommandResult run =
      run_tool("all_reduce_perf", small({"--ranks", "2", "-t", "2", "-g", "2"}));
  expect_good_table("2 x 2 x 2", run, 4);
  EXPECT_NE(run.out.find("# nThread 2 nGpus 2 "), std::string::npos) << run.out;
  const std::vector<std::string> pids = pids_of(run.out);
  ASSERT_EQ(pids.size(), 8u) << run.out;
  for (size_t rank = 0; rank < 8; ++rank) EXPECT_EQ(pids[rank] == pids[0], rank < 4) << rank;
}

TEST(PerfTools, ProcessesFormTheGroupsThatTheEnvironmentAsksFor) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"NCCL_TESTS_SPLIT=MOD 2", {"0", "1", "0", "1", "0"}},
      {"NCCL_TESTS_SPLIT=/0b10", {"0", "0", "1", "1", "2"}},
      {"NCCL_TESTS_SPLIT_MASK=0x4", {"0", "0", "0", "0", "4"}},
  };
  for (const auto& [variable, groups] : cases) {
    for (const std::string& tool : all_tools()) {
      if (tool != "all_reduce_perf" && groups[1] != "1") continue;  // once each is enough
      const CommandResult run =
          run_tool(tool, small({"--ranks", "5", "-o", "mulsum", "-R", "2"}), {variable});
      expect_good_table(tool + " " + variable, run, 4);
      EXPECT_EQ(pids_of(run.out, 2), groups) << run.out;
    }
  }
}

TEST(PerfTools, BandwidthIsThatOfAGroup) {
  const std::string path = temporary_path("group.json");
  const CommandResult run =
      run_tool("all_gather_perf",
               {"--ranks", "4", "-b", "48K", "-e", "48K", "-n", "2", "--fixed-buffers", "-J", path},
               {"NCCL_TESTS_SPLIT=DIV 2"});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto j = nlohmann::json::parse(content_of(path));
  std::remove(path.c_str());
  const auto& row = j["results"][0];
  EXPECT_EQ(row["count"], 48 * 1024 / 4 / 2);  // blocks of two ranks
  EXPECT_NEAR(
      row["out_of_place"]["bus_bw"].get<double>() / row["out_of_place"]["alg_bw"].get<double>(),
      0.5, 1e-9);
  EXPECT_EQ(j["config"]["devices"][3]["group"], 1);
}

TEST(PerfTools, ARootThatAGroupDoesNotHaveIsAnError) {
  const CommandResult run =
      run_tool("broadcast_perf", small({"--ranks", "3", "-r", "1"}), {"NCCL_TESTS_SPLIT=MOD 2"});
  EXPECT_EQ(run.status, 3);
  EXPECT_NE(run.err.find("-r 1: the ranks are 0 to 0"), std::string::npos) << run.err;
  expect_good_table(
      "all roots",
      run_tool("broadcast_perf", small({"--ranks", "3", "-r", "all"}), {"NCCL_TESTS_SPLIT=MOD 2"}),
      4);
}

TEST(PerfTools, WithoutALauncherTwoRanksAreStartedAndSaidSo) {
  const CommandResult run = run_tool("all_reduce_perf", small({}));
  expect_good_table("default", run, 4);
  EXPECT_NE(run.out.find("--ranks 2"), std::string::npos) << run.out;
}

TEST(PerfTools, BusBandwidthIsAlgorithmBandwidthTimesTheFactor) {
  const std::pair<const char*, double> factors[] = {
      {"all_reduce_perf", 4.0 / 3},
      {"all_gather_perf", 2.0 / 3},
      {"reduce_scatter_perf", 2.0 / 3},
      {"alltoall_perf", 2.0 / 3},
      {"broadcast_perf", 1},
      {"reduce_perf", 1},
      {"gather_perf", 2.0 / 3},
      {"scatter_perf", 2.0 / 3},
      {"sendrecv_perf", 1},
      {"tag_sendrecv_perf", 1},
      {"all_reduce_leaves_perf", 4.0 / 3},
  };
  for (const auto& [tool, factor] : factors) {
    const std::string path = temporary_path("factor.json");
    const CommandResult run = run_tool(
        tool, {"-b", "48K", "-e", "48K", "-n", "2", "--ranks", "3", "--fixed-buffers", "-J", path});
    ASSERT_EQ(run.status, 0) << run.err;
    const auto row = nlohmann::json::parse(content_of(path))["results"][0];
    const double algorithm = row["out_of_place"]["alg_bw"];
    const double bus = row["out_of_place"]["bus_bw"];
    const double time_us = row["out_of_place"]["time"];
    EXPECT_NEAR(bus / algorithm, factor, 1e-9) << tool;
    EXPECT_NEAR(algorithm * time_us * 1e3, 49152, 1e-3) << tool;
    std::remove(path.c_str());
  }
}

TEST(PerfTools, ADamagedResultIsCountedAndFailsTheRun) {
  for (const std::string& tool : all_tools()) {
    const bool only_root_receives = tool == "reduce_perf" || tool == "gather_perf";
    const char* rank = only_root_receives ? "0" : "1";
    const CommandResult run = run_tool(tool, small({"--ranks", "2", "--test-corrupt", rank}));
    EXPECT_EQ(run.status, 1) << tool << "\n" << run.out << run.err;
    EXPECT_NE(run.out.find("FAILED"), std::string::npos) << tool << run.out;
    EXPECT_EQ(run.out.find(" 0 OK"), std::string::npos) << tool;
    EXPECT_NE(run.err.find(std::string("rank ") + rank + ": first wrong value"), std::string::npos)
        << tool << run.err;
  }
}

TEST(PerfTools, WithoutACheckNothingIsClaimed) {
  const CommandResult run =
      run_tool("all_reduce_perf", small({"-c", "0", "--test-corrupt", "1", "--ranks", "2"}));
  EXPECT_EQ(run.status, 0);
  for (const auto& row : table_of(run.out)) EXPECT_EQ(row[8], "N/A");
}

TEST(PerfTools, WrongUsageIsExplainedAndStatusTwo) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"-b", "many"}, "-b,--minbytes: many is not a size"},
      {{"-o", "xor"}, "-o,--op: xor is not a reduction"},
      {{"-d", "quad"}, "-d,--datatype: quad is not an element type"},
      {{"-g", "0"}, "-g,--ngpus: 0 is not a number"},
      {{"-q"}, "-q"},
  };
  for (const auto& [arguments, complaint] : cases) {
    const CommandResult run = run_tool("all_reduce_perf", arguments);
    EXPECT_EQ(run.status, 2) << complaint;
    EXPECT_NE(run.err.find(complaint), std::string::npos) << run.err;
    EXPECT_EQ(run.out, "");
  }
  const CommandResult run = run_tool("broadcast_perf", {"--ranks", "2", "-r", "2"});
  EXPECT_EQ(run.status, 2);
  EXPECT_NE(run.err.find("-r 2: the ranks are 0 to 1"), std::string::npos) << run.err;
  EXPECT_EQ(run_tool("weir-info", {"nonsense"}).status, 2);
  EXPECT_EQ(run_tool("start_perf", {"--ranks", "0"}).status, 2);
}

TEST(PerfTools, HelpNamesEveryFlag) {
  const CommandResult run = run_tool("reduce_perf", {"-h"});
  EXPECT_EQ(run.status, 0);
  for (const char* flag : {"--ranks", "-t,",  "-g,", "-b,", "-e,",   "-i,",
                           "-f,",     "-n,",  "-m,", "-w,", "-N,",   "-p,",
                           "-c,",     "-o,",  "-d,", "-r,", "-z,",   "-y,",
                           "-T,",     "-G,",  "-C,", "-S,", "-J,",   "-a,",
                           "-R,",     "-u,",  "-I,", "-h,", "--pin", "--fixed-buffers",
                           "-K,",     "-x,",  "-D,", "-V,", "-M,",   "--per_iter_timing",
                           "--plot",  "--csv"}) {
    EXPECT_NE(run.out.find(flag), std::string::npos) << flag;
  }
}

TEST(PerfTools, ReductionsTypesAndRootsAreSwept) {
  const CommandResult run =
      run_tool("reduce_perf", {"--ranks", "3", "-b", "600", "-e", "600", "-n", "1", "-o", "all",
                               "-d", "all", "-r", "all", "--fixed-buffers"});
  expect_good_table("reduce_perf all", run, 6 * 12 * 3);
}

TEST(PerfTools, RegisteredSymmetricUnalignedGroupedAndNonblockingAreRight) {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{"-R", "1"},
                                                {"-R", "2"},
                                                {"-u", "1"},
                                                {"-u", "5"},
                                                {"-m", "3"},
                                                {"-z", "0"},
                                                {"-z", "1"},
                                                {"-z", "2"},
                                                {"-z", "3"},
                                                {"-z", "0", "-m", "3"},
                                                {"-z", "0", "-m", "11"},
                                                {"-z", "1", "-m", "3"},
                                                {"-z", "3", "-m", "3"},
                                                {"-C", "1"},
                                                {"-a", "3"},
                                                {"-w", "0"}}) {
    for (const char* tool :
         {"all_reduce_perf", "alltoall_perf", "alltoallv_perf", "sendrecv_perf"}) {
      std::vector<std::string> arguments = small({"--ranks", "2"});
      arguments.insert(arguments.end(), flags.begin(), flags.end());
      expect_good_table(std::string(tool) + " " + flags[0] + " " + flags[1],
                        run_tool(tool, arguments), 4);
    }
  }
}

TEST(PerfTools, RotatingBuffersAreTheDefault) {
  const std::string path = temporary_path("rotating.json");
  const CommandResult run = run_tool(
      "all_reduce_perf",
      {"--ranks", "2", "-b", "1K", "-e", "1K", "-n", "2", "--cache-bytes", "1M", "-J", path});
  ASSERT_EQ(run.status, 0) << run.err;
  const auto j = nlohmann::json::parse(content_of(path));
  EXPECT_FALSE(j["config"]["fixed_buffers"]);
  EXPECT_GE(j["results"][0]["buffer_sets"].get<int>() * 4 * 1024, 1 << 20);
  std::remove(path.c_str());
}

TEST(PerfTools, CyclesRepeatTheTableAndIterationsAreReported) {
  const CommandResult run =
      run_tool("all_reduce_perf", small({"--ranks", "2", "-N", "2", "-I", "1", "-S", "1"}));
  EXPECT_EQ(run.status, 0) << run.err;
  const auto rows = table_of(run.out);
  ASSERT_EQ(rows.size(), 8u);
  for (const auto& row : rows) EXPECT_EQ(row.size(), 13u + 8u + 2u) << run.out;
}

TEST(PerfTools, TheTimesOfIterationsAreThoseOfTheSlowestProcess) {
  for (const char* blocking : {"0", "1", "2", "3"}) {
    const std::string path = temporary_path("iterations.json");
    const CommandResult run = run_tool(
        "all_reduce_perf", {"--ranks", "2", "-t", "2", "-b", "1K", "-e", "1K", "-n", "6", "-I", "1",
                            "-K", "2", "-z", blocking, "--fixed-buffers", "-J", path});
    ASSERT_EQ(run.status, 0) << run.err;
    const auto row = nlohmann::json::parse(content_of(path))["results"][0];
    std::remove(path.c_str());
    for (const char* place : {"out_of_place_per_iter", "in_place_per_iter"}) {
      const auto& each = row[place];
      const std::vector<double> times = each["times_us"];
      const std::vector<std::vector<double>> processes = each["per_process_max_times_us"];
      ASSERT_EQ(times.size(), 6u);
      ASSERT_EQ(processes.size(), 2u);
      for (size_t i = 0; i < times.size(); ++i) {
        EXPECT_EQ(times[i], std::max(processes[0].at(i), processes[1].at(i)));
        EXPECT_GT(times[i], 0);
      }
      EXPECT_EQ(each["skipped_iterations"], 2);
      EXPECT_EQ(each["min_us"], *std::min_element(times.begin() + 2, times.end()));
      EXPECT_EQ(each["max_us"], *std::max_element(times.begin() + 2, times.end()));
    }
  }
}

TEST(PerfTools, TheBarrierBetweenIterationsIsNotTimed) {
  // The time of the loop is then the sum of the times of the iterations, and a barrier of eight
  // processes takes several microseconds. Another program may use the core between the two clocks,
  // but not each time.
  double excess_us = 1e9;
  for (Attempts attempts; excess_us > 1 && attempts.next();) {
    const std::string path = temporary_path("barrier.json");
    const CommandResult run =
        run_tool("all_reduce_perf", {"--ranks", "8", "-b", "8", "-e", "8", "-n", "50", "-I", "1",
                                     "-z", "3", "-c", "0", "--fixed-buffers", "-J", path});
    ASSERT_EQ(run.status, 0) << run.err;
    const auto row = nlohmann::json::parse(content_of(path))["results"][0];
    std::remove(path.c_str());
    double slowest_us = 0;
    for (const auto& times : row["out_of_place_per_iter"]["per_process_max_times_us"]) {
      double sum_us = 0;
      for (const double us : times) sum_us += us;
      slowest_us = std::max(slowest_us, sum_us / static_cast<double>(times.size()));
    }
    excess_us = std::min(excess_us, row["out_of_place"]["time_max"].get<double>() - slowest_us);
  }
  EXPECT_LE(excess_us, 1);
}

TEST(PerfTools, ProcessorTimeIsShownAndBandwidthIsStillOfElapsedTime) {
  const std::string path = temporary_path("cpu.json");
  const CommandResult run =
      run_tool("all_reduce_perf", {"--ranks", "2", "-b", "64K", "-e", "64K", "-n", "5", "-C", "1",
                                   "--fixed-buffers", "-J", path});
  ASSERT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.out.find("cputime   algbw"), std::string::npos) << run.out;
  const auto place = nlohmann::json::parse(content_of(path))["results"][0]["out_of_place"];
  std::remove(path.c_str());
  EXPECT_GT(place["cpu_time"].get<double>(), 0);
  EXPECT_NEAR(place["alg_bw"].get<double>() * place["time"].get<double>() * 1e3, 65536, 1e-3);
}

TEST(PerfTools, MemoryIsReportedWhenAsked) {
  const std::vector<std::string> one_size = {
      "--ranks", "2", "-b", "4M", "-e", "4M", "-n", "2", "--fixed-buffers"};
  EXPECT_EQ(run_tool("all_reduce_perf", one_size).out.find("memory usage"), std::string::npos);
  std::vector<std::string> asking = one_size;
  asking.insert(asking.end(), {"-M", "1"});
  const CommandResult run = run_tool("all_reduce_perf", asking);
  const std::regex line(
      "# Host memory usage    : Initialization ([\\d.]+) [KMG]?B \\| User-Allocated ([\\d.]+) MB "
      "\\| Collective [\\d.]+ [KMG]?B \\| Total [\\d.]+ [KMG]?B");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(run.out, found, line)) << run.out;
  EXPECT_GE(std::stod(found[2]), 8.0) << run.out;  // 4 MiB to send from, 4 MiB to receive into
  EXPECT_LT(std::stod(found[2]), 12.0) << run.out;
}

TEST(PerfTools, LessBandwidthThanWantedFailsTheRun) {
  const auto run_wanting = [](const char* wanted) {
    return run_tool("all_reduce_perf", small({"--ranks", "2"}),
                    {std::string("NCCL_TESTS_MIN_BW=") + wanted});
  };
  const CommandResult enough = run_wanting("0.000001");
  EXPECT_EQ(enough.status, 0) << enough.out;
  EXPECT_TRUE(std::regex_search(enough.out, std::regex("# Avg bus bandwidth    : [\\d.]+ OK\n")));
  const CommandResult short_of_it = run_wanting("1e9");
  EXPECT_EQ(short_of_it.status, 1) << short_of_it.out;
  EXPECT_TRUE(
      std::regex_search(short_of_it.out, std::regex("# Avg bus bandwidth    : [\\d.]+ FAILED\n")));
}

TEST(PerfTools, FilesAreWrittenAndParse) {
  const std::string json = temporary_path("out.json");
  const std::string csv = temporary_path("out.csv");
  const std::string svg = temporary_path("out.svg");
  const CommandResult run =
      run_tool("all_gather_perf", small({"--ranks", "2", "-J", json, "--csv", csv, "--plot", svg}));
  ASSERT_EQ(run.status, 0) << run.err;
  const auto j = nlohmann::json::parse(content_of(json));
  EXPECT_EQ(j["results"].size(), 4u);
  EXPECT_EQ(j["config"]["rank_count"], 2);
  EXPECT_EQ(j["out_of_bounds"]["okay"], "true");
  EXPECT_FALSE(j["machine"]["processor"].get<std::string>().empty());
  EXPECT_FALSE(j["start_time"].get<std::string>().empty());
  const std::string lines = content_of(csv);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 5);
  EXPECT_EQ(content_of(svg).substr(0, 4), "<svg");
  for (const std::string& path : {json, csv, svg}) std::remove(path.c_str());
}

TEST(PerfTools, AFileThatCannotBeWrittenIsAnError) {
  const CommandResult run =
      run_tool("all_reduce_perf", small({"--ranks", "2", "-J", "/dev/null/out.json"}));
  EXPECT_EQ(run.status, 3);
  EXPECT_NE(run.err.find("cannot write /dev/null/out.json"), std::string::npos) << run.err;
}

TEST(PerfTools, AFileToWriteStaysWhatItIs) {
  const std::string fifo = temporary_path("fifo");
  const std::string link = temporary_path("link");
  const std::string csv = temporary_path("linked.csv");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  ASSERT_EQ(symlink(csv.c_str(), link.c_str()), 0);
  const CommandResult run =
      run_tool("all_reduce_perf", small({"--ranks", "2", "--csv", link, "--plot", fifo}));
  EXPECT_EQ(run.status, 3);
  EXPECT_NE(run.err.find(fifo + ": no program reads this FIFO"), std::string::npos) << run.err;
  EXPECT_TRUE(std::filesystem::is_fifo(fifo));
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(content_of(csv).substr(0, 11), "size_bytes,");
  for (const std::string& path : {fifo, link, csv}) std::remove(path.c_str());
}

TEST(PerfTools, OutputThatIsLostIsAnError) {
  const std::string folder = WEIR_PERF_FOLDER;
  for (const char* command :
       {"all_reduce_perf --ranks 2 -b 8 -e 8 -n 1", "all_reduce_perf -t 2 -b 8 -e 8 -n 1",
        "all_reduce_perf --help", "weir-info --markdown", "weir-info"}) {
    const CommandResult run = run_command(
        "/bin/sh", {"-c", folder + "/" + command + " > /dev/full"});  // writes fail there
    EXPECT_EQ(run.status, 1) << command << run.err;
    EXPECT_NE(run.err.find("cannot write standard output"), std::string::npos) << run.err;
  }
}

TEST(PerfTools, ATopologyFileWithAnErrorIsNotAdvisedToBeTakenAlone) {
  const std::string path = temporary_path("topology.xml");
  std::ofstream(path) << "<system version=";
  const CommandResult run =
      run_tool("all_reduce_perf", small({"--ranks", "2"}),
               {"WEIR_TOPOLOGY_FILE=" + path, "WEIR_TOPOLOGY_MERGE=1", "WEIR_LOG=warn"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_NE(run.err.find("WEIR_TOPOLOGY_FILE is ignored"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("; name a topology file"), std::string::npos) << run.err;
  EXPECT_EQ(run.err.find("takes it alone"), std::string::npos) << run.err;
  std::remove(path.c_str());
}

TEST(PerfTools, SizesForWhichMemoryIsMissingAreLeftOut) {
  const CommandResult run = run_tool(
      "all_reduce_perf", {"--ranks", "2", "-b", "1K", "-e", "900G", "-i", "800G", "-n", "1"});
  EXPECT_EQ(run.status, 0) << run.err;
  const auto rows = table_of(run.out);
  ASSERT_EQ(rows.size(), 1u) << run.out;
  EXPECT_EQ(rows[0][0], "1024");
  EXPECT_NE(run.out.find("# Reducing maxBytes to 1024 due to memory limitation\n"),
            std::string::npos)
      << run.out;
}

TEST(PerfTools, TooLittleMemoryIsSaidBeforeAnythingRuns) {
  const CommandResult run =
      run_tool("all_reduce_perf", {"--ranks", "2", "-b", "900G", "-e", "900G"});
  EXPECT_EQ(run.status, 3);
  EXPECT_NE(run.err.find("GiB for them; lower -b"), std::string::npos) << run.err;
}

TEST(PerfTools, RankAndSizeComeFromTheEnvironment) {
  const CommandResult run =
      run_tool("all_reduce_perf", small({}),
               {"WEIR_RANK=0", "WEIR_SIZE=1", "WEIR_ID=perf-test-" + std::to_string(getpid())});
  expect_good_table("environment", run, 4);
  EXPECT_NE(run.out.find("nRanks 1 "), std::string::npos) << run.out;
}

TEST(PerfTools, AContradictoryEnvironmentIsAnErrorThatNamesIt) {
  const CommandResult run = run_tool("all_reduce_perf", small({}), {"WEIR_RANK=5", "WEIR_SIZE=2"});
  EXPECT_EQ(run.status, 3);
  EXPECT_NE(run.err.find("WEIR_RANK"), std::string::npos) << run.err;
}

}  // namespace
}  // namespace weir::test
