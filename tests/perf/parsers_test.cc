// SPDX-License-Identifier: Apache-2.0
// The output of the perf tools, read as the programs that people use read that of nccl-tests. The
// readers below are written from the formats that these programs accept.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <sstream>

#include "perf/command.h"

namespace weir::test {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream in(line);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

struct Place {
  double time_us = 0, algorithm_gbs = 0, bus_gbs = 0;
  std::optional<uint64_t> wrong;
};

struct ParsedRow {
  uint64_t bytes = 0, count = 0;
  Place out_of_place, in_place;
};

struct Parsed {
  std::vector<ParsedRow> rows;
  std::optional<double> average_bus_gbs;
};

// micro-benchmarks/nccl-tests/nccl_to_csv.py of github.com/awslabs/awsome-distributed-training: a
// line of results has thirteen columns, of which the times and bandwidths of both places are plain
// decimals and #wrong is whole or N/A; lines of another form are passed over in silence. Only four
// types are known. The average is the plain decimal at the end of its line.
Parsed read_as_nccl_to_csv(const std::string& text) {
  const std::string whole = "\\s+(\\d+)";
  const std::string place = "\\s+(\\d+\\.?\\d*)\\s+(\\d+\\.?\\d*)\\s+(\\d+\\.?\\d*)\\s+(\\d+|N/A)";
  const std::regex row("^" + whole + whole +
                       "\\s+(?:float|double|int|half)\\s+(?:sum|prod|max|min|none)\\s+-?\\d+" +
                       place + place + ".*");
  const std::regex average("# Avg bus bandwidth\\s*:\\s*(\\d+\\.?\\d*)(.*)");
  Parsed parsed;
  for (const std::string& line : lines_of(text)) {
    std::smatch found;
    if (std::regex_match(line, found, average)) {
      parsed.average_bus_gbs = std::stod(found[1]);
      EXPECT_EQ(found[2], "") << line;  // what it would lose
    }
    if (!std::regex_match(line, found, row)) continue;
    const auto read_place = [&found](size_t first) {
      Place p{
          std::stod(found[first]), std::stod(found[first + 1]), std::stod(found[first + 2]), {}};
      if (found[first + 3] != "N/A") p.wrong = std::stoull(found[first + 3]);
      return p;
    };
    parsed.rows.push_back(
        {std::stoull(found[1]), std::stoull(found[2]), read_place(3), read_place(7)});
  }
  return parsed;
}

// nccl-bw of github.com/microsoft/superbenchmark (cuda_nccl_bw_performance.py): the table lies
// between the last line with out-of-place and the last one with the values out of bounds. Its line
// of names says where time, algbw and busbw are, counted from the end since columns before them may
// be empty; the last of each name is the one in place. Rows begin with a number; size 0 is left
// out.
std::vector<std::pair<uint64_t, Place>> read_as_superbench(const std::string& text, bool in_place) {
  const std::vector<std::string> lines = lines_of(text);
  size_t begin = 0;
  size_t end = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].find("out-of-place") != std::string::npos) begin = i + 1;
    if (lines[i].find("Out of bounds values") != std::string::npos) end = i;
  }
  std::vector<std::pair<uint64_t, Place>> rows;
  if (begin == 0 || end <= begin) return rows;
  size_t names_line = begin;
  while (names_line < end && (lines[names_line].find("time") == std::string::npos ||
                              lines[names_line].find("busbw") == std::string::npos)) {
    ++names_line;
  }
  if (names_line == end) return rows;
  const std::vector<std::string> names = words_of(lines[names_line].substr(1));
  const auto from_end = [&](const std::string& name) {
    size_t at = names.size();
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name && (in_place || at == names.size())) at = i;
    }
    return names.size() - at;
  };
  for (size_t i = begin; i < end; ++i) {
    const std::vector<std::string> words = words_of(lines[i]);
    if (words.empty() || words[0].find_first_not_of("0123456789") != std::string::npos) continue;
    const auto number = [&words](size_t back) { return std::stod(words.at(words.size() - back)); };
    const uint64_t bytes = std::stoull(words[0]);
    if (bytes == 0) continue;
    rows.push_back(
        {bytes,
         {number(from_end("time")), number(from_end("algbw")), number(from_end("busbw")), {}}});
  }
  return rows;
}

// The lines on devices as nccl-tests reads its own again for its JSON (src/util.cu).
size_t count_devices(const std::string& text) {
  const std::regex device(
      "#  Rank +\\d+ Group +\\d+ Pid +\\d+ on +\\S+ device +\\d+ \\[[^\\]]{1,128}\\] \\S.*");
  size_t count = 0;
  for (const std::string& line : lines_of(text)) count += std::regex_match(line, device) ? 1 : 0;
  return count;
}

void expect_place(const Place& read, const nlohmann::json& written, const std::string& what) {
  // As exact as the narrowest column: two decimals, or five figures.
  const auto near = [&](double value, double exact) {
    EXPECT_NEAR(value, exact, 0.0051 + exact * 1e-5) << what;
  };
  near(read.time_us, written["time"]);
  near(read.algorithm_gbs, written["alg_bw"]);
  near(read.bus_gbs, written["bus_bw"]);
}

