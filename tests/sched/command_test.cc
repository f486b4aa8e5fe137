// SPDX-License-Identifier: Apache-2.0
// weir-sched as a user runs it: what it prints and how it exits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/cost/cache.h"
#include "sched/msccl_documents.h"

namespace weir {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string text;  // standard output and error
};

Outcome run(const std::string& arguments) {
  const std::string command = std::string(WEIR_SCHED_PROGRAM) + " " + arguments + " 2>&1";
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  size_t bytes = 0;
  while ((bytes = std::fread(buffer, 1, sizeof buffer, pipe)) > 0)
    outcome.text.append(buffer, bytes);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Scratch {
 public:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "weir-sched-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~Scratch() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

TEST(WeirSched, ListsAlgorithmsWithTheirNeeds) {
  const Outcome outcome = run("list --collective all_reduce");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.text, HasSubstr("double_binary_tree"));
  EXPECT_THAT(outcome.text, testing::Not(HasSubstr("all_gather ")));
}

TEST(WeirSched, ShowsVerifiesAndSimulatesAVariantWithBlocksThatDifferInLength) {
  // `linear` is for blocks of different lengths only.
  EXPECT_THAT(run("list").text, HasSubstr("all_to_all_v    linear"));
  EXPECT_THAT(run("list --collective all_to_all").text, Not(HasSubstr("linear")));
  const Outcome list = run("list --collective all_to_all_v");
  EXPECT_EQ(list.exit_code, 0);
  EXPECT_THAT(list.text, HasSubstr("linear "));
  EXPECT_THAT(list.text, HasSubstr("pairwise "));
  EXPECT_THAT(list.text, testing::Not(HasSubstr("bruck")));
  const Outcome program = run("print -c all_to_all_v -a linear -n 3 -r 0");
  EXPECT_EQ(program.exit_code, 0);
  EXPECT_THAT(program.text, HasSubstr("send    in[2] -> rank 2"));
  const Outcome verified = run("verify -c all_to_all_v -n 1..9");
  EXPECT_EQ(verified.exit_code, 0) << verified.text;
  for (const char* name : {"direct", "pairwise", "linear"}) {
    EXPECT_THAT(verified.text, HasSubstr(std::string("all_to_all_v    ") + name));
  }
  const Outcome simulated = run("sim -c all_to_all_v --all -n 8 -b 64K");
  EXPECT_EQ(simulated.exit_code, 0) << simulated.text;
  EXPECT_THAT(simulated.text, HasSubstr("all_to_all_v, 8 ranks"));
  EXPECT_THAT(simulated.text, HasSubstr("linear "));
  const Outcome wrong = run("print -c all_to_all_v -a bruck -n 3");
  EXPECT_NE(wrong.exit_code, 0);
  EXPECT_THAT(wrong.text, HasSubstr("known are direct, window, pairwise, linear"));
  // With equal blocks it would only do what pairwise does.
  EXPECT_NE(run("print -c all_to_all -a linear -n 3").exit_code, 0);
}

TEST(WeirSched, PrintsOneRank) {
  const Outcome outcome = run("print --collective all_reduce --algorithm ring --ranks 8 --rank 3");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.text, HasSubstr("rank 3 of 8, all_reduce: 8 chunks, 1 scratch slot, 1 lane"));
  EXPECT_THAT(outcome.text, HasSubstr("recv    scratch[0] <- rank 2"));
}

