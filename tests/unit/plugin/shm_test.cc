// SPDX-License-Identifier: Apache-2.0
// What is particular to shm: strangers at its door, and damage to its memory.
#include <gtest/gtest.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <random>
#include <vector>

#include "core/plugin/registry.h"
#include "plugins/shm/channel.h"
#include "plugins/shm/wire.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::shm {
namespace {

// Name of the socket: the bytes behind the magic number in rank 0's address.
int knock(const Pair& pair) {
  const SocketAddress address = socket_address(pair.end[0].address + sizeof(uint64_t));
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(address.bytes), address.length), 0);
  return fd;
}

class Strangers : public testing::Test {
 protected:
  Strangers() : pair_(plugin::find_transport("shm").value()) {}
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
  const SocketAddress address = socket_address(pair_.end[0].address + sizeof(uint64_t));
  std::atomic<bool> stop = false;
  std::thread crowd([&] {
    std::deque<int> held;
    while (!stop) {
      const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      const auto* name = reinterpret_cast<const sockaddr*>(address.bytes);
      if (fd < 0 || ::connect(fd, name, address.length) != 0) {
        if (fd >= 0) close(fd);
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

// Whoever comes is hung up on a few times, as by a rank 0 that has no room; then there is one that
// answers.
TEST_F(Strangers, ARankThatIsHungUpOnComesAgain) {
  open();
  const SocketAddress address = socket_address(pair_.end[0].address + sizeof(uint64_t));
  // Another listener of the same name is impossible: so rank 0's own, through its descriptor, is
  // asked first.
  int listener = -1;
  for (int fd = 3; fd < 1024 && listener < 0; ++fd) {
    sockaddr_un name = {};
    socklen_t bytes = sizeof name;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&name), &bytes) == 0 &&
        bytes == address.length && memcmp(&name, address.bytes, bytes) == 0) {
      listener = fd;
    }
  }
  ASSERT_GE(listener, 0);
  weir_result_t other = WEIR_OK;
  std::thread helper([&] { other = pair_.connect(1, 60'000); });
  for (int i = 0; i < 5; ++i) {
    pollfd entry = {listener, POLLIN, 0};
    ASSERT_EQ(poll(&entry, 1, 60'000), 1);
    close(accept(listener, nullptr, nullptr));
  }
  EXPECT_EQ(pair_.connect(0, 60'000), WEIR_OK) << pair_.end[0].error;
  helper.join();
  EXPECT_EQ(other, WEIR_OK) << pair_.end[1].error;
}

TEST_F(Strangers, GarbageIsRefusedAndTheRanksJoin) {
  open();
  std::mt19937 random(1);
  for (int i = 0; i < 40; ++i) {
    sockets_.push_back(knock(pair_));
    std::vector<unsigned char> packet(random() % 400);
    for (auto& byte : packet) byte = static_cast<unsigned char>(random());
    if (packet.size() > 12) memcpy(packet.data(), &kWireMagic, sizeof kWireMagic);
    ASSERT_EQ(send(sockets_.back(), packet.data(), packet.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(packet.size()));
  }
  expect_quick_join();
}

TEST_F(Strangers, OneWithoutTheSecretIsRefusedAndTold) {
  open();
  sockets_.push_back(knock(pair_));
  Hello hello = {};
  hello.magic = kWireMagic;
  hello.kind = PacketKind::kHello;
  hello.rank = 1;
  hello.rank_count = 2;
  hello.comm_id = 5;
  hello.token_bytes = 32;
  hello.pid = getpid();
  ASSERT_TRUE(send_packet(sockets_[0], &hello, sizeof hello, -1));
  expect_quick_join();
  Verdict verdict = {};
  int fd = -1;
  ASSERT_EQ(receive_packet(sockets_[0], &verdict, sizeof verdict, &fd),
            static_cast<ssize_t>(sizeof verdict));
  EXPECT_EQ(fd, -1);
  EXPECT_EQ(verdict.result, static_cast<uint32_t>(WEIR_ERROR_REFUSED));
}

TEST_F(Strangers, TwoWithOneRankAreNotBothLetIn) {
  open();
  Pair twin(&pair_.f);
  twin.end[0] = pair_.end[0];  // the address; its instance stays the first pair's
  ASSERT_EQ(twin.open(1), WEIR_OK);
  weir_result_t results[2] = {};
  std::thread first([&] { results[0] = pair_.connect(1, 1000); });
  std::thread second([&] { results[1] = twin.connect(1, 1000); });
  const weir_result_t host = pair_.connect(0, 1000);
  first.join();
  second.join();
  twin.end[0].instance = nullptr;
  EXPECT_EQ(host, WEIR_OK);
  EXPECT_EQ((results[0] == WEIR_OK) + (results[1] == WEIR_OK), 1);
}

TEST(ShmAddress, ARankOfAnotherMachineIsNamed) {
  Pair pair(plugin::find_transport("shm").value());
  ASSERT_EQ(pair.open(0), WEIR_OK);
  ASSERT_EQ(pair.open(1), WEIR_OK);
  unsigned char* boot_id = pair.end[1].address + sizeof(uint64_t) + kNameBytes;
  if (boot_id[0] == 0) GTEST_SKIP() << "this kernel tells no boot id";
  boot_id[0] = boot_id[0] == 'a' ? 'b' : 'a';
  EXPECT_EQ(pair.connect(0, 200), WEIR_ERROR_UNSUPPORTED);
  EXPECT_NE(pair.end[0].error.find("rank 1 is on another machine"), std::string::npos);
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

TEST(ShmLayout, ChannelsDoNotOverlapForAnyRankCount) {
  for (const uint32_t n : {1u, 2u, 3u, 16u, 17u, 100u, 512u}) {
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
        EXPECT_GE(layout.slot_bytes(lane), 4096u);
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