class PerfParsers : public testing::TestWithParam<const char*> {
 protected:
  // Runs the tool with 3 ranks; its text, and the JSON of the same run as what must be read.
  void run(std::vector<std::string> more) {
    const std::string path = testing::TempDir() + "weir-parsers-" + std::to_string(getpid());
    std::vector<std::string> arguments = {
        "-b", "16", "-e", "300K", "-f", "26", "-n", "3", "-g", "3", "-J", path, "--fixed-buffers"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = run_tool(GetParam(), arguments);
    ASSERT_EQ(result.status, 0) << result.out << result.err;
    text_ = result.out;
    std::ifstream file(path);
    json_ = nlohmann::json::parse(file);
    std::remove(path.c_str());
    ASSERT_EQ(json_["results"].size(), 4u);
  }

  std::string text_;
  nlohmann::json json_;
};

TEST_P(PerfParsers, NcclToCsvReadsEveryRowAndTheAverage) {
  run({});
  const Parsed parsed = read_as_nccl_to_csv(text_);
  ASSERT_EQ(parsed.rows.size(), 4u) << text_;
  for (size_t i = 0; i < 4; ++i) {
    const nlohmann::json& row = json_["results"][i];
    EXPECT_EQ(parsed.rows[i].bytes, row["size"]);
    EXPECT_EQ(parsed.rows[i].count, row["count"]);
    expect_place(parsed.rows[i].out_of_place, row["out_of_place"], text_);
    expect_place(parsed.rows[i].in_place, row["in_place"], text_);
    EXPECT_EQ(parsed.rows[i].out_of_place.wrong, 0u) << text_;
    EXPECT_EQ(parsed.rows[i].in_place.wrong, 0u) << text_;
  }
  ASSERT_TRUE(parsed.average_bus_gbs.has_value()) << text_;
  const double average = json_["average_bus_bandwidth"]["bandwidth"];
  EXPECT_NEAR(*parsed.average_bus_gbs, average, average * 1e-5 + 1e-6) << text_;
}

TEST_P(PerfParsers, SuperBenchReadsEveryRowOutOfPlaceAndInPlace) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"-c", "0"}, {"-I", "1"}, {"-G", "2", "-w", "5"}}) {
    run(more);
    for (const bool in_place : {false, true}) {
      const auto rows = read_as_superbench(text_, in_place);
      ASSERT_EQ(rows.size(), 4u) << text_;
      for (size_t i = 0; i < 4; ++i) {
        const nlohmann::json& row = json_["results"][i];
        EXPECT_EQ(rows[i].first, row["size"]);
        expect_place(rows[i].second, row[in_place ? "in_place" : "out_of_place"], text_);
      }
    }
  }
}

TEST_P(PerfParsers, EveryRankIsADeviceAndEveryOtherLineAComment) {
  run({"-x", "0", "-D", "1", "-V", "16", "-y", "1", "-M", "1"});
  EXPECT_EQ(count_devices(text_), 3u) << text_;
  size_t rows = 0;
  for (const std::string& line : lines_of(text_)) {
    // A health check of the same repository takes what begins with blanks and a digit for a row,
    // and its last column but one for the bus bandwidth in place.
    if (std::regex_search(line, std::regex("^\\s+[0-9]"))) {
      const std::vector<std::string> words = words_of(line);
      ASSERT_EQ(words.size(), 13u) << line;
      EXPECT_GE(std::stod(words[11]), 0);
      ++rows;
    } else {
      EXPECT_EQ(line.substr(0, 1), "#") << line;
    }
  }
  EXPECT_EQ(rows, 4u);
  const std::regex settings(
      "\n# nThread 1 nGpus 3 minBytes 16 maxBytes 307200 step: 26\\(factor\\) warmup iters: 1 "
      "iters: 3 agg iters: 1 validation: 1 graph: 0 unalign: 0\n");
  EXPECT_TRUE(std::regex_search(text_, settings)) << text_;
  const std::string tool = GetParam();
  EXPECT_NE(text_.find("# Collective test starting: " + tool + "\n"), std::string::npos) << text_;
  EXPECT_NE(text_.find("# Collective test concluded: " + tool + "\n"), std::string::npos) << text_;
}

INSTANTIATE_TEST_SUITE_P(All, PerfParsers,
                         testing::Values("all_reduce_perf", "all_gather_perf",
                                         "reduce_scatter_perf", "alltoall_perf", "alltoallv_perf",
                                         "broadcast_perf", "reduce_perf", "gather_perf",
                                         "scatter_perf", "sendrecv_perf", "tag_sendrecv_perf",
                                         "all_reduce_leaves_perf"));

// What the real programs refuse, the readers above refuse too.
TEST(PerfParsersThemselves, RefuseWhatTheirModelsRefuse) {
  const std::string good = "  16  4  float  sum  -1  1.50  0.01  0.01  0  1.60  0.01  0.01  N/A\n";
  EXPECT_EQ(read_as_nccl_to_csv(good).rows.size(), 1u);
  for (const char* bad : {
           "  16  4  float  none  -1  1.50  0.01  0.01  0  N/A  N/A  N/A  N/A\n",
           "  16  4  float  sum  -1  1.5e+06  0.01  0.01  0  1.60  0.01  0.01  0\n",
           "  16  4  float  sum  1.50  0.01  0.01  0  1.60  0.01  0.01  0\n",
       }) {
    EXPECT_TRUE(read_as_nccl_to_csv(bad).rows.empty()) << bad;
  }
  const std::string names = "# out-of-place in-place\n# size time busbw algbw time busbw algbw\n";
  const std::string rows = " 8 1 2 3 4 5 6\n";
  EXPECT_TRUE(read_as_superbench(names + rows, false).empty());  // no footer
  const auto read = read_as_superbench(names + rows + "# Out of bounds values : 0 OK\n", true);
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].second.time_us, 4);
  EXPECT_EQ(read[0].second.bus_gbs, 5);
}

}  // namespace
}  // namespace weir::test
