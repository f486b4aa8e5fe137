// SPDX-License-Identifier: Apache-2.0
// The transport tcp over hosts with two links: both carry, one may fail and come back.
#include <gtest/gtest.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "netns/lab.h"
#include "support/collective_checks.h"

namespace weir::test {
namespace {

class Rails : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = why_no_lab();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
  static LabOptions two_links() {
    LabOptions options;
    options.hosts = {{0}, {1}};
    options.interfaces = 2;
    options.environment = {{"WEIR_TRANSPORT", "tcp"}};
    return options;
  }
};

// What the interface of the caller's host has sent so far.
uint64_t sent_bytes(const std::string& device) {
  std::ifstream file("/proc/net/dev");
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(device + ":");
    if (at == std::string::npos) continue;
    std::istringstream numbers(line.substr(at + device.size() + 1));
    uint64_t value = 0;
    for (int i = 0; i < 9; ++i) numbers >> value;
    return value;
  }
  ADD_FAILURE() << "there is no " << device;
  return 0;
}

int32_t value_of(size_t index, int rank) { return static_cast<int32_t>(index % 1000) + rank; }

// All-reduces so many numbers between two ranks and compares every one of them.
void reduce_exactly(weir_comm_t comm, int rank, size_t count) {
  std::vector<int32_t> data(count);
  for (size_t i = 0; i < count; ++i) data[i] = value_of(i, rank);
  ASSERT_EQ(weir_all_reduce(comm, data.data(), data.data(), count, WEIR_INT32, WEIR_SUM, nullptr),
            WEIR_OK)
      << weir_last_error(comm);
  size_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += data[i] != value_of(i, 0) + value_of(i, 1);
  ASSERT_EQ(wrong, 0u);
}

constexpr size_t kMiB = size_t{1} << 18;  // numbers of four bytes

// Which link gets how much is a matter of speed; both get something before long.
void reduce_until_both_carry(weir_comm_t comm, int rank,
                             std::pair<uint64_t, uint64_t> bytes_before) {
  int32_t carry = 0;
  for (int i = 0; carry < 2; ++i) {
    ASSERT_LT(i, 1000) << "a link does not carry";
    reduce_exactly(comm, rank, 4 * kMiB);
    const bool both = sent_bytes("eth0") - bytes_before.first > (uint64_t{2} << 20) &&
                      sent_bytes("eth1") - bytes_before.second > (uint64_t{2} << 20);
    carry = both ? 1 : 0;
    ASSERT_EQ(weir_all_reduce(comm, &carry, &carry, 1, WEIR_INT32, WEIR_SUM, nullptr), WEIR_OK)
        << weir_last_error(comm);
  }
}

void set_link(const char* device, bool up) {
  EXPECT_EQ(std::system(("ip link set " + std::string(device) + (up ? " up" : " down")).c_str()),
            0);
}