TEST(WeirSched, VerifiesWhatItPrintsAsJsonAndRejectsItChanged) {
  const Scratch scratch;
  const std::string file = scratch.file("tree.json");
  ASSERT_EQ(run("print -c broadcast -a binomial -n 5 --root 2 --json > " + file).exit_code, 0);
  const Outcome right = run("verify --file " + file);
  EXPECT_EQ(right.exit_code, 0) << right.text;
  EXPECT_THAT(right.text, HasSubstr("right (broadcast on 5 ranks"));

  std::ifstream input(file);
  std::string text((std::istreambuf_iterator<char>(input)), std::istreambuf_iterator<char>());
  const size_t at = text.find("\"send\"");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 6, "\"recv\"");
  std::ofstream(file) << text;
  const Outcome broken = run("verify --file " + file);
  EXPECT_EQ(broken.exit_code, 2) << broken.text;
  EXPECT_THAT(broken.text, HasSubstr("src: unknown field"));

  std::ofstream(file) << R"({"format": "weir-programs", "version": 1, "collective": "broadcast",
    "rank_count": 2, "shape": {"chunk_count": 1}, "programs": [{"rank": 0, "ops": []},
    {"rank": 1, "ops": [{"op": "recv", "peer": 0, "dst": ["out", 0]}]}]})";
  const Outcome wrong = run("verify --file " + file);
  EXPECT_EQ(wrong.exit_code, 1) << wrong.text;
  EXPECT_THAT(wrong.text, HasSubstr("WRONG (deadlock): rank 1 op 0"));
}

TEST(WeirSched, ImportsProgramsOfMsccl) {
  const Scratch scratch;
  const std::string document = algo::msccl_pairs_all_reduce(4);
  std::ofstream(scratch.file("pairs.xml")) << document;
  const Outcome verified = run("verify --file " + scratch.file("pairs.xml"));
  EXPECT_EQ(verified.exit_code, 0) << verified.text;
  EXPECT_THAT(verified.text, HasSubstr("right (all_reduce on 4 ranks"));
  const Outcome imported =
      run("import " + scratch.file("pairs.xml") + " --output " + scratch.file("pairs.json"));
  EXPECT_EQ(imported.exit_code, 0) << imported.text;
  EXPECT_THAT(imported.text, HasSubstr("right: all_reduce on 4 ranks, 4 chunks"));
  // Our JSON is read, too, and is what was written.
  const Outcome again =
      run("import " + scratch.file("pairs.json") + " --output " + scratch.file("again.json"));
  EXPECT_EQ(again.exit_code, 0) << again.text;
  EXPECT_TRUE(content_of(scratch.file("again.json")) == content_of(scratch.file("pairs.json")));
  EXPECT_THAT(run("import " + scratch.file("pairs.json")).text, HasSubstr("\"weir-programs\""));

  std::string text = document;
  const size_t at = text.find("srcbuf=\"s\" srcoff=\"2\"");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 10, "srcbuf=\"i\"");
  std::ofstream(scratch.file("pairs.xml")) << text;
  for (const char* command : {"verify --file ", "import "}) {
    const Outcome wrong = run(command + scratch.file("pairs.xml"));
    EXPECT_EQ(wrong.exit_code, 1) << wrong.text;
    EXPECT_THAT(wrong.text, HasSubstr(" is of gpu 0 block 3 step 1, line "));
  }
  std::ofstream(scratch.file("pairs.xml")) << "<algo";
  EXPECT_EQ(run("import " + scratch.file("pairs.xml")).exit_code, 2);
  EXPECT_EQ(run("import " + scratch.file("none.xml")).exit_code, 2);
}

TEST(WeirSched, VerifiesAllAlgorithms) {
  const Outcome outcome = run("verify --all --ranks 1..9,16 --all-roots");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("hierarchical"));
  EXPECT_THAT(outcome.text, testing::Not(HasSubstr("WRONG")));
}

