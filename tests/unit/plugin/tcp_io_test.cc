// SPDX-License-Identifier: Apache-2.0
// How tcp calls the kernel: sends from the caller's memory itself, and calls of many channels at
// once.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "plugins/tcp/batch.h"
#include "plugins/tcp/channel.h"
#include "plugins/tcp/zero_copy.h"

namespace weir::plugins::tcp {
namespace {

uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// A connection over loopback.
class Connection {
 public:
  Connection() {
    const int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof name;
    auto* address = reinterpret_cast<sockaddr*>(&name);
    EXPECT_EQ(bind(door, address, bytes), 0);
    EXPECT_EQ(listen(door, 1), 0);
    EXPECT_EQ(getsockname(door, address, &bytes), 0);
    fds_[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fds_[0], address, bytes), 0);
    fds_[1] = accept4(door, nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GE(fds_[1], 0);
    close(door);
  }
  ~Connection() {
    close(fds_[0]);
    close(fds_[1]);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  int fd(int end) const { return fds_[end]; }

 private:
  int fds_[2] = {-1, -1};
};

struct Message {
  explicit Message(size_t size, int seed = 1) : bytes(size) {
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<unsigned char>(i * 7 + i / 251 + seed);
  }
  std::vector<unsigned char> bytes;
  Op op{};
};

bool done(const Message& message) { return message.op.state == kOpDone; }

// Drives until `ended` or a minute has passed.
template <typename Drive, typename Ended>
bool drive_until(Drive drive, Ended ended) {
  for (const uint64_t end = now_ns() + 60'000'000'000; !ended();) {
    if (now_ns() > end) return false;
    drive();
  }
  return true;
}

TEST(TcpZeroCopy, ASettingIsOneOfThree) {
  ZeroCopy::Mode mode = ZeroCopy::Mode::kOff;
  EXPECT_TRUE(ZeroCopy::parse(nullptr, &mode) && mode == ZeroCopy::Mode::kAuto);
  EXPECT_TRUE(ZeroCopy::parse("on", &mode) && mode == ZeroCopy::Mode::kOn);
  EXPECT_TRUE(ZeroCopy::parse("off", &mode) && mode == ZeroCopy::Mode::kOff);
  EXPECT_FALSE(ZeroCopy::parse("yes", &mode));
}

TEST(TcpZeroCopy, CallsThatComeBackInAnyOrderAreToldApart) {
  Connection connection;
  ZeroCopy it;
  it.attach(connection.fd(0), ZeroCopy::Mode::kOn);
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(it.begin(), i);
  it.given_back(3, 4, false);
  EXPECT_TRUE(it.is_back(3) && it.is_back(4));
  EXPECT_FALSE(it.is_back(0) || it.is_back(2));
  it.given_back(0, 0, false);
  EXPECT_TRUE(it.is_back(0) && it.is_back(3));
  EXPECT_FALSE(it.is_back(1));
  EXPECT_TRUE(it.holds());
  it.given_back(1, 2, false);
  EXPECT_FALSE(it.holds());
  EXPECT_TRUE(it.is_back(4));
  // More than there are, as no kernel says: nothing happens to calls to come.
  it.given_back(0, 40, false);
  EXPECT_EQ(it.begin(), 5u);
  EXPECT_FALSE(it.is_back(5));
}

TEST(TcpZeroCopy, NoMoreCallsAreHeldThanCanBeToldApart) {
  Connection connection;
  ZeroCopy it;
  it.attach(connection.fd(0), ZeroCopy::Mode::kOn);
  for (uint32_t i = 0; i < ZeroCopy::kHeldMax; ++i) {
    EXPECT_TRUE(it.choose(ZeroCopy::kBytesMin));
    (void)it.begin();
  }
  EXPECT_FALSE(it.choose(ZeroCopy::kBytesMin));
  it.given_back(0, 0, false);
  EXPECT_TRUE(it.choose(ZeroCopy::kBytesMin));
}

// Both ways in turn, with the times given.
void try_both(ZeroCopy* it, uint64_t shared_ns, uint64_t copied_ns) {
  for (uint32_t i = 0; i < 4 * ZeroCopy::kTrialCount && it->on_trial(); ++i) {
    const bool shared = it->choose(ZeroCopy::kBytesMin);
    if (shared) {
      const auto number = static_cast<uint32_t>(it->begin());
      it->given_back(number, number, false);
    }
    it->measured(shared, ZeroCopy::kBytesMin, shared ? shared_ns : copied_ns);
  }
}

TEST(TcpZeroCopy, WhatCostsLessIsKept) {
  Connection connection;
  ZeroCopy it;
  it.attach(connection.fd(0), ZeroCopy::Mode::kAuto);
  EXPECT_FALSE(it.choose(ZeroCopy::kBytesMin - 1)) << "a small message takes no part";
  EXPECT_TRUE(it.on_trial());
  try_both(&it, 5'000, 20'000);
  EXPECT_TRUE(it.choose(ZeroCopy::kBytesMin) && it.choose(ZeroCopy::kBytesMin));
  EXPECT_EQ(it.describe(), "zero-copy: measured, 78 ns per KiB against 312");

  it.attach(connection.fd(0), ZeroCopy::Mode::kAuto);
  try_both(&it, 19'000, 20'000);
  EXPECT_FALSE(it.choose(ZeroCopy::kBytesMin) || it.choose(ZeroCopy::kBytesMin));
  EXPECT_EQ(it.describe(), "copied: zero-copy does not cost less here, 297 ns per KiB against 312");
}

TEST(TcpZeroCopy, WhereTheKernelCopiesNonethelessItEndsUnlessItIsForced) {
  Connection connection;
  ZeroCopy it;
  it.attach(connection.fd(0), ZeroCopy::Mode::kAuto);
  (void)it.begin();
  it.given_back(0, 0, true);
  EXPECT_TRUE(it.is_off());
  EXPECT_NE(it.describe().find("copies nonetheless"), std::string::npos) << it.describe();

  it.attach(connection.fd(0), ZeroCopy::Mode::kOn);
  (void)it.begin();
  it.given_back(0, 0, true);
  EXPECT_FALSE(it.is_off());
}

TEST(TcpZeroCopy, AKernelWithoutRoomForPagesIsNotAskedForEver) {
  Connection connection;
  ZeroCopy it;
  it.attach(connection.fd(0), ZeroCopy::Mode::kAuto);
  for (int i = 0; i < 100 && !it.is_off(); ++i) it.refused();
  EXPECT_TRUE(it.is_off());
}

// A buffer that is changed as soon as its send is complete: what had left is what arrives.
TEST(TcpZeroCopy, ACompleteSendHasGivenItsMemoryBack) {
  constexpr size_t kBytes = 4 << 20;
  Connection connection;
  Channel sender;
  Channel receiver;
  sender.attach(Stream(connection.fd(0)), Stream(connection.fd(0)), 1, ZeroCopy::Mode::kOn);
  receiver.attach(Stream(connection.fd(1)), Stream(connection.fd(1)), 1);
  Message first(kBytes, 3);
  Message small(100, 4);
  Message second(kBytes, 5);
  const std::vector<unsigned char> sent[3] = {first.bytes, small.bytes, second.bytes};
  EXPECT_LE(sender.post_send(first.bytes.data(), kBytes, &first.op), WEIR_IN_PROGRESS);
  EXPECT_LE(sender.post_send(small.bytes.data(), 100, &small.op), WEIR_IN_PROGRESS);
  EXPECT_LE(sender.post_send(second.bytes.data(), kBytes, &second.op), WEIR_IN_PROGRESS);
  Message got[3] = {Message(kBytes), Message(100), Message(kBytes)};
  for (Message& one : got) {
    EXPECT_LE(receiver.post_recv(one.bytes.data(), one.bytes.size(), &one.op), WEIR_IN_PROGRESS);
  }
  bool changed[3] = {};
  Message* const sends[3] = {&first, &small, &second};
  const auto drive = [&] {
    sender.drive_send();
    for (int i = 0; i < 3; ++i) {
      if (changed[i] || !done(*sends[i])) continue;
      EXPECT_TRUE(i == 0 || changed[i - 1]) << "they complete in order";
      std::fill(sends[i]->bytes.begin(), sends[i]->bytes.end(), 0xee);
      changed[i] = true;
    }
    receiver.drive_recv();
  };
  ASSERT_TRUE(drive_until(drive, [&] { return changed[2] && done(got[2]); }));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(got[i].bytes == sent[i]) << "message " << i;
  EXPECT_FALSE(sender.zero_copy().holds());
  EXPECT_FALSE(sender.awaits_kernel());
  EXPECT_TRUE(sender.idle());
}

TEST(TcpZeroCopy, OverLoopbackItIsGivenUpAndToldOf) {
  constexpr size_t kBytes = 1 << 20;
  Connection connection;
  Channel sender;
  Channel receiver;
  sender.attach(Stream(connection.fd(0)), Stream(connection.fd(0)), 1, ZeroCopy::Mode::kAuto);
  receiver.attach(Stream(connection.fd(1)), Stream(connection.fd(1)), 1);
  if (sender.zero_copy().is_off()) GTEST_SKIP() << sender.zero_copy().describe();
  Message message(kBytes);
  Message got(kBytes);
  const std::vector<unsigned char> expected = message.bytes;
  bool held = false;
  for (int i = 0; i < 8 && !sender.zero_copy().is_off(); ++i) {
    message.op = {};
    got.op = {};
    std::fill(got.bytes.begin(), got.bytes.end(), 0);
    EXPECT_LE(sender.post_send(message.bytes.data(), kBytes, &message.op), WEIR_IN_PROGRESS);
    held = held || sender.zero_copy().holds();
    EXPECT_LE(receiver.post_recv(got.bytes.data(), kBytes, &got.op), WEIR_IN_PROGRESS);
    const auto drive = [&] {
      sender.drive_send();
      receiver.drive_recv();
    };
    ASSERT_TRUE(drive_until(drive, [&] { return done(message) && done(got); }));
    EXPECT_TRUE(got.bytes == expected);
  }
  if (!held) GTEST_SKIP() << "the kernel pins no pages for this process";
  EXPECT_TRUE(sender.zero_copy().is_off());
  EXPECT_EQ(sender.zero_copy().describe(),
            "copied: the kernel copies nonetheless, as it does within one host");
}

// Nobody reads, so that the kernel never sends all of it.
TEST(TcpZeroCopy, MemoryIsGivenBackThoughThePeerDoesNotRead) {
  constexpr size_t kBytes = 64 << 20;
  Connection connection;
  Channel sender;
  sender.attach(Stream(connection.fd(0)), Stream(connection.fd(0)), 1, ZeroCopy::Mode::kOn);
  if (sender.zero_copy().is_off()) GTEST_SKIP() << sender.zero_copy().describe();
  Message message(kBytes);
  EXPECT_LE(sender.post_send(message.bytes.data(), kBytes, &message.op), WEIR_IN_PROGRESS);
  if (!sender.zero_copy().holds()) GTEST_SKIP() << "the kernel pins no pages for this process";
  const uint64_t state = message.op.state;
  EXPECT_TRUE(sender.recall(now_ns()));
  EXPECT_FALSE(sender.zero_copy().holds());
  EXPECT_EQ(message.op.state, state) << "the words of the operation are left alone";
  EXPECT_TRUE(sender.idle());
}

TEST(TcpBatch, ASettingIsOneOfThree) {
  IoMode mode = IoMode::kPoll;
  EXPECT_TRUE(parse_io("", &mode) && mode == IoMode::kAuto);
  EXPECT_TRUE(parse_io("io_uring", &mode) && mode == IoMode::kUring);
  EXPECT_TRUE(parse_io("poll", &mode) && mode == IoMode::kPoll);
  EXPECT_FALSE(parse_io("epoll", &mode));
}

TEST(TcpBatch, MessagesOfMoreChannelsThanFitACallArrive) {
  std::string reason;
  const std::unique_ptr<Batch> batch = Batch::make(&reason);
  if (batch == nullptr) GTEST_SKIP() << reason;
  constexpr size_t kChannels = Batch::kSlots + 7;
  struct Pair {
    Connection connection;
    Channel ends[2];
    Message out[2] = {Message(0), Message(0)};
    Message in[2] = {Message(0), Message(0)};
  };
  const auto pairs = std::make_unique<Pair[]>(kChannels);
  for (size_t i = 0; i < kChannels; ++i) {
    Pair& pair = pairs[i];
    for (int end = 0; end < 2; ++end) {
      const Stream stream(pair.connection.fd(end));
      pair.ends[end].attach(stream, stream, 2);
      // Empty ones, some that share a call, and some that need several.
      const size_t bytes = i % 5 == 0 ? 0 : i % 3 == 0 ? 600'000 : i * 90;
      pair.out[end] = Message(bytes, static_cast<int>(2 * i) + end);
      pair.in[1 - end] = Message(bytes, -1);
    }
    for (int end = 0; end < 2; ++end) {
      Message& in = pair.in[end];
      Message& out = pair.out[end];
      EXPECT_LE(pair.ends[end].post_recv(in.bytes.data(), in.bytes.size(), &in.op),
                WEIR_IN_PROGRESS);
      EXPECT_LE(pair.ends[end].post_send(out.bytes.data(), out.bytes.size(), &out.op),
                WEIR_IN_PROGRESS);
    }
  }
  const auto all_idle = [&] {
    return std::all_of(pairs.get(), pairs.get() + kChannels,
                       [](const Pair& pair) { return pair.ends[0].idle() && pair.ends[1].idle(); });
  };
  const auto drive = [&] {
    for (size_t i = 0; i < kChannels; ++i) {
      for (Channel& end : pairs[i].ends) {
        if (end.sending()) batch->send(&end);
        if (end.receiving()) batch->receive(&end);
      }
    }
    batch->flush();
  };
  ASSERT_TRUE(drive_until(drive, all_idle));
  EXPECT_FALSE(batch->is_broken());
  for (size_t i = 0; i < kChannels; ++i) {
    for (int end = 0; end < 2; ++end) {
      EXPECT_TRUE(done(pairs[i].in[end]) && done(pairs[i].out[end])) << i;
      EXPECT_TRUE(pairs[i].in[end].bytes == pairs[i].out[1 - end].bytes) << i;
    }
  }
}

TEST(TcpBatch, AnEndedConnectionFailsItsOwnChannelOnly) {
  std::string reason;
  const std::unique_ptr<Batch> batch = Batch::make(&reason);
  if (batch == nullptr) GTEST_SKIP() << reason;
  Connection ended;
  Connection whole;
  Channel channels[2];
  Message in[2] = {Message(8), Message(8)};
  channels[0].attach(Stream(ended.fd(0)), Stream(ended.fd(0)), 0);
  channels[1].attach(Stream(whole.fd(0)), Stream(whole.fd(0)), 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(channels[i].post_recv(in[i].bytes.data(), 8, &in[i].op), WEIR_IN_PROGRESS);
  }
  EXPECT_EQ(shutdown(ended.fd(1), SHUT_RDWR), 0);
  Channel peer;
  Message out(8, 9);
  peer.attach(Stream(whole.fd(1)), Stream(whole.fd(1)), 0);
  (void)peer.post_send(out.bytes.data(), 8, &out.op);
  peer.drive_send();
  const auto drive = [&] {
    for (Channel& one : channels) {
      if (one.receiving()) batch->receive(&one);
    }
    batch->flush();
  };
  ASSERT_TRUE(drive_until(drive, [&] { return !channels[0].receiving() && done(in[1]); }));
  EXPECT_EQ(channels[0].recv_failure().result, WEIR_ERROR_PEER_LOST);
  EXPECT_TRUE(in[1].bytes == out.bytes);
}

// A filter like that of a container: io_uring_setup is not permitted.
TEST(TcpBatch, WhereIoUringIsRefusedTheReasonIsTold) {
  const pid_t child = fork();
  if (child == 0) {
    sock_filter filter[] = {
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_io_uring_setup},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
    };
    const sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      _exit(77);
    }
    std::string reason;
    const bool refused = !Batch::allowed(&reason) && Batch::make(&reason) == nullptr;
    const bool told = reason.find("io_uring") != std::string::npos;
    _exit(refused && (told || reason.find("liburing") != std::string::npos) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "no seccomp filters here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace weir::plugins::tcp
