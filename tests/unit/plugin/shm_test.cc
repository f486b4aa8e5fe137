// SPDX-License-Identifier: Apache-2.0
// What is particular to shm: how its ranks come to share memory, strangers at their door, and
// damage to the memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "core/control/network_address.h"
#include "core/plugin/registry.h"
#include "plugins/shm/channel.h"
#include "plugins/shm/memory.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::shm {
namespace {

const weir_transport_functions_t* shm() { return plugin::find_transport("shm").value(); }

// A connection to rank 0's socket of the control network, over which the memory comes; -1: none.
int knock(const Pair& pair, int flags = 0) {
  control::NetworkAddress to;
  EXPECT_TRUE(control::NetworkAddress::unpack(pair.end[0].network_address, &to));
  const std::string name = control::socket_name(to.nonce);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path + 1, name.data(), name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | flags, 0);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return fd;
  close(fd);
  return -1;
}

class Strangers : public testing::Test {
 protected:
  Strangers() : pair_(shm()) {}
  ~Strangers() override {
    for (int fd : sockets_) close(fd);
  }
  void open() {
    ASSERT_EQ(pair_.open(0), WEIR_OK);
    ASSERT_EQ(pair_.open(1), WEIR_OK);
  }
  void expect_quick_join() {
    const uint64_t start = monotonic_ns();
    weir_result_t other = WEIR_OK;
    std::thread helper([&] { other = pair_.connect(1); });
    EXPECT_EQ(pair_.connect(0), WEIR_OK) << pair_.end[0].error;
    helper.join();
    EXPECT_EQ(other, WEIR_OK) << pair_.end[1].error;
    EXPECT_LT(monotonic_ns() - start, 1'000'000'000u);
  }
  Pair pair_;
  std::vector<int> sockets_;
};

TEST_F(Strangers, SilentOnesDoNotKeepTheRanksWaiting) {
  open();
  for (int i = 0; i < 60; ++i) sockets_.push_back(knock(pair_));
  expect_quick_join();
}

// They come faster than rank 0 can hold them, and stay; more come in place of those that are turned
// away.
TEST_F(Strangers, AThousandSilentOnesDoNotKeepTheRanksFromMeeting) {
  open();
  std::atomic<bool> stop = false;
  std::thread crowd([&] {
    std::deque<int> held;
    while (!stop) {
      const int fd = knock(pair_, SOCK_NONBLOCK);
      if (fd < 0) {
        usleep(100);
        continue;
      }
      held.push_back(fd);
      if (held.size() <= 1000) continue;
      close(held.front());
      held.pop_front();
    }
    for (const int fd : held) close(fd);
  });
  usleep(20'000);  // the queue is full of them
  weir_result_t other = WEIR_OK;
  std::thread helper([&] { other = pair_.connect(1, 60'000); });
  EXPECT_EQ(pair_.connect(0, 60'000), WEIR_OK) << pair_.end[0].error;
  helper.join();
  stop = true;
  crowd.join();
  EXPECT_EQ(other, WEIR_OK) << pair_.end[1].error;
}

TEST_F(Strangers, GarbageIsRefusedAndTheRanksJoin) {
  open();
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    sockets_.push_back(knock(pair_));
    std::vector<unsigned char> packet(random() % 400);
    for (auto& byte : packet) byte = static_cast<unsigned char>(random());
    if (packet.size() > 4) memcpy(packet.data(), "WEIR", 4);
    ASSERT_EQ(send(sockets_.back(), packet.data(), packet.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(packet.size()));
  }
  expect_quick_join();
}

TEST_F(Strangers, OneWithoutTheSecretIsRefusedAndTold) {
  open();
  unsigned char other_secret[32] = {9, 9, 9};
  weir_transport_config_t config = pair_.end[1].config;
  config.secret = other_secret;
  testing_support::ControlRank stranger(config);
  Status told;
  std::thread comes([&] {
    told = stranger.join({pair_.end[0].network_address, stranger.address()},
                         monotonic_ns() + 5'000'000'000);
  });
  expect_quick_join();
  comes.join();
  EXPECT_EQ(told.code(), Code::kRefused) << told.text();
}

TEST_F(Strangers, TwoWithOneRankAreNotBothLetIn) {
  open();
  Pair twin(&pair_.f);
  pair_.joins_apart = twin.joins_apart = true;
  ASSERT_EQ(twin.open(1), WEIR_OK);
  twin.end[0].network_address = pair_.end[0].network_address;
  weir_result_t results[2] = {};
  std::thread first([&] { results[0] = pair_.connect(1, 1000); });
  std::thread second([&] { results[1] = twin.connect(1, 1000); });
  const weir_result_t host = pair_.connect(0, 1000);
  first.join();
  second.join();
  EXPECT_EQ(host, WEIR_OK);
  EXPECT_EQ((results[0] == WEIR_OK) + (results[1] == WEIR_OK), 1);
}

TEST(ShmPeers, ARankOfAnotherMachineIsNamed) {
  Pair pair(shm());
  pair.joins_apart = true;
  ASSERT_EQ(pair.open(0), WEIR_OK);
  ASSERT_EQ(pair.open(1), WEIR_OK);
  // The identity of its host, of which rank 0 is told another one.
  std::string address = pair.end[1].network_address;
  address[12] = static_cast<char>(address[12] ^ 1);
  weir_result_t other = WEIR_OK;
  std::thread helper([&] { other = pair.connect(1, 200); });
  const Status joined = pair.end[0].control->join({pair.end[0].network_address, address},
                                                  monotonic_ns() + 5'000'000'000);
  EXPECT_TRUE(joined.ok()) << joined.text();
  const unsigned char* addresses[] = {nullptr, nullptr};
  const size_t bytes[] = {0, 0};
  EXPECT_EQ(pair.f.connect(pair.end[0].instance, addresses, bytes, monotonic_ns() + 200'000'000),
            WEIR_ERROR_UNSUPPORTED);
  helper.join();
  EXPECT_NE(other, WEIR_OK);
  EXPECT_NE(pair.end[0].error.find("rank 1 is on another machine"), std::string::npos)
      << pair.end[0].error;
}

// ---- Several ranks, each in a thread's hands ----------------------------------------------------

class Ranks {
 public:
  explicit Ranks(uint32_t count) : ends_(count) {
    for (uint32_t i = 0; i < count; ++i) {
      One& one = ends_[i];
      one.host = {sizeof one.host,
                  &one,
                  [](void* self, const char* text) { static_cast<One*>(self)->error = text; },
                  [](void*, int, const char*) {},
                  [](void*, const char*) -> const char* { return nullptr; },
                  [](void* self) { return static_cast<One*>(self)->seen.load(); }};
      one.config = {sizeof one.config, i, count, 5, secret_, sizeof secret_, 4096, 0};
    }
  }
  ~Ranks() {
    for (One& one : ends_) {
      if (one.instance != nullptr) shm()->close(one.instance);
    }
  }

  struct One {
    weir_host_t host{};
    weir_transport_config_t config{};
    std::unique_ptr<testing_support::ControlRank> control;
    weir_transport_t* instance = nullptr;
    weir_result_t result = WEIR_OK;
    std::atomic<weir_result_t> seen = WEIR_OK;  // what weir_host_t::look gives
    std::string error;
  };
  One& operator[](uint32_t rank) { return ends_[rank]; }
  uint32_t count() const { return static_cast<uint32_t>(ends_.size()); }

  // The control network of all of them stands.
  void open() {
    std::vector<std::string> addresses;
    for (One& one : ends_) {
      one.control = std::make_unique<testing_support::ControlRank>(one.config);
      one.control->error_copy = &one.error;
      one.host.control = one.control->functions();
      addresses.push_back(one.control->address());
      ASSERT_EQ(shm()->open(shm()->context, &one.host, &one.config, &one.instance), WEIR_OK)
          << one.error;
    }
    as_all([&](uint32_t i) {
      const Status joined = ends_[i].control->join(addresses, monotonic_ns() + 20'000'000'000);
      EXPECT_TRUE(joined.ok()) << joined.text();
    });
  }
  void as_all(const std::function<void(uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < count(); ++i) threads.emplace_back([&, i] { body(i); });
    for (std::thread& thread : threads) thread.join();
  }
  void connect(uint32_t rank, uint64_t timeout_ms) {
    const std::vector<const unsigned char*> addresses(count());
    const std::vector<size_t> bytes(count());
    ends_[rank].result = shm()->connect(ends_[rank].instance, addresses.data(), bytes.data(),
                                        monotonic_ns() + timeout_ms * 1'000'000);
  }
  void connect_all() {
    as_all([&](uint32_t i) { connect(i, 20'000); });
    for (const One& one : ends_) ASSERT_EQ(one.result, WEIR_OK) << one.error;
  }
  weir_result_t window(uint32_t rank, unsigned char key, uint64_t bytes, uint64_t timeout_ms) {
    const unsigned char name[16] = {key};
    weir_segment_t window{};
    return shm()->window_open(ends_[rank].instance, name, bytes,
                              monotonic_ns() + timeout_ms * 1'000'000, &window);
  }
  // All but `absent` failed with this code, and told what the text contains.
  void expect_all(weir_result_t result, const std::string& text, uint32_t absent = UINT32_MAX) {
    for (uint32_t i = 0; i < count(); ++i) {
      if (i == absent) continue;
      EXPECT_EQ(ends_[i].result, result) << "rank " << i << ": " << ends_[i].error;
      EXPECT_NE(ends_[i].error.find(text), std::string::npos)
          << "rank " << i << ": " << ends_[i].error;
    }
  }

 private:
  unsigned char secret_[32] = {1, 2, 3};
  std::vector<One> ends_;
};

// Rank 1 would hand the memory on to ranks 3, 5 and 7.
TEST(Sharing, WhoWaitsBehindAMissingRankIsNotMissing) {
  Ranks ranks(8);
  ranks.open();
  ranks.as_all([&](uint32_t i) {
    if (i != 1) ranks.connect(i, 1000);
  });
  ranks.expect_all(WEIR_ERROR_TIMEOUT, "rank 1 of 8 did not join before the deadline", 1);
}

// Of two ranks the second, which writes what it wants where ranks report to each other (the table
// is in segment_setup.h).
class Forged {
 public:
  explicit Forged(Ranks* ranks) {
    const weir_control_t* const control = (*ranks)[1].host.control;
    unsigned char key[WEIR_CONTROL_KEY_BYTES] = {'w', 'e', 'i', 'r', '-', 's', 'h', 'm'};
    memcpy(key + sizeof key / 2, &(*ranks)[1].config.comm_id, sizeof key / 2);
    int fd = -1;
    const uint64_t deadline_ns = monotonic_ns() + 10'000'000'000;
    EXPECT_EQ(control->fetch(control->context, 0, key, deadline_ns, &fd), WEIR_OK);
    bytes_ = static_cast<size_t>(getpagesize());
    const off_t at = lseek(fd, 0, SEEK_END) - static_cast<off_t>(bytes_);
    void* const page = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
    EXPECT_NE(page, MAP_FAILED);
    page_ = static_cast<unsigned char*>(page);
    close(fd);
  }
  ~Forged() { munmap(page_, bytes_); }
  Forged(const Forged&) = delete;
  Forged& operator=(const Forged&) = delete;

  std::atomic<uint32_t>& mapped_count() { return *at<std::atomic<uint32_t>>(20); }
  std::atomic<uint32_t>& teller() { return *at<std::atomic<uint32_t>>(24); }
  std::atomic<uint8_t>& stage() { return *at<std::atomic<uint8_t>>(800 + 1); }

 private:
  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(page_ + offset);
  }
  size_t bytes_ = 0;
  unsigned char* page_ = nullptr;
};
constexpr uint8_t kMapped = 2;

TEST(Sharing, ARankThatStandsStillRightAfterItMappedTheMemoryIsNotAnEmptyList) {
  Ranks ranks(2);
  ranks.open();
  ranks.as_all([&](uint32_t i) {
    if (i == 0) return ranks.connect(i, 300);
    Forged(&ranks).stage() = kMapped;
  });
  ranks.expect_all(WEIR_ERROR_TIMEOUT,
                   "all 2 ranks mapped the shared memory, but only 1 confirmed it", 1);
}

// At the deadline another rank is about to say that they failed when the last one comes.
TEST(Sharing, WhatTheFirstRankThatGaveUpDecidesHoldsForAll) {
  Ranks ranks(2);
  ranks.open();
  ranks.as_all([&](uint32_t i) {
    if (i == 0) return ranks.connect(i, 300);
    Forged forged(&ranks);
    forged.teller() = 2;
    forged.stage() = kMapped;
    usleep(400'000);
    forged.mapped_count() += 1;
  });
  EXPECT_EQ(ranks[0].result, WEIR_OK) << ranks[0].error;
}

TEST(Sharing, ARankThatDiesMeanwhileIsNamedAtOnceByAll) {
  Ranks ranks(8);
  ranks.open();
  const uint64_t start = monotonic_ns();
  ranks.as_all([&](uint32_t i) {
    if (i != 3) return ranks.connect(i, 20'000);
    usleep(50'000);
    ranks[3].control->network.reset();  // without a goodbye
    ranks[3].host.control = nullptr;
  });
  EXPECT_LT(monotonic_ns() - start, 5'000'000'000u);
  ranks.expect_all(WEIR_ERROR_PEER_LOST, "rank 3 ended", 3);
}

TEST(Sharing, WhatTheCallerHearsOfEndsTheWait) {
  Ranks ranks(4);
  ranks.open();
  const uint64_t start = monotonic_ns();
  ranks.as_all([&](uint32_t i) {
    if (i != 2) return ranks.connect(i, 20'000);
    usleep(50'000);
    for (uint32_t p = 0; p < 4; ++p) ranks[p].seen = WEIR_ERROR_SYSTEM;
  });
  EXPECT_LT(monotonic_ns() - start, 5'000'000'000u);
  for (const uint32_t i : {0u, 1u, 3u}) EXPECT_EQ(ranks[i].result, WEIR_ERROR_SYSTEM) << i;
}

TEST(Sharing, SizesThatDifferAreToldToAll) {
  Ranks ranks(6);
  ranks[5].config.segment_bytes = 1 << 20;
  ranks.open();
  ranks.as_all([&](uint32_t i) { ranks.connect(i, 20'000); });
  ranks.expect_all(WEIR_ERROR_MISMATCH, "rank 5 asks for ");
}

TEST(Sharing, AWindowThatCameToNothingLeavesNoneBehind) {
  Ranks ranks(4);
  ranks.open();
  ranks.connect_all();
  const auto descriptors = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  };
  int before = 0;
  for (unsigned char round = 0; round < 20; ++round) {
    ranks.as_all([&](uint32_t i) {
      ranks[i].result = ranks.window(i, round * 2 + 1, i == 3 ? 1 << 20 : 4096, 20'000);
    });
    ranks.expect_all(WEIR_ERROR_MISMATCH, "rank 3 asks for 1048576 bytes");
    ranks.as_all(
        [&](uint32_t i) { ranks[i].result = ranks.window(i, round * 2 + 2, 4096, 20'000); });
    for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(ranks[i].result, WEIR_OK) << ranks[i].error;
    if (round == 0) before = descriptors();
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(Sharing, ARankIsToldTheNodeOfItsPartWhereItHasGivenOne) {
  Ranks ranks(3);
  ranks[0].config.numa_node = 0;
  ranks[2].config.numa_node = 1023;
  ranks.open();
  ranks.connect_all();
  weir_segment_t segment{};
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(shm()->segment(ranks[i].instance, &segment), WEIR_OK);
    if (i == 1) {
      EXPECT_EQ(segment.numa_node, -1);
    }
    // A kernel with several nodes may forbid it.
    if (i == 0 && !has_several_nodes()) {
      EXPECT_EQ(segment.numa_node, 0);
    }
    if (i == 2 && has_several_nodes()) {
      EXPECT_EQ(segment.numa_node, -1);
    }
  }
}

TEST(ShmMemory, PagesComeFromTheNodeThatIsAskedFor) {
  int fd = -1;
  Mapping mapping;
  const uint64_t bytes = 4 * page_bytes();
  ASSERT_EQ(create_memory(Report{}, bytes, 0, false, &fd), WEIR_OK);
  ASSERT_EQ(map_memory(Report{}, fd, bytes, 0, &mapping), WEIR_OK);
  close(fd);
  EXPECT_FALSE(prefer_node(mapping.base, bytes, -1));
  EXPECT_FALSE(prefer_node(mapping.base, bytes, 1 << 20));
  const bool is_set = prefer_node(mapping.base + page_bytes(), page_bytes(), 0);
  int mode = -1;
  unsigned long nodes[1024 / (8 * sizeof(unsigned long))] = {};
  const auto policy_of = [&](const unsigned char* address) {
    return syscall(SYS_get_mempolicy, &mode, nodes, sizeof nodes * 8, address, MPOL_F_ADDR);
  };
  const bool can_ask = policy_of(mapping.base + page_bytes()) == 0;
  if (is_set && can_ask) {
    EXPECT_EQ(mode, MPOL_PREFERRED);
    EXPECT_EQ(nodes[0], 1u);
    ASSERT_EQ(policy_of(mapping.base), 0);
    EXPECT_EQ(mode, MPOL_DEFAULT) << "of a page that nothing was said of";
  }
  unmap_memory(&mapping);
  if (!is_set || !can_ask) GTEST_SKIP() << "this kernel permits no policies of memory";
}

// What rank 0 offers in place of the memory, as a rank that does damage would.
void expect_refused(int fd, const std::string& text) {
  Ranks ranks(2);
  ranks.open();
  unsigned char key[16] = {'w', 'e', 'i', 'r', '-', 's', 'h', 'm', 5};
  ASSERT_TRUE(ranks[0].control->network != nullptr);
  const weir_control_t* const control = ranks[0].control->functions();
  ASSERT_EQ(control->offer(control->context, key, fd), WEIR_OK);
  ranks.connect(1, 1000);
  EXPECT_EQ(ranks[1].result, WEIR_ERROR_REFUSED);
  EXPECT_NE(ranks[1].error.find(text), std::string::npos) << ranks[1].error;
  close(fd);
}

int memory_of(off_t bytes, int seals) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, bytes), 0);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

TEST(Sharing, WhatIsNoSealedMemoryIsRefused) {
  expect_refused(open("/dev/null", O_RDWR | O_CLOEXEC), "not a sealed memfd");
  expect_refused(memory_of(1 << 20, F_SEAL_GROW), "not a sealed memfd");
  expect_refused(memory_of(0, kSeals), "fewer than");
  expect_refused(memory_of(1 << 20, kSeals), "is not that of a communicator");
}

// The addresses that this process uses: sanitizers take far more than the memory they need.
uint64_t address_space_bytes() {
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(getpagesize());
}

// In processes of their own, whose limits are their own, too.
TEST(Sharing, ARankThatCannotMapTheMemoryTellsAll) {
  const auto* const texts = static_cast<char*>(
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  // Threads of one process have one limit: so ranks in another process have theirs.
  struct Shared {
    std::atomic<uint32_t> opened;
    char address[2][512];
    size_t bytes[2];
    weir_result_t result[2];
    char error[2][512];
  };
  auto* const shared = reinterpret_cast<Shared*>(const_cast<char*>(texts));
  pid_t children[2];
  for (uint32_t i = 0; i < 2; ++i) {
    children[i] = fork();
    if (children[i] != 0) continue;
    Pair pair(shm());
    for (auto& end : pair.end) end.config.segment_bytes = uint64_t{8} << 30;
    if (pair.open(i) != WEIR_OK) _exit(2);
    memcpy(shared->address[i], pair.end[i].network_address.data(),
           pair.end[i].network_address.size());
    shared->bytes[i] = pair.end[i].network_address.size();
    shared->opened.fetch_add(1);
    while (shared->opened.load() < 2) usleep(1000);
    pair.end[1 - i].network_address.assign(shared->address[1 - i], shared->bytes[1 - i]);
    const uint64_t room_bytes = uint64_t{4} << 30;  // half of the memory
    const rlim_t most = address_space_bytes() + room_bytes;
    const rlimit limit{most, most};
    if (i == 1 && setrlimit(RLIMIT_AS, &limit) != 0) _exit(3);
    shared->result[i] = pair.connect(i, 20'000);
    snprintf(shared->error[i], sizeof shared->error[i], "%s", pair.end[i].error.c_str());
    shared->opened.fetch_add(1);
    while (shared->opened.load() < 4) usleep(1000);
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(shared->result[i], WEIR_ERROR_NO_MEMORY) << shared->error[i];
    const std::string error = shared->error[i];
    EXPECT_NE(error.find("rank 1 could not map the memory"), std::string::npos) << error;
    EXPECT_NE(error.find("Cannot allocate memory"), std::string::npos) << error;
  }
  munmap(shared, 4096);
}

// A channel over plain memory, with both ends in our hands.
class Damage : public testing::Test {
 protected:
  Damage() : layout_(2), memory_(layout_.bytes() + 64) {
    void* base = memory_.data();
    size_t space = memory_.size();
    base_ = static_cast<unsigned char*>(std::align(64, layout_.bytes(), base, space));
    sender_.attach(base_, layout_, 0, 1, 0);
    receiver_.attach(base_, layout_, 0, 1, 0);
    credit_ = reinterpret_cast<Credit*>(base_ + layout_.control_offset(0, 1, 0));
    cells_ = reinterpret_cast<Cell*>(credit_ + 2);
  }
  Layout layout_;
  std::vector<unsigned char> memory_;
  unsigned char* base_;
  Channel sender_, receiver_;
  Credit* credit_;
  Cell* cells_;
};

TEST_F(Damage, ACreditBeyondWhatWasSentIsAnError) {
  Op op = {};
  credit_->cells = 1000;
  for (uint32_t i = 0; i < kCellCount; ++i) {
    op = {};
    ASSERT_EQ(sender_.post_send("x", 1, &op), WEIR_OK);
  }
  op = {};
  EXPECT_EQ(sender_.post_send("x", 1, &op), WEIR_ERROR_INTERNAL);
}

TEST_F(Damage, APartLongerThanItsSlotIsAnError) {
  std::vector<unsigned char> data(100'000);
  Op send_op = {}, recv_op = {};
  ASSERT_EQ(sender_.post_send(data.data(), data.size(), &send_op), WEIR_OK);
  cells_[1].part_bytes = layout_.slot_bytes(0) + 1;
  EXPECT_EQ(receiver_.post_recv(data.data(), data.size(), &recv_op), WEIR_ERROR_INTERNAL);
}

TEST_F(Damage, APartBeyondTheMessageIsAnError) {
  std::vector<unsigned char> data(100);
  Op send_op = {}, recv_op = {};
  ASSERT_EQ(sender_.post_send(data.data(), data.size(), &send_op), WEIR_OK);
  cells_[0].part_bytes = 101;
  EXPECT_EQ(receiver_.post_recv(data.data(), data.size(), &recv_op), WEIR_ERROR_INTERNAL);
}

// Whatever the other side writes, we stay within our own buffers (AddressSanitizer sees it) and
// end.
TEST_F(Damage, RandomBytesNeverMoveTheReceiverOutOfItsBuffers) {
  std::mt19937_64 random(7);
  std::vector<unsigned char> data(5000), out(5000);
  for (int round = 0; round < 3000; ++round) {
    std::fill(base_, base_ + layout_.control_offset(0, 1, 1), static_cast<unsigned char>(0));
    Channel sender, receiver;
    sender.attach(base_, layout_, 0, 1, 0);
    receiver.attach(base_, layout_, 0, 1, 0);
    Op send_ops[4] = {}, recv_ops[4] = {};
    for (Op& op : send_ops) (void)sender.post_send(data.data(), 1 + random() % 5000, &op);
    auto* words = reinterpret_cast<uint64_t*>(cells_);
    for (int i = 0; i < 4; ++i) {
      const uint64_t value = random() % 3 == 0 ? random() : random() % 8192;
      words[random() % (8 * sizeof(Cell) / 8)] = value;
    }
    for (Op& op : recv_ops) (void)receiver.post_recv(out.data(), 1 + random() % 5000, &op);
    receiver.drive_recv();
    sender.drive_send();
  }
}

// 256 ranks of a process map them, of 1,024.
TEST(ShmLayout, TheChannelsOfManyRanksFitIntoTheAddressSpace) {
  EXPECT_LE(Layout(1024).bytes() * 256, uint64_t{1} << 47);
}

TEST(ShmLayout, ChannelsDoNotOverlapForAnyRankCount) {
  for (const uint32_t n : {1u, 2u, 3u, 16u, 17u, 100u, 512u, 1024u}) {
    const Layout layout(n);
    uint64_t end_of_pair = 0;
    for (const uint32_t pair : {0u, 1u, n * n - 1}) {
      if (pair >= n * n) continue;
      const uint32_t from = pair / n, to = pair % n;
      uint64_t end = 0;
      for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
        const uint64_t control = layout.control_offset(from, to, lane);
        EXPECT_EQ(control % 64, 0u);
        EXPECT_GE(control, end);
        end = control + 2 * sizeof(Credit) + kCellCount * sizeof(Cell);
      }
      for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
        const uint64_t slots = layout.slots_offset(from, to, lane);
        EXPECT_EQ(slots % 4096, 0u);
        EXPECT_GE(slots, end);
        EXPECT_GE(layout.slot_bytes(lane), n <= 512 ? 4096u : 1024u);
        end = slots + uint64_t{layout.slot_bytes(lane)} * kSlotCount;
      }
      EXPECT_LE(end, layout.bytes());
      if (pair == 0) end_of_pair = end;
      if (pair == 1) {
        EXPECT_GE(layout.control_offset(from, to, 0), end_of_pair);
      }
    }
  }
}

}  // namespace
}  // namespace weir::plugins::shm
