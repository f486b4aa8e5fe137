// SPDX-License-Identifier: Apache-2.0
// libnccl-net-weir.so and what goes wrong: handles, secrets, sizes, and the death of the other end
// at each stage.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>

#include "ncclnet/export/handle.h"
#include "ncclnet/loaded_plugin.h"
#include "unit/ncclnet/net_end.h"

namespace weir::ncclnet {
namespace {

bool is_error_with_text(Result result, const std::string& word) {
  const std::string warning = take_warning();
  EXPECT_NE(warning.find(word), std::string::npos) << name_of(result) << ": " << warning;
  return result != kSuccess && result != kInProgress;
}

TEST(NcclNetBadUse, AHandleOfGarbageIsRefused) {
  NetEnd a;
  ASSERT_EQ(a.outcome, kSuccess) << take_warning();
  unsigned char garbage[kHandleBytes];
  memset(garbage, 0x77, sizeof garbage);
  EXPECT_TRUE(
      is_error_with_text(a.connect(garbage), "connect: the handle was not made by NET/Weir"));
  memset(garbage, 0, sizeof garbage);
  EXPECT_TRUE(
      is_error_with_text(a.connect(garbage), "connect: the handle was not made by NET/Weir"));
  EXPECT_EQ(a.send_comm, nullptr);
}

TEST(NcclNetBadUse, AHandleOfAnotherTransportIsRefused) {
  NetEnd a, b;
  ASSERT_EQ(b.listen(), kSuccess) << take_warning();
  Handle handle;
  ASSERT_TRUE(decode(b.handle, &handle));
  EXPECT_EQ(handle.transport, "tcp");
  handle.transport = "ucx";
  encode(handle, b.handle);
  EXPECT_TRUE(is_error_with_text(a.connect(b.handle), "WEIR_NCCL_NET_TRANSPORT"));
}

// Who knows where the listener is but not its key.
TEST(NcclNetBadUse, WhoDoesNotHaveTheKeyIsTurnedAwayAndWhoHasItConnectsNonetheless) {
  NetEnd a, b, thief;
  ASSERT_EQ(b.listen(), kSuccess) << take_warning();
  unsigned char forged[kHandleBytes];
  memcpy(forged, b.handle, sizeof forged);
  forged[8 + 5] ^= 0x10;
  Result stolen = kSuccess;
  ASSERT_TRUE(until([&] {
    EXPECT_EQ(b.accept(), kSuccess) << take_warning();
    return (stolen = thief.connect(forged)) != kSuccess || thief.send_comm != nullptr;
  }));
  EXPECT_EQ(stolen, kRemoteError);
  EXPECT_EQ(thief.send_comm, nullptr);
  EXPECT_EQ(b.recv_comm, nullptr);
  EXPECT_NE(take_warning().find("does not accept the secret"), std::string::npos);
  ASSERT_TRUE(until([&] {
    EXPECT_EQ(a.connect(b.handle), kSuccess) << take_warning();
    EXPECT_EQ(b.accept(), kSuccess) << take_warning();
    return (a.send_comm != nullptr && b.recv_comm != nullptr) || HasFailure();
  }));
}

TEST(NcclNetBadUse, TheJobsSecretIsNeededOnBothEndsOrNone) {
  in_child([] {
    setenv("WEIR_SECRET", "a secret of more than thirty-two characters", 1);
    NetEnd a, b;
    join(&a, &b);
    Handle handle;
    ASSERT_TRUE(decode(b.handle, &handle));
    EXPECT_TRUE(handle.needs_job_secret);
    EXPECT_EQ(getenv("WEIR_SECRET"), nullptr);
    NetEnd c;
    handle.needs_job_secret = false;
    unsigned char without[kHandleBytes];
    encode(handle, without);
    EXPECT_TRUE(is_error_with_text(c.connect(without), "WEIR_SECRET_FILE"));
  });
  NetEnd a, b;
  ASSERT_EQ(b.listen(), kSuccess) << take_warning();
  Handle handle;
  ASSERT_TRUE(decode(b.handle, &handle));
  EXPECT_FALSE(handle.needs_job_secret);
  handle.needs_job_secret = true;
  encode(handle, b.handle);
  EXPECT_TRUE(is_error_with_text(a.connect(b.handle), "the peer has a job secret"));
}

TEST(NcclNetBadUse, AListenerTakesOneConnection) {
  NetEnd a, b;
  join(&a, &b);
  if (HasFatalFailure()) return;
  void* second = nullptr;
  EXPECT_TRUE(is_error_with_text(b.p->accept(b.listen_comm, &second), "a second accept"));
  EXPECT_EQ(second, nullptr);
}

TEST(NcclNetBadUse, AMessageLongerThanItsReceiveIsAnErrorWithBothLengths) {
  NetEnd a, b;
  join(&a, &b);
  if (HasFatalFailure()) return;
  std::vector<unsigned char> out(70'000), in(60'000);
  void* sent = nullptr;
  void* received = nullptr;
  ASSERT_EQ(b.p->irecv(b.recv_comm, in.data(), in.size(), nullptr, &received), kSuccess);
  ASSERT_EQ(a.p->isend(a.send_comm, out.data(), out.size(), nullptr, &sent), kSuccess);
  int bytes = 0;
  EXPECT_EQ(b.finish(received, &bytes), kInvalidUsage);
  const std::string text = take_warning();
  EXPECT_NE(text.find("70000"), std::string::npos) << text;
  EXPECT_NE(text.find("60000"), std::string::npos) << text;
  void* next = nullptr;
  EXPECT_EQ(b.p->irecv(b.recv_comm, in.data(), in.size(), nullptr, &next), kInvalidUsage);
}

TEST(NcclNetBadUse, WhatCameBeforeAnErrorIsStillGivenOut) {
  NetEnd a, b;
  join(&a, &b);
  if (HasFatalFailure()) return;
  uint64_t out = 42, in[2] = {};
  std::vector<unsigned char> large(1000);
  void* sent[2] = {};
  void* received[2] = {};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(b.p->irecv(b.recv_comm, &in[i], 8, nullptr, &received[i]), kSuccess);
  }
  ASSERT_EQ(a.p->isend(a.send_comm, &out, 8, nullptr, &sent[0]), kSuccess);
  ASSERT_EQ(a.p->isend(a.send_comm, large.data(), large.size(), nullptr, &sent[1]), kSuccess);
  int bytes = 0;
  EXPECT_EQ(b.finish(received[1], &bytes), kInvalidUsage) << "1000 bytes do not fit into 8";
  ASSERT_EQ(b.finish(received[0], &bytes), kSuccess);
  EXPECT_EQ(bytes, 8);
  EXPECT_EQ(in[0], 42u);
}

TEST(NcclNetBadUse, WhatIsNoConnectionOfThisKindIsRefused) {
  NetEnd a, b;
  join(&a, &b);
  if (HasFatalFailure()) return;
  void* request = nullptr;
  int word = 0, done = 0;
  EXPECT_EQ(a.p->isend(b.recv_comm, &word, 4, nullptr, &request), kInternalError);
  EXPECT_EQ(a.p->irecv(a.send_comm, &word, 4, nullptr, &request), kInternalError);
  EXPECT_EQ(a.p->isend(nullptr, &word, 4, nullptr, &request), kInternalError);
  EXPECT_EQ(a.p->test(nullptr, &done, nullptr), kInternalError);
  EXPECT_EQ(a.p->close_send(b.recv_comm), kInternalError);
  EXPECT_EQ(a.p->close_listen(nullptr), kInternalError);
  EXPECT_EQ(a.p->listen(a.context, 99, a.handle, &request), kInternalError);
  EXPECT_EQ(a.p->connect(a.context, 99, b.handle, &request), kInternalError);
  EXPECT_EQ(a.p->listen(nullptr, 0, a.handle, &request), kInternalError);
}

TEST(NcclNetBadUse, NobodyAtTheOtherEndEndsAtTheTimeout) {
  in_child([] {
    setenv("WEIR_TIMEOUT_MS", "250", 1);
    NetEnd a, b;
    ASSERT_EQ(b.listen(), kSuccess) << take_warning();
    EXPECT_EQ(b.finish_accept(), kRemoteError);
    EXPECT_NE(take_warning().find("timed out"), std::string::npos);
    NetEnd c;
    ASSERT_EQ(c.listen(), kSuccess) << take_warning();
    // It listens, and never accepts.
    EXPECT_EQ(a.finish_connect(c.handle), kRemoteError);
    EXPECT_NE(take_warning().find("timed out"), std::string::npos);
  });
}

TEST(NcclNetBadUse, AListenerThatIsClosedWhileItWaitsGivesItsPortBack) {
  NetEnd b;
  ASSERT_EQ(b.listen(), kSuccess) << take_warning();
  Handle handle;
  ASSERT_TRUE(decode(b.handle, &handle));
  ASSERT_EQ(b.accept(), kSuccess);
  ASSERT_EQ(b.p->close_listen(b.listen_comm), kSuccess);
  b.listen_comm = nullptr;
  const control::Offer& offer = handle.address.offers[0];
  sockaddr_storage name;
  const socklen_t bytes = net::to_sockaddr(offer.address, offer.port, &name);
  EXPECT_TRUE(until([&] {
    const int fd = socket(name.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool refused =
        ::connect(fd, reinterpret_cast<sockaddr*>(&name), bytes) != 0 && errno == ECONNREFUSED;
    ::close(fd);
    return refused;
  }));
}

// ---- Death of the other end ---------------------------------------------------------------------

// Two processes: `victim` runs in a child, which is killed when it has set `ready`; then `survivor`
// runs here.
struct Board {
  std::atomic<int> handle_ready;
  unsigned char handle[kHandleBytes];
  std::atomic<int> ready;
};

void with_victim(
    const std::function<void(Board*)>& victim,
    const std::function<void(Board*, const std::function<void()>& kill_it)>& survivor) {
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* board = static_cast<Board*>(memory);
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    victim(board);
    for (;;) pause();
  }
  bool killed = false;
  const auto kill_it = [&] {
    if (killed) return;
    EXPECT_TRUE(until([&] { return board->ready != 0; }));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    killed = true;
  };
  survivor(board, kill_it);
  board->ready = 1;
  kill_it();
  munmap(memory, sizeof(Board));
}

void tell_handle(NetEnd* end, Board* board) {
  EXPECT_EQ(end->listen(), kSuccess) << take_warning();
  memcpy(board->handle, end->handle, sizeof board->handle);
  board->handle_ready = 1;
}

void await_handle(Board* board) {
  EXPECT_TRUE(until([&] { return board->handle_ready != 0; }));
}

TEST(NcclNetDeath, OfWhoListenedEndsAConnect) {
  with_victim(
      [](Board* board) {
        NetEnd b;
        tell_handle(&b, board);
        board->ready = 1;
        for (;;) pause();
      },
      [](Board* board, const auto& kill_it) {
        await_handle(board);
        kill_it();
        in_child([&] {
          setenv("WEIR_TIMEOUT_MS", "300", 1);
          NetEnd a;
          EXPECT_EQ(a.finish_connect(board->handle), kRemoteError);
          EXPECT_NE(take_warning().find("connect: "), std::string::npos);
        });
      });
}

TEST(NcclNetDeath, OfWhoWasConnectingEndsAnAccept) {
  in_child([] {
    setenv("WEIR_TIMEOUT_MS", "600", 1);
    with_victim(
        [](Board* board) {
          await_handle(board);
          NetEnd a;
          (void)a.connect(board->handle);
          usleep(20'000);
          board->ready = 1;
          for (;;) pause();
        },
        [](Board* board, const auto& kill_it) {
          NetEnd b;
          tell_handle(&b, board);
          kill_it();
          EXPECT_EQ(b.finish_accept(), kRemoteError);
          EXPECT_NE(take_warning().find("accept: "), std::string::npos);
        });
  });
}

TEST(NcclNetDeath, OfTheSenderEndsAReceiveThatIsPosted) {
  with_victim(
      [](Board* board) {
        await_handle(board);
        NetEnd a;
        EXPECT_EQ(a.finish_connect(board->handle), kSuccess) << take_warning();
        board->ready = 1;
        for (;;) pause();
      },
      [](Board* board, const auto& kill_it) {
        NetEnd b;
        tell_handle(&b, board);
        ASSERT_EQ(b.finish_accept(), kSuccess) << take_warning();
        uint64_t word = 0;
        void* request = nullptr;
        ASSERT_EQ(b.p->irecv(b.recv_comm, &word, 8, nullptr, &request), kSuccess);
        kill_it();
        int bytes = 0;
        EXPECT_EQ(b.finish(request, &bytes), kRemoteError);
        EXPECT_NE(take_warning().find("lost"), std::string::npos);
      });
}

TEST(NcclNetDeath, OfTheSenderInTheMiddleOfAMessageEndsIt) {
  with_victim(
      [](Board* board) {
        await_handle(board);
        NetEnd a;
        EXPECT_EQ(a.finish_connect(board->handle), kSuccess) << take_warning();
        static std::vector<unsigned char> data(64u << 20, 3);
        void* request = nullptr;
        EXPECT_EQ(a.p->isend(a.send_comm, data.data(), data.size(), nullptr, &request), kSuccess);
        board->ready = 1;
        for (;;) pause();
      },
      [](Board* board, const auto& kill_it) {
        NetEnd b;
        tell_handle(&b, board);
        ASSERT_EQ(b.finish_accept(), kSuccess) << take_warning();
        std::vector<unsigned char> data(64u << 20);
        void* request = nullptr;
        ASSERT_EQ(b.p->irecv(b.recv_comm, data.data(), data.size(), nullptr, &request), kSuccess);
        kill_it();
        int bytes = 0;
        EXPECT_EQ(b.finish(request, &bytes), kRemoteError);
        EXPECT_NE(take_warning().find("lost"), std::string::npos);
      });
}

TEST(NcclNetDeath, OfTheReceiverEndsASend) {
  with_victim(
      [](Board* board) {
        NetEnd b;
        tell_handle(&b, board);
        EXPECT_EQ(b.finish_accept(), kSuccess) << take_warning();
        board->ready = 1;
        for (;;) pause();
      },
      [](Board* board, const auto& kill_it) {
        await_handle(board);
        NetEnd a;
        ASSERT_EQ(a.finish_connect(board->handle), kSuccess) << take_warning();
        std::vector<unsigned char> data(64u << 20, 3);
        void* request = nullptr;
        ASSERT_EQ(a.p->isend(a.send_comm, data.data(), data.size(), nullptr, &request), kSuccess);
        kill_it();
        int bytes = 0;
        EXPECT_EQ(a.finish(request, &bytes), kRemoteError);
        EXPECT_NE(take_warning().find("lost"), std::string::npos);
      });
}

// What was done for the sender comes, though it has closed its end; then it is told that there is
// no more.
TEST(NcclNetDeath, ACloseInOrderLeavesWhatWasSent) {
  NetEnd a, b;
  join(&a, &b);
  if (HasFatalFailure()) return;
  std::vector<unsigned char> out(100'000, 9), in(100'000);
  void* request = nullptr;
  ASSERT_EQ(a.p->isend(a.send_comm, out.data(), out.size(), nullptr, &request), kSuccess);
  ASSERT_EQ(a.finish(request, nullptr), kSuccess);
  ASSERT_EQ(a.p->close_send(a.send_comm), kSuccess);
  a.send_comm = nullptr;
  int bytes = 0;
  ASSERT_EQ(b.p->irecv(b.recv_comm, in.data(), in.size(), nullptr, &request), kSuccess);
  ASSERT_EQ(b.finish(request, &bytes), kSuccess) << take_warning();
  EXPECT_EQ(in, out);
  const Result posted = b.p->irecv(b.recv_comm, in.data(), in.size(), nullptr, &request);
  EXPECT_EQ(posted != kSuccess ? posted : b.finish(request, &bytes), kRemoteError);
  EXPECT_NE(take_warning().find("has closed"), std::string::npos);
}

}  // namespace
}  // namespace weir::ncclnet
