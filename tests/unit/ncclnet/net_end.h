// SPDX-License-Identifier: Apache-2.0
// NetEnd: one end of a plugin under test, as NCCL would hold it, and helpers to play one or two
// processes. One thread at a time per end.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "ncclnet/loaded_plugin.h"

namespace weir::ncclnet {

inline uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// Calls `step` until it is true; false when that does not come.
inline bool until(const std::function<bool()>& step, uint64_t timeout_ms = 20'000) {
  const uint64_t end = monotonic_ns() + timeout_ms * 1'000'000;
  while (!step()) {
    if (monotonic_ns() > end) return false;
    usleep(100);
  }
  return true;
}

// Runs in a process of its own, so that what it does to the environment or the plugin stays there.
inline void in_child(const std::function<void()>& body) {
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    body();
    fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

struct NetEnd {
  explicit NetEnd(int version = 0, const std::string& file = WEIR_NET_PLUGIN) {
    std::string reason;
    p = open_plugin(file, version, &reason);
    EXPECT_NE(p, nullptr) << reason;
    if (p != nullptr) outcome = p->init(1, &context);
  }
  ~NetEnd() {
    if (p == nullptr) return;
    if (send_comm != nullptr) {
      EXPECT_EQ(p->close_send(send_comm), kSuccess);
    }
    if (recv_comm != nullptr) {
      EXPECT_EQ(p->close_recv(recv_comm), kSuccess);
    }
    if (listen_comm != nullptr) {
      EXPECT_EQ(p->close_listen(listen_comm), kSuccess);
    }
    if (outcome == kSuccess) {
      EXPECT_EQ(p->finalize(context), kSuccess);
    }
  }
  NetEnd(const NetEnd&) = delete;
  NetEnd& operator=(const NetEnd&) = delete;

  Result listen() { return p->listen(context, 0, handle, &listen_comm); }
  Result connect(unsigned char* to) {
    return send_comm != nullptr ? kSuccess : p->connect(context, 0, to, &send_comm);
  }
  Result accept() { return recv_comm != nullptr ? kSuccess : p->accept(listen_comm, &recv_comm); }
  // How the call ends that is asked again and again; kInProgress when it does not.
  Result finish_connect(unsigned char* to, uint64_t timeout_ms = 20'000) {
    Result result = kSuccess;
    const bool done = until(
        [&] { return (result = connect(to)) != kSuccess || send_comm != nullptr; }, timeout_ms);
    return done ? result : kInProgress;
  }
  Result finish_accept(uint64_t timeout_ms = 20'000) {
    Result result = kSuccess;
    const bool done =
        until([&] { return (result = accept()) != kSuccess || recv_comm != nullptr; }, timeout_ms);
    return done ? result : kInProgress;
  }
  Result finish(void* request, int* bytes, uint64_t timeout_ms = 20'000) {
    Result result = kSuccess;
    int is_done = 0;
    const bool done = until(
        [&] {
          result = p->test(request, &is_done, bytes);
          return result != kSuccess || is_done != 0;
        },
        timeout_ms);
    return done ? result : kInProgress;
  }

  LoadedPlugin* p = nullptr;
  void* context = nullptr;
  Result outcome = kSuccess;  // of init
  unsigned char handle[kHandleBytes] = {};
  void* listen_comm = nullptr;
  void* send_comm = nullptr;
  void* recv_comm = nullptr;
};

// `from` sends to `to` from now on.
inline void join(NetEnd* from, NetEnd* to) {
  ASSERT_EQ(from->outcome, kSuccess) << take_warning();
  ASSERT_EQ(to->outcome, kSuccess) << take_warning();
  ASSERT_EQ(to->listen(), kSuccess) << take_warning();
  ASSERT_TRUE(until([&] {
    EXPECT_EQ(from->connect(to->handle), kSuccess) << take_warning();
    EXPECT_EQ(to->accept(), kSuccess) << take_warning();
    return (from->send_comm != nullptr && to->recv_comm != nullptr) || testing::Test::HasFailure();
  }));
}

}  // namespace weir::ncclnet