TEST(WeirSched, SimulatesWithTheDefaultNetworkOrWithMeasuredCosts) {
  const auto total_ns = [](const std::string& more) {
    const Outcome outcome = run("sim -c all_gather -a ring -n 2 --nodes 2 -b 1M --json " + more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
    const std::string key = "\"total_ns\": ";
    const size_t at = outcome.text.find(key);
    return at == std::string::npos ? -1 : std::stod(outcome.text.substr(at + key.size()));
  };
  const Scratch scratch;
  const std::string file = scratch.file("costs.json");
  cost::Table table = cost::built_in_table();
  table.times.link(cost::Link::kTcp).wire_ns_per_byte = 8;  // 1 Gbit/s
  ASSERT_TRUE(cost::write_table(file, table).ok());
  const double slow = total_ns("--costs " + file);
  // Half of the bytes come from the other node.
  EXPECT_NEAR(slow, (1 << 19) * 8.0, (1 << 19) * 0.8);
  table.times.link(cost::Link::kTcp).wire_ns_per_byte = 80;
  ASSERT_TRUE(cost::write_table(file, table).ok());
  EXPECT_NEAR(total_ns("--costs " + file), 10 * slow, slow);
  EXPECT_LT(total_ns(""), slow / 10);
}

const std::string kMachines = WEIR_TEST_FIXTURES "/topologies/";

TEST(WeirSched, SimulatesWhatThePlannerChoosesForAMachine) {
  const Outcome outcome = run("sim -c all_reduce --chosen -b 256M --topology " + kMachines +
                              "made-8-fully-linked.nccl.xml");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("on 8 ranks: forest, least predicted time"));
  EXPECT_THAT(outcome.text, HasSubstr("the time is 1.01 times as long"));
  EXPECT_NE(run("sim -c all_reduce --chosen -b 1M").exit_code, 0);
  const Outcome both = run("sim -c all_reduce --chosen --all -b 1M --topology " + kMachines +
                           "made-8-fully-linked.nccl.xml");
  EXPECT_THAT(both.text, HasSubstr("either --algorithm, --all or --chosen is needed"));
}

TEST(WeirSched, OutputThatIsLostIsAnError) {
  for (const char* arguments : {"list", "verify -c barrier -n 2", "sim -c barrier --all -n 4",
                                "print -c all_reduce -a ring -n 16", "--help"}) {
    const Outcome full = run(std::string(arguments) + " 2>&1 >/dev/full #");
    EXPECT_EQ(full.exit_code, 1) << arguments << full.text;
    EXPECT_THAT(full.text, HasSubstr("weir-sched: cannot write standard output"));
  }
}

TEST(WeirSched, AFifoIsNoFileOfPrograms) {
  const Scratch scratch;
  ASSERT_EQ(mkfifo(scratch.file("fifo").c_str(), 0600), 0);
  for (const char* command : {"verify --file ", "import "}) {
    const Outcome refused = run(command + scratch.file("fifo"));
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.text, HasSubstr("fifo' is not a regular file"));
  }
}

TEST(WeirSched, AFileIsVerifiedAsThoseThatReadItDo) {
  const Scratch scratch;
  const std::string file = scratch.file("programs.json");
  // Ranks may write where a peer still reads, once Input and Output are one.
  ASSERT_EQ(run("print -c all_to_all -a window -n 2 --json > " + file).exit_code, 0);
  const Outcome window = run("verify --file " + file);
  EXPECT_EQ(window.exit_code, 1) << window.text;
  EXPECT_THAT(window.text,
              HasSubstr("but no communicator takes it: the programs are wrong in place ("));
  EXPECT_EQ(run("import " + file).exit_code, 1);
  // In place the own block is where it belongs; apart it has to be copied.
  std::ofstream(file) << R"({"format": "weir-programs", "version": 1, "collective": "all_gather",
    "rank_count": 2, "access": {"in_place": true}, "shape": {"chunk_count": 2}, "programs": [
    {"rank": 0, "ops": [{"op": "send", "peer": 1, "src": ["in", 0]},
                        {"op": "recv", "peer": 1, "dst": ["out", 1]}]},
    {"rank": 1, "ops": [{"op": "send", "peer": 0, "src": ["in", 1]},
                        {"op": "recv", "peer": 0, "dst": ["out", 0]}]}]})";
  const Outcome apart = run("verify --file " + file);
  EXPECT_EQ(apart.exit_code, 1) << apart.text;
  EXPECT_THAT(apart.text,
              HasSubstr("but no communicator takes it: the programs are wrong (value): "));
  EXPECT_EQ(run("import " + file).exit_code, 1);
}

TEST(WeirSched, WhatHostsDoNotShareIsNotSimulatedBetweenThem) {
  const std::string two = " -b 64K --hosts 2 -t " + kMachines + "dgx2.hwloc.xml";
  const Outcome all = run("sim -c all_to_all --all" + two);
  EXPECT_EQ(all.exit_code, 0) << all.text;
  EXPECT_THAT(all.text,
              testing::ContainsRegex("direct +left out: needs memory that all ranks map"));
  EXPECT_THAT(all.text,
              testing::ContainsRegex("window +left out: needs memory that all ranks map"));
  EXPECT_THAT(all.text, testing::ContainsRegex("pairwise +[0-9]"));
  const Outcome one = run("sim -c all_to_all -a direct" + two);
  EXPECT_EQ(one.exit_code, 2) << one.text;
  EXPECT_THAT(one.text, HasSubstr("direct: needs memory that all ranks map"));
}

