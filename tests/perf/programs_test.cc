// SPDX-License-Identifier: Apache-2.0
// Programs from elsewhere, as a user runs them: WEIR_PROGRAMS, over shared memory and over tcp,
// with results compared; and every rank hears of a folder that is wrong, or not that of the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "perf/command.h"
#include "sched/msccl_documents.h"

namespace weir::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class Programs : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() / ("weir-programs-" + std::to_string(getpid()) + "-" +
                                     testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_ / "cache");
    fs::permissions(folder_ / "cache", fs::perms::owner_all);
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  static std::string content_of(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  // What examples/11_all_reduce_for_pairs.py writes.
  std::string pairs() {
    const fs::path file = folder_ / "written.json";
    const CommandResult run = run_command(WEIR_PYTHON3, {WEIR_EXAMPLE, file.string()});
    EXPECT_EQ(run.status, 0) << run.err;
    return content_of(file);
  }
  // The programs of one of Weir's algorithms for 4 ranks.
  static std::string printed(const std::string& collective, const std::string& algorithm) {
    return run_command(WEIR_SCHED_PROGRAM,
                       {"print", "-c", collective, "-a", algorithm, "-n", "4", "--json"})
        .out;
  }

  // Four ranks; sizes that do not divide evenly, too. In place and not.
  CommandResult run(const std::string& tool, std::vector<std::string> environment,
                    std::vector<std::string> more = {}) {
    environment.push_back("WEIR_PROGRAMS=" + (folder_ / "programs").string());
    environment.push_back("WEIR_CACHE_DIR=" + (folder_ / "cache").string());
    environment.push_back("WEIR_EXPLAIN=1");
    std::vector<std::string> arguments = {"--ranks", "4",  "-b", "52", "-e", "900K", "-f",
                                          "41",      "-n", "3",  "-w", "1",  "-c",   "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_tool(tool, arguments, environment);
  }
  static void expect_right(const CommandResult& run, const std::string& chosen) {
    EXPECT_EQ(run.status, 0) << run.err;
    EXPECT_THAT(run.out, HasSubstr("# Out of bounds values : 0 OK"));
    EXPECT_THAT(run.err, HasSubstr(chosen));
  }

  // Each rank in a process of its own, with its own folder; all must end. The text of each.
  std::vector<CommandResult> run_apart(const std::vector<std::string>& folders,
                                       const std::string& forced = "") {
    const std::string id = "programs-" + std::to_string(getpid()) + folder_.filename().string();
    std::string script;
    for (size_t rank = 0; rank < folders.size(); ++rank) {
      const std::string output = (folder_ / ("rank" + std::to_string(rank))).string();
      const std::string number = std::to_string(rank);
      for (const std::string& part :
           {std::string("WEIR_RANK="), number, std::string(" WEIR_SIZE="),
            std::to_string(folders.size()), std::string(" WEIR_ID="), id,
            std::string(" WEIR_PROGRAMS="), (folder_ / folders[rank]).string(),
            std::string(forced.empty() ? "" : " WEIR_ALGORITHM="), forced,
            std::string(" " WEIR_TOOL_FOLDER "/all_reduce_perf -b 64 -e 64 -n 1 -w 1 >"), output,
            std::string(" 2>&1 & p"), number, std::string("=$!\n")}) {
        script += part;
      }
    }
    for (size_t rank = 0; rank < folders.size(); ++rank) {
      script += "wait $p" + std::to_string(rank) + "; echo $?\n";
    }
    const auto begin = std::chrono::steady_clock::now();
    const CommandResult all = run_command("/bin/sh", {"-c", script});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60))
        << "a rank waited for its deadline";
    std::vector<CommandResult> results;
    std::istringstream statuses(all.out);
    for (size_t rank = 0; rank < folders.size(); ++rank) {
      CommandResult& result = results.emplace_back();
      statuses >> result.status;
      result.err = content_of(folder_ / ("rank" + std::to_string(rank)));
    }
    return results;
  }

  fs::path folder_;
};

TEST_F(Programs, TheExampleRunsOverSharedMemoryAndTcp) {
  write("programs/pairs.json", pairs());
  for (const char* transport : {"shm", "tcp"}) {
    const CommandResult result = run("all_reduce_perf", {std::string("WEIR_TRANSPORT=") + transport,
                                                         "WEIR_ALGORITHM=all_reduce=pairs"});
    expect_right(result, "on 4 ranks, in place: pairs, forced by WEIR_ALGORITHM");
    EXPECT_THAT(result.err, HasSubstr("  > pairs  ")) << "with a predicted time";
    expect_right(
        run("all_reduce_perf",
            {std::string("WEIR_TRANSPORT=") + transport, "WEIR_ALGORITHM=all_reduce=pairs"},
            {"-d", "all", "-o", "avg", "-b", "52", "-e", "52"}),
        ": pairs, forced");
  }
}

