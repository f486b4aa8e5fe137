// SPDX-License-Identifier: Apache-2.0
// Communicators over hosts that differ by their recorded machines (WEIR_TOPOLOGY_FILE): the plan
// uses what it has, results are right, and a deterministic communicator has the same bits. The
// figures of their networks are those of the files (WEIR_PROBE=0), or measured, as by default: then
// all networks are that of this machine, and how much they seem to differ is chance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>

#include "support/collective_checks.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// A file of tests/fixtures/topologies, or one that a test has written.
std::string machine(const std::string& name) {
  return name[0] == '/' ? name : WEIR_FIXTURES "/topologies/" + name;
}

enum class Networks { kNominal, kMeasured };

class Machines : public testing::Test {
 protected:
  explicit Machines(Networks networks = Networks::kNominal) : networks_(networks) {}
  void SetUp() override {
    cache_ = testing::TempDir() + "weir-links-XXXXXX";
    ASSERT_NE(mkdtemp(cache_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(cache_); }

  // Ranks `each` on each host, one host for each file. Returns what rank 0 prints.
  std::string run(const std::vector<std::string>& files, int each, const Body& body,
                  const Environment& more = {}, weir_comm_config_t config = WEIR_COMM_CONFIG_INIT) {
    testing::internal::CaptureStderr();
    const int n = static_cast<int>(files.size()) * each;
    const std::vector<int> statuses = run_processes_each(
        n, body,
        [&](int rank) {
          const auto host = static_cast<size_t>(rank / each);
          Environment own = {{"WEIR_HOST_ID", "host " + std::to_string(host)},
                             {"WEIR_TOPOLOGY_FILE", machine(files[host])},
                             {"WEIR_TOPOLOGY_MERGE", "0"},
                             {"WEIR_CACHE_DIR", cache_},
                             {"WEIR_EXPLAIN", "1"}};
          if (networks_ == Networks::kNominal) own.emplace_back("WEIR_PROBE", "0");
          own.insert(own.end(), more.begin(), more.end());
          return own;
        },
        config);
    std::string text = testing::internal::GetCapturedStderr();
    for (int rank = 0; rank < n; ++rank) {
      EXPECT_EQ(statuses[static_cast<size_t>(rank)], 0) << "rank " << rank << "\n" << text;
    }
    return text;
  }

  // A machine with one network card of so many Mbit/s.
  std::string with_card(int mbps) {
    std::string path = cache_ + "/card-" + std::to_string(mbps) + ".xml";
    std::ofstream(path) << "<system version=\"1\"><cpu numaid=\"0\" affinity=\"0000000f\" "
                           "arch=\"x86_64\" vendor=\"AuthenticAMD\" familyid=\"25\" modelid=\"1\">"
                           "<pci busid=\"0000:10:00.0\" class=\"0x020000\" link_speed=\"32 GT/s\" "
                           "link_width=\"16\"><nic><net name=\"eth0\" port=\"1\" speed=\""
                        << mbps << "\"/></nic></pci></cpu></system>";
    return path;
  }

  const Networks networks_;
  std::string cache_;
};

class MeasuredMachines : public Machines {
 protected:
  MeasuredMachines() : Machines(Networks::kMeasured) {}
};

class AnyMachines : public Machines, public testing::WithParamInterface<Networks> {
 protected:
  AnyMachines() : Machines(GetParam()) {}
};
INSTANTIATE_TEST_SUITE_P(, AnyMachines, testing::Values(Networks::kNominal, Networks::kMeasured),
                         [](const auto& one) -> std::string {
                           return one.param == Networks::kNominal ? "Nominal" : "Measured";
                         });

void reduce(weir_comm_t comm, size_t count) {
  const Bench b(comm);
  check_all_reduce(b, count, How::kOutOfPlace);
  check_all_gather(b, count / 4, How::kOutOfPlace);
}

// What was chosen: of "\nall_reduce of 4 MiB float32 on 6 ranks: ring, least predicted time" the
// word "ring".
std::string chosen(const std::string& text, const std::string& begin) {
  const size_t at = text.find("\n" + begin);
  if (at == std::string::npos) return "";
  const size_t name = text.find(": ", at) + 2;
  return text.substr(name, text.find(',', name) - name);
}

// Whether a decision shows a predicted time of the algorithm.
bool is_candidate(const std::string& text, const std::string& name) {
  return std::regex_search(text, std::regex("[ >] " + name + " +[0-9.]+ (ns|us|ms|s)\\b"));
}

// The predicted times of a decision that begins so, in seconds, by algorithm.
std::map<std::string, double> predicted(const std::string& text, const std::string& begin) {
  std::map<std::string, double> times;
  const size_t at = text.find("\n" + begin);
  if (at == std::string::npos) return times;
  const std::string decision = text.substr(at + 1, text.find("\n\n", at) - at);
  const std::regex row("\n  [ >] ([a-z_]+) +([0-9.]+) (ns|us|ms|s)\\b");
  const std::map<std::string, double> units = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  for (std::sregex_iterator i(decision.begin(), decision.end(), row), end; i != end; ++i) {
    times[(*i)[1]] = std::stod((*i)[2]) * units.at((*i)[3]);
  }
  return times;
}

// Different machines, different plans, each with its reason.
TEST_F(Machines, DecideWhatIsChosen) {
  const std::string many = "made-nvswitch-8-cards.nccl.xml";  // 8 cards of 200 Gbit/s
  const std::string one = "made-nvswitch-1-card.nccl.xml";    // 1 such card
  const std::string hundred = "azure-ncv4-topo.nccl.xml";     // 1 card of 100 Gbit/s
  const std::string unknown = "azure-ndv4-topo.nccl.xml";     // 8 cards, the file says no speed
  const std::string gigabit = with_card(1000);
  struct Row {
    std::vector<std::string> hosts;
    const char* links;  // the reason in the line about links
    bool offered;
    const char* all_reduce;
  };
  const std::vector<Row> rows = {
      // What hosts are to each other, the way by hosts uses as well as any tree.
      {{many, many, many}, "3 hosts that are alike: trees are not faster", false, "hierarchical"},
      {{gigabit, gigabit, gigabit}, "3 hosts that are alike", false, "hierarchical"},
      // The slow host sends and receives everything once, which trees do and rings do not; but even
      // its card is faster than processors copy.
      {{many, many, one}, "the networks of hosts differ by a factor of 8;", true, "hierarchical"},
      {{many, hundred, many}, "networks of hosts differ by a factor of 16;", true, "hierarchical"},
      {{one, hundred, one}, "the networks of hosts differ by a factor of 2;", true, "hierarchical"},
      // This one is not.
      {{many, gigabit, many}, "the networks of hosts differ by a factor of", true, "forest"},
      {{hundred, hundred, gigabit},
       "the networks of hosts differ by a factor of 100;",
       true,
       "forest"},
      // Of a network about which nothing is said nothing is assumed.
      {{one, unknown, one}, "2 kinds, nominal networks", false, "hierarchical"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.hosts[0] + ", " + row.hosts[1] + ", " + row.hosts[2]);
    const std::string text =
        run(row.hosts, 2, [](int, weir_comm_t comm) { reduce(comm, 1 << 20); });
    EXPECT_THAT(text, HasSubstr(row.links));
    EXPECT_EQ(text.find("trees are offered") != std::string::npos, row.offered);
    EXPECT_EQ(is_candidate(text, "forest"), row.offered);
    EXPECT_EQ(chosen(text, "all_reduce of 4 MiB"), row.all_reduce);
    if (HasFailure()) break;  // which ranks of the next row would inherit
  }
}

// What is chosen follows from what was measured, whatever that is.
TEST_F(MeasuredMachines, DecideByTheirReasons) {
  const std::string many = "made-nvswitch-8-cards.nccl.xml";
  const std::string gigabit = with_card(1000);
  const std::vector<std::vector<std::string>> rows = {{many, many, many}, {many, gigabit, many}};
  for (const std::vector<std::string>& hosts : rows) {
    SCOPED_TRACE(hosts[0] + ", " + hosts[1] + ", " + hosts[2]);
    const std::string text = run(hosts, 2, [](int, weir_comm_t comm) { reduce(comm, 1 << 20); });
    EXPECT_THAT(text, ContainsRegex("links of '.*(3 hosts that are alike: trees are not faster|3 "
                                    "hosts of [12] kinds, measured networks, graph [0-9a-f]+: "
                                    "trees are (not )?offered: .+)\n"));
    EXPECT_EQ(is_candidate(text, "forest"), text.find("trees are offered") != std::string::npos);
    const std::map<std::string, double> times = predicted(text, "all_reduce of 4 MiB");
    const auto choice = times.find(chosen(text, "all_reduce of 4 MiB"));
    ASSERT_NE(choice, times.end()) << text;
    for (const auto& [name, time] : times) EXPECT_LE(choice->second, time) << name << "\n" << text;
    if (HasFailure()) break;
  }
}

// The same hosts, and all collectives: with what is chosen, and along the trees.
TEST_P(AnyMachines, ThatDifferHoldEveryCollective) {
  const std::vector<std::string> hosts = {"made-nvswitch-8-cards.nccl.xml",
                                          "made-nvswitch-1-card.nccl.xml",
                                          "azure-ncv4-topo.nccl.xml"};
  const std::string trees =
      "all_reduce=forest,all_gather=forest,reduce_scatter=forest,broadcast=forest,reduce=forest";
  std::vector<Environment> ways = {
      {},
      {{"WEIR_TRANSPORT", "tcp"}},
      {{"WEIR_FAILOVER", "tcp,tcp"}, {"WEIR_TRANSPORT", "tcp"}},
      {{"WEIR_HOOKS", "check"}},  // with hooks nothing is measured
  };
  // Where networks are measured, there may be no trees.
  if (networks_ == Networks::kNominal) {
    for (Environment& way : ways) way.emplace_back("WEIR_ALGORITHM", trees);
    ways.push_back({});
  }
  for (const Environment& way : ways) {
    SCOPED_TRACE(testing::PrintToString(way));
    const std::string text = run(
        hosts, 2,
        [](int, weir_comm_t comm) {
          for (const size_t count : {size_t{1}, size_t{70'001}}) {
            check_every_collective(comm, count);
          }
        },
        way);
    if (networks_ == Networks::kNominal) {
      EXPECT_THAT(text, HasSubstr("trees are offered"));
    } else {
      EXPECT_THAT(text, ContainsRegex("links of '.*trees are (not )?offered"));
    }
  }
}

// Children are made of their parents; hosts with different numbers of ranks.
TEST_P(AnyMachines, ThatDifferServeChildren) {
  const std::string text =
      run({"made-nvswitch-8-cards.nccl.xml", "azure-ncv4-topo.nccl.xml"}, 3,
          [](int rank, weir_comm_t comm) {
            check_every_collective(comm, 5000);
            weir_comm_t part = nullptr;
            ASSERT_EQ(weir_comm_split(comm, rank == 1 ? 1 : 0, rank, nullptr, &part), WEIR_OK)
                << weir_last_error(comm);
            check_every_collective(part, 5000);
            ASSERT_EQ(weir_comm_destroy(part), WEIR_OK);
          });
  EXPECT_THAT(text, HasSubstr("links of '"));
}

// 16-bit sums depend on their order: the bits of deterministic communicators do not depend on the
// machines.
TEST_P(AnyMachines, DoNotChangeTheBitsOfDeterministicCommunicators) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.flags = WEIR_COMM_DETERMINISTIC;
  const std::string folder = cache_;
  const auto sums = [&](const std::vector<std::string>& hosts) {
    const std::string text = run(
        hosts, 2,
        [&](int rank, weir_comm_t comm) {
          constexpr size_t kCount = 20'000;
          std::vector<float> data(kCount);
          for (size_t i = 0; i < kCount; ++i) {
            data[i] = 1.0f / static_cast<float>(1 + i % 97 + static_cast<size_t>(rank) * 31);
          }
          std::vector<float> part(kCount / 6 * 6);
          ASSERT_EQ(weir_reduce_scatter(comm, data.data(), part.data(), kCount / 6, WEIR_FLOAT32,
                                        WEIR_SUM, nullptr),
                    WEIR_OK);
          ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), kCount, WEIR_FLOAT32, WEIR_SUM,
                                    nullptr),
                    WEIR_OK);
          std::ofstream file(folder + "/bits-" + std::to_string(rank), std::ios::binary);
          file.write(reinterpret_cast<const char*>(data.data()), kCount * sizeof(float));
          file.write(reinterpret_cast<const char*>(part.data()), kCount / 6 * sizeof(float));
        },
        {}, config);
    EXPECT_THAT(text, HasSubstr("links of '"));
    std::string all;
    for (int rank = 0; rank < 6; ++rank) {
      std::ifstream file(folder + "/bits-" + std::to_string(rank), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  };
  const std::string many = "made-nvswitch-8-cards.nccl.xml", slow = "azure-ncv4-topo.nccl.xml";
  const std::string alike = sums({many, many, many});
  EXPECT_EQ(alike.size(), 6 * (20'000 + 3333) * sizeof(float));
  EXPECT_TRUE(alike == sums({many, slow, many}));
}

// The trees of one run are those of the next one; a file that is damaged is not used.
TEST_F(Machines, KeepTheirTrees) {
  const std::vector<std::string> hosts = {"made-nvswitch-8-cards.nccl.xml",
                                          "made-nvswitch-1-card.nccl.xml"};
  const auto start = [&] {
    return run(hosts, 2, [](int, weir_comm_t comm) { reduce(comm, 5000); });
  };
  const auto kept = [&] {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(cache_)) {
      if (entry.path().extension() == ".trees") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  };
  EXPECT_THAT(start(), Not(HasSubstr("is ignored")));
  const auto first = kept();
  ASSERT_FALSE(first.empty());
  std::vector<std::filesystem::file_time_type> written;
  for (const auto& file : first) written.push_back(std::filesystem::last_write_time(file));
  EXPECT_THAT(start(), Not(HasSubstr("is ignored")));
  EXPECT_EQ(kept(), first);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(std::filesystem::last_write_time(first[i]), written[i]) << "not searched again";
    std::ofstream(first[i], std::ios::binary) << "no trees at all";
  }
  const std::string text = start();
  EXPECT_THAT(text, HasSubstr("a kept search is ignored: '" + cache_));
  EXPECT_THAT(text, HasSubstr("trees are offered"));
  EXPECT_THAT(start(), Not(HasSubstr("is ignored"))) << "it was searched again, and kept";
}

// Of two hosts only their common network is measured, so it is alike for both, and links within
// these hosts need no trees: none are searched or kept.
TEST_F(MeasuredMachines, NeedNoTreesBetweenTwoHosts) {
  const std::string text = run({"made-nvswitch-8-cards.nccl.xml", "made-nvswitch-1-card.nccl.xml"},
                               2, [](int, weir_comm_t comm) { reduce(comm, 5000); });
  EXPECT_THAT(text, HasSubstr("2 hosts of 2 kinds, measured networks"));
  EXPECT_THAT(text, HasSubstr("trees are not offered"));
  EXPECT_FALSE(is_candidate(text, "forest")) << text;
  for (const auto& entry : std::filesystem::directory_iterator(cache_)) {
    EXPECT_NE(entry.path().extension(), ".trees") << entry.path();
  }
}

TEST_P(AnyMachines, ThatCannotBeReadMeanNoGraph) {
  const std::string text = run({"made-nvswitch-8-cards.nccl.xml", "no-such-file.xml"}, 2,
                               [](int, weir_comm_t comm) { check_every_collective(comm, 1000); });
  EXPECT_THAT(text, HasSubstr("not known (rank 2: "));
  EXPECT_FALSE(is_candidate(text, "forest")) << text;
}

}  // namespace
}  // namespace weir::test