TEST(WeirSched, OptionsAreObeyedOrRefused) {
  const std::string machine = "search -t " + kMachines + "rccl-8p-rome-n4.nccl.xml ";
  for (const auto& [arguments, text] : {
           std::pair<std::string, const char*>{"regret --events-max 1", "--events-max"},
           {machine + "--steps 1", "within 1 steps"},
           {machine + "--hosts 0", "--hosts: Value 0 not in range"},
           {"search --kept 1234 -n 2", "--ranks excludes --kept"},
           {"verify -c broadcast -a chain -n 3 --root 77", "--root 77 is out of range"},
           {"verify --file F -n 3", "--ranks excludes --file"},
           {"verify --file F --root 1", "--root excludes --file"},
       }) {
    const Outcome refused = run(arguments);
    EXPECT_EQ(refused.exit_code, 2) << arguments << refused.text;
    EXPECT_THAT(refused.text, HasSubstr(text)) << arguments;
  }
  // Roots that only some of the rank counts have.
  const Outcome some = run("verify -c broadcast -a chain -n 2..4 --root 2");
  EXPECT_EQ(some.exit_code, 0) << some.text;
  EXPECT_THAT(some.text, HasSubstr("right: 4 problems"));
}

TEST(WeirSched, WhatIsNotVerifiedIsSaidWithTheReason) {
  const Outcome all = run("verify --all -n 8");
  EXPECT_EQ(all.exit_code, 0) << all.text;
  for (const char* name : {"forest", "rings", "by_cache", "by_numa"}) {
    EXPECT_THAT(all.text, testing::ContainsRegex(std::string(name) + " +left out: .* it needs "));
  }
  EXPECT_THAT(run("verify -c broadcast -n 8").text, HasSubstr("left out: broadcast/forest"));
  const Outcome forest = run("verify -a forest -n 8");
  EXPECT_EQ(forest.exit_code, 2) << forest.text;
  EXPECT_THAT(forest.text, HasSubstr("forest on 8 ranks: it needs trees over the links"));
  EXPECT_THAT(run("sim -c all_reduce -a forest -n 8").text, HasSubstr("it needs trees"));
  EXPECT_THAT(run("print -c all_reduce -a rings -n 8").text, HasSubstr("it needs rings"));
}

// Short names of files in arguments.
std::string with_files(std::string arguments) {
  for (const auto& [name, file] : {std::pair{"DGX2", "dgx2.hwloc.xml"}, {"README", "README.md"}}) {
    const size_t at = arguments.find(name);
    if (at != std::string::npos) arguments.replace(at, std::strlen(name), kMachines + file);
  }
  return arguments;
}

TEST(WeirSched, SimulatesTheLinksOfAMachine) {
  const Outcome one = run("sim -c all_gather -a ring -b 64M -t " + kMachines + "dgx2.hwloc.xml");
  EXPECT_EQ(one.exit_code, 0) << one.text;
  EXPECT_THAT(one.text, HasSubstr("all_gather ring, 16 ranks on 1 nodes"));
  EXPECT_THAT(one.text, HasSubstr("cut bound        419.43 us by the links' bandwidth alone"));
  EXPECT_THAT(one.text, HasSubstr("%  GPU0 -> NVS0: 62.91 MB over 150 GB/s"));

  const std::string cards = "--topology " + kMachines + "azure-ndv4-topo.nccl.xml --hosts 4 ";
  const Outcome all = run("sim -c all_reduce --all -b 8M " + cards);
  EXPECT_EQ(all.exit_code, 0) << all.text;
  EXPECT_THAT(all.text, HasSubstr("all_reduce, 32 ranks on 4 nodes"));
  EXPECT_THAT(all.text, HasSubstr("times bound"));
  EXPECT_THAT(all.text, HasSubstr("hierarchical"));

  // The options of the two-level network go on working.
  const Outcome json =
      run("sim -c broadcast -a chain -n 8 --root 3 --slice 1M --slow 2:2 --json " + cards);
  EXPECT_EQ(json.exit_code, 0) << json.text;
  EXPECT_THAT(json.text, HasSubstr("\"from\": \"M0.GPU0\""));
  EXPECT_THAT(json.text, HasSubstr("\"cut_bound_ratio\""));
  const Outcome dead = run("sim -c gather -a linear --dead 5@0 " + cards);
  EXPECT_EQ(dead.exit_code, 0) << dead.text;
  EXPECT_THAT(dead.text, HasSubstr("rank 5 is dead"));
  EXPECT_THAT(dead.text, testing::Not(HasSubstr("cut bound")));
}