TEST_F(Programs, ThePageShowsTheExampleInThirtyLines) {
  const std::string example = content_of(WEIR_EXAMPLE);
  EXPECT_LE(std::count(example.begin(), example.end(), '\n'), 30);
  const std::string body = example.substr(example.find("\"\"\""));
  EXPECT_NE(content_of(WEIR_PAGE).find("```python\n" + body + "```\n"), std::string::npos);
}

TEST_F(Programs, DocumentsOfMscclRunOverSharedMemoryAndTcp) {
  for (const bool in_place : {false, true}) {
    write("programs/my_ring.xml", algo::msccl_ring_all_reduce(4, 2, in_place));
    write("programs/my_pairs.xml", algo::msccl_pairs_all_reduce(4));
    write("programs/my_gather.xml", algo::msccl_ring_all_gather(4, in_place));
    write("programs/my_scatter.xml", algo::msccl_ring_reduce_scatter(4, in_place));
    write("programs/my_exchange.xml", algo::msccl_pairs_all_to_all(4, 3, in_place));
    for (const char* transport : {"WEIR_TRANSPORT=shm", "WEIR_TRANSPORT=tcp"}) {
      const auto check = [&](const char* tool, const char* collective, const char* name) {
        expect_right(
            run(tool, {transport, "WEIR_ALGORITHM=" + std::string(collective) + "=" + name}),
            std::string(": ") + name + ", forced by WEIR_ALGORITHM");
      };
      check("all_reduce_perf", "all_reduce", "my_ring");
      check("all_reduce_perf", "all_reduce", "my_pairs");
      check("all_gather_perf", "all_gather", "my_gather");
      check("reduce_scatter_perf", "reduce_scatter", "my_scatter");
      check("alltoall_perf", "all_to_all", "my_exchange");
    }
  }
}

TEST_F(Programs, ProgramsInMemoryOfPeersRun) {
  for (const char* algorithm : {"direct", "direct_two_phase", "window"}) {
    write("programs/mine.json", printed("all_reduce", algorithm));
    for (const char* operation : {"sum", "avg"}) {
      // Windows are agreed on for larger buffers only.
      expect_right(run("all_reduce_perf", {"WEIR_TRANSPORT=shm", "WEIR_ALGORITHM=all_reduce=mine"},
                       {"-o", operation, "-R", "2", "-b", "512K", "-e", "900K"}),
                   ": mine, forced by WEIR_ALGORITHM");
    }
    if (std::string(algorithm) == "window") continue;
    expect_right(run("all_reduce_perf", {"WEIR_TRANSPORT=shm", "WEIR_ALGORITHM=all_reduce=mine"},
                     {"-o", "avg"}),
                 ": mine, forced by WEIR_ALGORITHM");
    expect_right(run("all_reduce_perf", {"WEIR_TRANSPORT=shm"}), "    mine  ");
  }
}

TEST_F(Programs, AreCandidatesAndMayBeNamedByARule) {
  write("programs/pairs.json", pairs());
  const CommandResult predicted = run("all_reduce_perf", {"WEIR_TRANSPORT=tcp"});
  expect_right(predicted, " pairs  ");
  write("rules.toml", "[[rule]]\ncollective = \"all_reduce\"\nalgorithm = \"pairs\"\n");
  const std::string rules = (folder_ / "rules.toml").string();
  expect_right(run("all_reduce_perf", {"WEIR_TRANSPORT=shm", "WEIR_TUNING_FILE=" + rules}),
               ": pairs, rule of " + rules);
  // For other communicators it is no candidate.
  const CommandResult other = run("all_reduce_perf", {"WEIR_TRANSPORT=tcp"}, {"--ranks", "3"});
  EXPECT_EQ(other.status, 0) << other.err;
  EXPECT_THAT(other.err, HasSubstr("was made for another number of ranks"));
  EXPECT_THAT(other.err, Not(HasSubstr("> pairs")));
}