// What this rank's host sends there is lost, as where a switch has failed.
void lose(const char* device, bool loses) {
  const std::string name = device;
  const std::string command = loses ? "tc qdisc replace dev " + name + " root pfifo limit 0"
                                    : "tc qdisc del dev " + name + " root";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST_F(Rails, BothLinksCarryAndTheResultsAreRight) {
  // Each is too slow to carry everything alone.
  LabOptions options = two_links();
  for (const char* device : {"eth0", "eth1"}) {
    options.commands.push_back("tc qdisc add dev " + std::string(device) +
                               " root tbf rate 400mbit burst 64kb latency 50ms");
  }
  run_in_lab(options, [](int rank, weir_comm_t comm) {
    const std::pair before(sent_bytes("eth0"), sent_bytes("eth1"));
    for (const size_t count : {size_t{0}, size_t{1}, size_t{5000}, size_t{70'001}}) {
      check_every_collective(comm, count);
    }
    reduce_until_both_carry(comm, rank, before);
  });
}

// The probe of the costs goes by small messages over both links, and gives up after 5 s where they
// do not come; on a busy machine it may give up, too. Returns how many of eight starts took so
// long.
int slow_starts(LabOptions options) {
  std::string folder = std::filesystem::temp_directory_path() / "weir-starts-XXXXXX";
  EXPECT_NE(mkdtemp(folder.data()), nullptr);
  for (int start = 0; start < 8; ++start) {
    timespec begin;
    options.before = [&](int) { clock_gettime(CLOCK_MONOTONIC, &begin); };
    run_in_lab(options, [&](int rank, weir_comm_t comm) {
      timespec end;
      clock_gettime(CLOCK_MONOTONIC, &end);
      if (rank == 0 && end.tv_sec - begin.tv_sec >= 5) {
        std::ofstream(folder + "/" + std::to_string(start));
      }
      ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
    });
  }
  const auto slow_count = std::distance(std::filesystem::directory_iterator(folder),
                                        std::filesystem::directory_iterator());
  std::filesystem::remove_all(folder);
  return static_cast<int>(slow_count);
}

TEST_F(Rails, AStartDoesNotWaitForTheEndOfItsProbe) {
  int slow = slow_starts(two_links());
  for (int again = 0; again < 2 && slow > 1; ++again) slow = slow_starts(two_links());
  EXPECT_LE(slow, 1);
}

// Messages one way and an answer, from either host.
TEST_F(Rails, AnyNumberOfMessagesMayBeAnsweredByOne) {
  run_in_lab(two_links(), [](int rank, weir_comm_t comm) {
    int64_t number = 0;
    const auto move = [&](bool sends, int64_t expected) {
      int64_t value = sends ? expected : -1;
      ASSERT_EQ(sends ? weir_send(comm, &value, 1, WEIR_INT64, 1 - rank, nullptr)
                      : weir_recv(comm, &value, 1, WEIR_INT64, 1 - rank, nullptr),
                WEIR_OK)
          << weir_last_error(comm);
      ASSERT_EQ(value, expected);
    };
    for (int count = 1; count <= 17; ++count) {
      for (int round = 0; round < 20 && !testing::Test::HasFatalFailure(); ++round) {
        const bool sends = (round / 10 + rank) % 2 == 0;
        for (int k = 0; k < count; ++k) move(sends, ++number);
        move(!sends, ++number);
      }
    }
  });
}

std::string bucket(const char* device, const char* verb, const char* rate) {
  return "tc qdisc " + std::string(verb) + " dev " + device + " root tbf rate " + rate +
         " burst 16kb limit 1mb";
}

// Numbers of 400 KB in all, several times. Returns what both links have sent for them.
std::pair<uint64_t, uint64_t> sent_for_reductions(weir_comm_t comm, int rank) {
  const uint64_t before[] = {sent_bytes("eth0"), sent_bytes("eth1")};
  for (int i = 0; i < 24 && !testing::Test::HasFatalFailure(); ++i) {
    reduce_exactly(comm, rank, 100'000);
  }
  return {sent_bytes("eth0") - before[0], sent_bytes("eth1") - before[1]};
}

// On a busy machine a link may seem slower than it is for a while.
void expect_little_on_the_slow_link(weir_comm_t comm, int rank, bool first_is_slow) {
  int32_t is_little = 0;
  for (int attempt = 0; attempt < 4 && is_little < 2; ++attempt) {
    auto [fast, slow] = sent_for_reductions(comm, rank);
    if (first_is_slow) std::swap(fast, slow);
    if (attempt == 3) {
      EXPECT_LE(slow, fast / 40) << fast;
    }
    is_little = slow <= fast / 40 ? 1 : 0;
    ASSERT_EQ(weir_all_reduce(comm, &is_little, &is_little, 1, WEIR_INT32, WEIR_SUM, nullptr),
              WEIR_OK)
        << weir_last_error(comm);
  }
}

// Both links are there, nothing is said about them, and one is 400 times slower: from the start on,
// or suddenly.
TEST_F(Rails, ALinkThatIsMuchSlowerCarriesHardlyAnything) {
  if (std::system("tc -V >/dev/null 2>&1") != 0) GTEST_SKIP() << "the program tc is missing";
  for (const bool slow_first : {false, true}) {
    LabOptions options = two_links();
    options.commands = {bucket("eth0", "add", slow_first ? "256kbit" : "100mbit"),
                        bucket("eth1", "add", slow_first ? "100mbit" : "256kbit")};
    run_in_lab(options, [slow_first](int rank, weir_comm_t comm) {
      const char* slow_device = slow_first ? "eth0" : "eth1";
      EXPECT_LE(sent_bytes(slow_device), 100u * 1024) << "the start";
      expect_little_on_the_slow_link(comm, rank, slow_first);
    });
  }
}

TEST_F(Rails, ALinkThatBecomesMuchSlowerCarriesHardlyAnythingAnyMore) {
  if (std::system("tc -V >/dev/null 2>&1") != 0) GTEST_SKIP() << "the program tc is missing";
  LabOptions options = two_links();
  options.commands = {bucket("eth0", "add", "100mbit"), bucket("eth1", "add", "100mbit")};
  run_in_lab(options, [](int rank, weir_comm_t comm) {
    reduce_until_both_carry(comm, rank, {sent_bytes("eth0"), sent_bytes("eth1")});
    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(std::system(bucket("eth1", "change", "128kbit").c_str()), 0);
    // The first one meets what is under way.
    (void)sent_for_reductions(comm, rank);
    expect_little_on_the_slow_link(comm, rank, false);
  });
}

TEST_F(Rails, FourRanksOnTwoHostsUseBothLinks) {
  LabOptions options = two_links();
  options.hosts = {{0, 2}, {1, 3}};
  run_in_lab(options, [](int, weir_comm_t comm) {
    for (const size_t count : {size_t{1}, size_t{5000}, size_t{200'000}}) {
      check_every_collective(comm, count);
    }
  });
}

// Rank 0's broadcast is complete when a copy has left, and it waits in the other communicator when
// the link fails that has not delivered the copy.
TEST_F(Rails, ALinkThatIsCutLosesNoMessageOfACommunicatorThatNobodyWaitsFor) {
  for (int time = 0; time < 3 && !HasFailure(); ++time) {
    run_in_lab(two_links(), [](int rank, weir_comm_t comm) {
      weir_comm_t second = nullptr;
      ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &second), WEIR_OK);
      for (weir_comm_t one : {comm, second}) {
        ASSERT_EQ(weir_comm_set_timeout(one, 10'000), WEIR_OK);
      }
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(2500);
      std::thread cutter;
      if (rank == 1) {
        cutter = std::thread([] {
          usleep(300'000);
          set_link("eth0", false);
        });
      }
      int32_t goes_on = 1;
      for (int32_t k = 0; goes_on == 1 && !testing::Test::HasFailure(); ++k) {
        int32_t said = rank == 0 ? k : -1;
        EXPECT_EQ(weir_broadcast(second, &said, &said, 1, WEIR_INT32, 0, nullptr), WEIR_OK)
            << weir_last_error(second);
        EXPECT_EQ(said, k);
        goes_on = std::chrono::steady_clock::now() < end ? 1 : 0;
        EXPECT_EQ(weir_all_reduce(comm, &goes_on, &goes_on, 1, WEIR_INT32, WEIR_MIN, nullptr),
                  WEIR_OK)
            << weir_last_error(comm);
      }
      if (cutter.joinable()) cutter.join();
      EXPECT_EQ(weir_comm_destroy(second), WEIR_OK);
    });
  }
}

// The kernel then sends nothing, and waits for no acknowledgement.
TEST_F(Rails, ALinkWhoseOwnInterfaceIsDownLosesNoMessage) {
  for (const char* device : {"eth0", "eth1"}) {
    run_in_lab(two_links(), [&](int rank, weir_comm_t comm) {
      ASSERT_EQ(weir_comm_set_timeout(comm, 10'000), WEIR_OK);
      reduce_exactly(comm, rank, kMiB);
      ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
      if (rank == 1) set_link(device, false);
      // What the others say about the past is under way no longer.
      usleep(300'000);
      for (int32_t k = 0; k < 20; ++k) {
        int32_t said = rank == 1 ? k : -1;
        ASSERT_EQ(weir_broadcast(comm, &said, &said, 1, WEIR_INT32, 1, nullptr), WEIR_OK)
            << weir_last_error(comm);
        ASSERT_EQ(said, k);
      }
      // Rank 1 has sent copies, and waits for nothing until here.
      ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
    });
    if (HasFailure()) return;
  }
}

// Which makes no call for longer than a rank that closes waits for an acknowledgement.
TEST_F(Rails, ARankThatClosesWaitsForTheWordOfOneThatComputes) {
  for (const char* device : {"eth0", "eth1"}) {
    run_in_lab(two_links(), [&](int rank, weir_comm_t comm) {
      weir_comm_t made = nullptr;
      ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &made), WEIR_OK) << weir_last_error(comm);
      reduce_exactly(made, rank, kMiB);
      ASSERT_EQ(weir_barrier(made, nullptr), WEIR_OK) << weir_last_error(made);
      usleep(300'000);
      if (rank == 1) set_link(device, false);
      if (rank == 0) usleep(3'000'000);
      for (int32_t k = 0; k < 5; ++k) {
        int32_t said = rank == 1 ? k : -1;
        ASSERT_EQ(weir_broadcast(made, &said, &said, 1, WEIR_INT32, 1, nullptr), WEIR_OK)
            << weir_last_error(made);
        ASSERT_EQ(said, k);
      }
      ASSERT_EQ(weir_comm_destroy(made), WEIR_OK);
      if (rank == 1) set_link(device, true);
    });
    if (HasFailure()) return;
  }
}

// Its own carried nothing when the ranks connected.
TEST_F(Rails, ARailThatBeganOverAnotherLinkTakesItsOwnOnceThatIsBack) {
  if (std::system("tc -V >/dev/null 2>&1") != 0) GTEST_SKIP() << "the program tc is missing";
  run_in_lab(two_links(), [](int rank, weir_comm_t comm) {
    weir_comm_t made = nullptr;
    lose("eth0", true);
    ASSERT_EQ(weir_comm_split(comm, 0, rank, nullptr, &made), WEIR_OK) << weir_last_error(comm);
    ASSERT_EQ(weir_comm_set_timeout(made, 10'000), WEIR_OK);
    const auto reduce_for_ms = [&](int ms) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
      int32_t goes_on = 1;
      while (goes_on == 1 && !testing::Test::HasFatalFailure()) {
        reduce_exactly(made, rank, 1000);
        goes_on = std::chrono::steady_clock::now() < end ? 1 : 0;
        ASSERT_EQ(weir_all_reduce(made, &goes_on, &goes_on, 1, WEIR_INT32, WEIR_MIN, nullptr),
                  WEIR_OK)
            << weir_last_error(made);
      }
    };
    reduce_for_ms(500);
    lose("eth0", false);
    reduce_for_ms(3'000);
    lose("eth1", true);
    reduce_for_ms(2'000);
    ASSERT_EQ(weir_comm_destroy(made), WEIR_OK);
  });
}

// Cuts the links in turns, until `ends`; never both.
void cut_in_turns(const std::atomic<bool>& ends) {
  for (bool first = true; !ends; first = !first) {
    const char* device = first ? "eth0" : "eth1";
    set_link(device, false);
    usleep(1'700'000);
    set_link(device, true);
    for (int i = 0; i < 25 && !ends; ++i) usleep(100'000);
  }
}

void make_and_use(weir_comm_t parent, int rank, bool splits) {
  weir_comm_t made = nullptr;
  weir_unique_id_t id = {};
  if (splits) {
    ASSERT_EQ(weir_comm_split(parent, 0, rank, nullptr, &made), WEIR_OK) << weir_last_error(parent);
  } else {
    if (rank == 0) {
      ASSERT_EQ(weir_get_unique_id(&id), WEIR_OK) << weir_last_error(nullptr);
    }
    ASSERT_EQ(weir_broadcast(parent, &id, &id, sizeof id, WEIR_UINT8, 0, nullptr), WEIR_OK)
        << weir_last_error(parent);
    weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
    config.timeout_ms = 10'000;
    ASSERT_EQ(weir_comm_create(&made, 2, &id, rank, &config), WEIR_OK) << weir_last_error(nullptr);
  }
  reduce_exactly(made, rank, 1000);
  ASSERT_EQ(weir_comm_destroy(made), WEIR_OK) << weir_last_error(nullptr);
}

TEST_F(Rails, CommunicatorsAreMadeWhileLinksAreCutInTurns) {
  run_in_lab(two_links(), [](int rank, weir_comm_t comm) {
    ASSERT_EQ(weir_comm_set_timeout(comm, 10'000), WEIR_OK);
    std::atomic<bool> ends{false};
    std::thread cutter;
    if (rank == 1) cutter = std::thread([&] { cut_in_turns(ends); });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(25);
    int32_t goes_on = 1;
    for (int i = 0; goes_on == 1 && !testing::Test::HasFailure(); ++i) {
      make_and_use(comm, rank, i % 2 == 0);
      goes_on = std::chrono::steady_clock::now() < end ? 1 : 0;
      EXPECT_EQ(weir_all_reduce(comm, &goes_on, &goes_on, 1, WEIR_INT32, WEIR_MIN, nullptr),
                WEIR_OK)
          << weir_last_error(comm);
    }
    ends = true;
    if (cutter.joinable()) cutter.join();
  });
}

// At any moment of a start; it stays cut until all is done.
TEST_F(Rails, ALinkThatIsCutInTheMiddleOfAStartDoesNotEndIt) {
  constexpr int kStarts = 12;
  for (const char* device : {"eth0", "eth1"}) {
    run_in_lab(two_links(), [&](int rank, weir_comm_t comm) {
      ASSERT_EQ(weir_comm_set_timeout(comm, 10'000), WEIR_OK);
      for (int i = 0; i < kStarts && !testing::Test::HasFailure(); ++i) {
        ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
        std::thread cutter;
        if (rank == 1) {
          cutter = std::thread([&] {
            usleep(static_cast<useconds_t>(i * 1500));
            set_link(device, false);
          });
        }
        make_and_use(comm, rank, i % 2 == 0);
        if (cutter.joinable()) cutter.join();
        if (rank == 1) set_link(device, true);
      }
    });
    if (HasFailure()) return;
  }
}

// For longer than the kernel waits for an answer, 30 s.
TEST_F(Rails, ALinkThatStaysCutEndsNoCommunicator) {
  for (const char* device : {"eth0", "eth1"}) {
    run_in_lab(two_links(), [&](int rank, weir_comm_t comm) {
      ASSERT_EQ(weir_comm_set_timeout(comm, 10'000), WEIR_OK);
      reduce_exactly(comm, rank, kMiB);
      if (rank == 1) set_link(device, false);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(35);
      int32_t goes_on = 1;
      while (goes_on == 1 && !testing::Test::HasFatalFailure()) {
        reduce_exactly(comm, rank, 1000);
        usleep(5'000);
        goes_on = std::chrono::steady_clock::now() < end ? 1 : 0;
        ASSERT_EQ(weir_all_reduce(comm, &goes_on, &goes_on, 1, WEIR_INT32, WEIR_MIN, nullptr),
                  WEIR_OK)
            << weir_last_error(comm);
      }
    });
    if (HasFailure()) return;
  }
}

TEST_F(Rails, ALinkThatIsCutInTheMiddleLeavesTheResultExactAndCarriesAgainWhenItIsBack) {
  for (const char* device : {"eth0", "eth1"}) {
    run_in_lab(two_links(), [&](int rank, weir_comm_t comm) {
      reduce_exactly(comm, rank, kMiB);
      ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
      std::thread cutter;
      if (rank == 1) {
        cutter = std::thread([&] {
          usleep(10'000);
          set_link(device, false);
        });
      }
      reduce_exactly(comm, rank, 64 * kMiB);
      if (cutter.joinable()) cutter.join();
      reduce_exactly(comm, rank, kMiB);
      ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
      if (rank == 1) set_link(device, true);
      // Rank 1's count decides for both how long they go on.
      const uint64_t before = sent_bytes(device);
      int32_t carries = 0;
      for (int i = 0; carries == 0; ++i) {
        ASSERT_LT(i, 4000) << "the link did not carry again";
        reduce_exactly(comm, rank, kMiB);
        usleep(5'000);
        carries = rank == 1 && sent_bytes(device) - before > (uint64_t{1} << 20) ? 1 : 0;
        ASSERT_EQ(weir_all_reduce(comm, &carries, &carries, 1, WEIR_INT32, WEIR_SUM, nullptr),
                  WEIR_OK)
            << weir_last_error(comm);
      }
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace weir::test