TEST(WeirSched, DrawsTheMachineAndTheLanesOfARank) {
  const Scratch scratch;
  const Outcome outcome =
      run("sim -c all_reduce -a ring -t " + kMachines + "dgx2.hwloc.xml --svg-links " +
          scratch.file("links.svg") + " --svg-lanes " + scratch.file("lanes.svg") +
          " --lanes-of 15 --svg " + scratch.file("ranks.svg"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.text;
  EXPECT_THAT(content_of(scratch.file("links.svg")), HasSubstr("link busy, of the time"));
  EXPECT_THAT(content_of(scratch.file("lanes.svg")), HasSubstr("rank 15 of all_reduce ring"));
  EXPECT_THAT(content_of(scratch.file("lanes.svg")), HasSubstr("from NVS6"));
  EXPECT_THAT(content_of(scratch.file("ranks.svg")), HasSubstr("rank 15<"));

  const Outcome two_level = run("sim -c all_reduce -a ring -n 100 --lanes-of 99 --svg-lanes " +
                                scratch.file("ports.svg"));
  EXPECT_EQ(two_level.exit_code, 0) << two_level.text;
  EXPECT_THAT(content_of(scratch.file("ports.svg")), HasSubstr("port out"));
}

TEST(WeirSched, SimulatesRanksOnTheCoresOfAMachineWithoutGpus) {
  const Scratch scratch;
  const std::string file = scratch.file("cores.xml");
  std::ofstream(file) << R"(<?xml version="1.0"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0xf" complete_cpuset="0xf" nodeset="0x3">
    <object type="Package" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1">
      <object type="NUMANode" os_index="0" cpuset="0x3" complete_cpuset="0x3" nodeset="0x1"/>
      <object type="Core" os_index="0" cpuset="0x1" complete_cpuset="0x1"/>
      <object type="Core" os_index="1" cpuset="0x2" complete_cpuset="0x2"/>
    </object>
    <object type="Package" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2">
      <object type="NUMANode" os_index="1" cpuset="0xc" complete_cpuset="0xc" nodeset="0x2"/>
      <object type="Core" os_index="2" cpuset="0x4" complete_cpuset="0x4"/>
      <object type="Core" os_index="3" cpuset="0x8" complete_cpuset="0x8"/>
    </object>
  </object>
</topology>
)";
  const Outcome cores = run("sim -c all_reduce -a ring -t " + file + " --hosts 2");
  EXPECT_EQ(cores.exit_code, 0) << cores.text;
  EXPECT_THAT(cores.text, HasSubstr("8 ranks on 2 nodes"));
  // Two ranks of one host are on different packages.
  const Outcome apart = run("sim -c all_gather -a ring -n 2 -b 64M --json -t " + file);
  EXPECT_EQ(apart.exit_code, 0) << apart.text;
  EXPECT_THAT(apart.text, HasSubstr("\"to\": \"NUMA1\""));
}

TEST(WeirSched, SearchesTreesForAMachineAndWritesTheirPrograms) {
  const Scratch scratch;
  for (const char* collective :
       {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"}) {
    const std::string file = scratch.file("programs.json");
    const Outcome found = run(std::string("search --root 3 -c ")
                                  .append(collective)
                                  .append(" -t ")
                                  .append(kMachines)
                                  .append("rccl-8p-rome-n4.nccl.xml -o ")
                                  .append(file));
    EXPECT_EQ(found.exit_code, 0) << found.text;
    EXPECT_THAT(found.text, HasSubstr("8 ranks on 1 host,"));
    EXPECT_THAT(found.text, HasSubstr("of the bound"));
    const Outcome right = run("verify --file " + file);
    EXPECT_EQ(right.exit_code, 0) << right.text;
    EXPECT_THAT(right.text, HasSubstr(std::string("right (") + collective + " on 8 ranks"));
  }
  const Outcome cluster =
      run("search --graph --hosts 128 -t " + kMachines + "azure-ncv4-topo.nccl.xml");
  EXPECT_EQ(cluster.exit_code, 0) << cluster.text;
  EXPECT_THAT(cluster.text, HasSubstr("512 ranks on 128 hosts"));
  EXPECT_THAT(cluster.text, HasSubstr("1.000 of the bound"));
  EXPECT_THAT(cluster.text, HasSubstr("network"));
}

// A larger search is kept where communicators look for it, and a smaller one does not replace it.
TEST(WeirSched, KeepsTreesAndSearchesThoseOfAKeptGraphAgain) {
  const Scratch scratch;
  const std::string cache = scratch.file("cache");
  const std::string first = "search -t " + kMachines + "rccl-8p-rome-n4.nccl.xml --keep --cache ";
  const Outcome found = run(first + cache);
  EXPECT_EQ(found.exit_code, 0) << found.text;
  const size_t at = found.text.find("graph ");
  ASSERT_NE(at, std::string::npos) << found.text;
  const std::string hash = found.text.substr(at + 6, 16);
  EXPECT_THAT(found.text, HasSubstr("kept as       " + cache + "/search-v2-" + hash + ".trees"));
  EXPECT_THAT(run(first + cache).text, HasSubstr("as much: they stay"));
  const std::string again = "search --kept " + hash + " --keep --cache " + cache;
  const Outcome larger = run(again + " --trees 24 --steps 5000000");
  EXPECT_EQ(larger.exit_code, 0) << larger.text;
  EXPECT_THAT(larger.text, HasSubstr("graph " + hash));
  EXPECT_THAT(larger.text, AnyOf(HasSubstr("kept as"), HasSubstr("they stay")));
  EXPECT_THAT(run(again).text, HasSubstr("they stay")) << "what is better is not replaced";
  const Outcome missing = run("search --kept 12ab --cache " + cache);
  EXPECT_NE(missing.exit_code, 0);
  EXPECT_THAT(missing.text, HasSubstr("search-v2-00000000000012ab.trees' does not exist"));
  EXPECT_THAT(run("search --kept 12xy --cache " + cache).text, HasSubstr("hexadecimal"));
}

TEST(WeirSched, APictureThatCannotBeWrittenIsAFailureOfTheOutput) {
  const Outcome full = run("sim -c all_reduce -a ring -n 2 --svg /dev/full");
  EXPECT_EQ(full.exit_code, 1) << full.text;
  EXPECT_THAT(full.text, HasSubstr("cannot write /dev/full: No space left"));
  const Outcome nowhere = run("sim -c all_reduce -a ring -t " + kMachines +
                              "dgx2.hwloc.xml --svg-links /nonexistent/a.svg");
  EXPECT_EQ(nowhere.exit_code, 1) << nowhere.text;
  EXPECT_THAT(nowhere.text, HasSubstr("cannot write"));
}

TEST(WeirSched, RefusesBadArgumentsByName) {
  struct Case {
    const char* arguments;
    const char* expected;
  };
  const Case cases[] = {
      {"", "subcommand"},
      {"print -c all_reduce -a ring", "--ranks"},
      {"print -c all_reduce -a ring -n 0", "--ranks must be at least 1"},
      {"print -c all_reduce -a rung -n 4", "unknown algorithm \"rung\" for all_reduce; known are"},
      {"print -c allreduce -a ring -n 4", "unknown collective \"allreduce\""},
      {"print -c all_reduce -a ring -n 4 -r 4", "--rank 4 is out of range"},
      {"print -c broadcast -a chain -n 4 --root 9", "--root 9 is out of range"},
      {"print -c all_reduce -a hierarchical -n 3 --nodes 0,1", "--nodes has 2 entries for 3 ranks"},
      {"print -c all_reduce -a hierarchical -n 2 --nodes 1,0", "first appearance"},
      {"verify", "say what to verify"},
      {"verify --all --ranks 4..2", "must rise"},
      {"verify --all --ranks x", "neither a number nor a range"},
      {"verify --all --ranks 5000", "within 1..4096"},
      {"verify --all --credit 0", "--credit"},
      {"verify --file /nonexistent.json", "No such file"},
      {"verify --algorithm nothing", "no algorithm is called"},
      {"list -c nothing", "unknown collective"},
      {"sim -c all_reduce -a ring -n 2 --costs /nonexistent.json", "cannot open"},
      {"sim -c all_reduce -a ring -n 2 --costs /a.json --net /b.toml", "excludes"},
      {"sim -c all_reduce -a ring", "--ranks must be at least 1"},
      {"search", "give --topology or --kept"},
      {"search -c gather -t a.xml", "no trees for gather"},
      {"search -t /nonexistent.xml", "/nonexistent.xml"},
      {"sim -c all_reduce -a ring --topology /nonexistent.xml", "/nonexistent.xml"},
      {"sim -c all_reduce -a ring --topology a.xml --nodes 2", "excludes"},
      {"sim -c all_reduce -a ring -n 2 --hosts 2", "--topology"},
      {"sim -c broadcast -a chain -n 4 --root 4", "--root 4 is out of range"},
      {"sim -c all_reduce -a ring -n 17 -t DGX2", "16 GPUs; give more --hosts"},
      {"sim -c all_reduce -a ring -n 2 --hosts 3 -t DGX2", "--hosts 3 must lie within 1..2, the"},
      {"search -t DGX2 --ranks 0", "--ranks"},
      {"search -t DGX2 --hosts 2000", "give less --hosts or --ranks"},
      {"regret --machine 2 -n 1 -b 8 -c barrier", "at least two ranks"},
      {"sim -c all_reduce -a ring --hosts 0 -t DGX2", "--hosts must be at least 1"},
      {"sim -c all_reduce -a ring -n 2 --net /dev/zero", "'/dev/zero' is not a regular file"},
      {"regret --machine 2 -n 2 -b 8 -c barrier --publish /dev/zero",
       "--publish: '/dev/zero' is not a regular file"},
      {"sim -c all_reduce --all -n 4 --nodes 2 --nics 1", "figures of 1 NICs are given"},
      {"sim -c all_reduce --all -n 4 --nodes 2 --nics 1,nan", "nan ns per byte of a NIC"},
      {"sim -c all_reduce --all -n 4 --nodes 2 --nics=1,-1", "-1 ns per byte of a NIC"},
      {"sim -c all_reduce -a ring --hosts 1000000 -t DGX2", "allowed are 1 to 4096"},
      {"sim -c broadcast -a chain --root 16 -t DGX2", "--root 16 is out of range"},
      {"sim -c all_reduce -a ring -t README", "README.md"},
      {"sim -c all_reduce -a ring -n 2 --svg-links /tmp/a.svg", "--topology"},
      {"sim -c all_reduce -a ring -n 2 --lanes-of 1", "--svg-lanes"},
      {"sim -c all_reduce -a ring -n 2 --lanes-of 2 --svg-lanes /tmp/a.svg", "--lanes-of 2 is out"},
      {"sim -c all_reduce --all -n 2 --svg-lanes /tmp/a.svg", "--all goes with neither"},
  };
  for (Case test : cases) {
    const std::string arguments = with_files(test.arguments);
    test.arguments = arguments.c_str();
    const Outcome outcome = run(test.arguments);
    EXPECT_EQ(outcome.exit_code, 2) << test.arguments << ": " << outcome.text;
    EXPECT_THAT(outcome.text, HasSubstr(test.expected)) << test.arguments;
  }
}

}  // namespace
}  // namespace weir