TEST_F(Programs, OnlyThoseInRankOrderAreOfferedWhereResultsAreDeterministic) {
  write("programs/pairs.json", pairs());
  write("programs/in_order.json", printed("all_reduce", "ordered"));
  const std::vector<std::string> environment = {"WEIR_TRANSPORT=tcp", "WEIR_DETERMINISTIC=1"};
  const CommandResult both = run("all_reduce_perf", environment);
  expect_right(both, "pairs                        does not fold in rank order");
  EXPECT_THAT(both.err, Not(HasSubstr("in_order                     does not fold")));
  const CommandResult forced =
      run("all_reduce_perf", {environment[0], environment[1], "WEIR_ALGORITHM=all_reduce=pairs"});
  EXPECT_NE(forced.status, 0);
  EXPECT_THAT(forced.err, HasSubstr("all_reduce=pairs cannot be used on 4 ranks"));
}

TEST_F(Programs, AFileThatIsWrongIsRefusedWithTheOperation) {
  std::string text = pairs();
  // Rank 0 folds what it has not received.
  const size_t rank = text.find("\"rank\": 1");
  const size_t at = text.rfind("\"in\"", rank);
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 4, "\"out\"");
  write("programs/pairs.json", text);
  const CommandResult result = run("all_reduce_perf", {"WEIR_TRANSPORT=shm"});
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.err, HasSubstr("WEIR_PROGRAMS: " + (folder_ / "programs").string() +
                                    "/pairs.json: the programs are wrong (value): rank 0 op 2 ("));
}

TEST_F(Programs, AFolderThatCannotBeUsedSaysWhy) {
  const auto expect_refused = [&](const std::string& expected) {
    const CommandResult result = run("all_reduce_perf", {"WEIR_TRANSPORT=shm"});
    EXPECT_NE(result.status, 0);
    EXPECT_THAT(result.err, HasSubstr(expected));
    fs::remove_all(folder_ / "programs");
  };
  expect_refused("cannot read the folder");
  write("programs/ring.json", pairs());
  expect_refused("'ring' is the name of an algorithm of all_reduce that Weir has");
  write("programs/a.json", pairs());
  write("programs/a.xml", algo::msccl_ring_all_reduce(4, 1, true));
  expect_refused("'a.json' and 'a.xml' give two sets of programs the same name");
  write("programs/a b.json", pairs());
  expect_refused("a b.json: the name of a set of programs has 1 to 64 letters");
  write("programs/a.xml", "<algo");
  expect_refused("a.xml:1: ");
  fs::create_directories(folder_ / "programs" / "a.json");
  expect_refused("a.json' is not a regular file");
  for (int i = 0; i < 65; ++i) write("programs/" + std::to_string(i) + ".json", "{}");
  expect_refused("holds more than 64 files");
}

TEST_F(Programs, RanksWithOtherFilesHearWhichFileOfWhichRank) {
  const std::string good = pairs();
  write("all/pairs.json", good);
  write("all/notes.txt", "passed over");
  write("none/notes.txt", "passed over");
  write("other/pairs.json", good + " ");
  write("more/pairs.json", good);
  write("more/second.xml", algo::msccl_ring_all_gather(4, true));
  write("bad/pairs.json", "{}");
  struct Case {
    std::vector<std::string> folders;
    std::string expected;
  };
  const Case cases[] = {
      {{"all", "all", "none", "all"}, "rank 0 has 'pairs.json', rank 2 does not"},
      {{"none", "all", "all", "all"}, "rank 1 has 'pairs.json', rank 0 does not"},
      {{"all", "other", "all", "all"}, "'pairs.json' of rank 0 (hash "},
      {{"all", "all", "all", "more"}, "rank 3 has 'second.xml', rank 0 does not"},
      {{"all", "bad", "all", "all"}, "rank 1: WEIR_PROGRAMS: "},
      {{"all", "all", "all", "nowhere"}, "rank 3: WEIR_PROGRAMS: cannot read the folder"},
  };
  for (const Case& test : cases) {
    for (const char* forced : {"", "all_reduce=pairs"}) {
      for (const CommandResult& rank : run_apart(test.folders, forced)) {
        EXPECT_NE(rank.status, 0);
        EXPECT_THAT(rank.err, HasSubstr(test.expected)) << forced;
      }
    }
  }
  for (const CommandResult& rank : run_apart({"all", "all", "all", "all"}, "all_reduce=pairs")) {
    EXPECT_EQ(rank.status, 0) << rank.err;
  }
}

}  // namespace
}  // namespace weir::test
