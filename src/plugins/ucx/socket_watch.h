// SPDX-License-Identifier: Apache-2.0
// SocketWatch: bounds the time that UCX takes to end a connection over tcp. UCX (1.13.1) tells the
// peer of the end with a message, and sends that in a loop for as long as the socket takes nothing:
// to a host whose link is cut that is until the kernel gives the connection up, after a quarter of
// an hour. A watch that lives for longer than its patience shuts those of UCX's sockets that have
// unsent or unanswered data, or are not connected yet; UCX then sees an error and goes on.
//
// UCX does not tell its sockets. It has them in epoll sets of its own, and the kernel tells what is
// in a set (/proc/self/fdinfo).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace weir::plugins::ucx {

// The epoll descriptors of this process, ascending. Those that appear during ucp_worker_create are
// UCX's.
std::vector<int> epoll_descriptors();

// Shuts the TCP sockets in these epoll sets that are not connected, or have sent what the peer has
// not acknowledged for a second. Returns their number.
int shut_stuck_sockets(const std::vector<int>& epolls);

class SocketWatch {
 public:
  static constexpr std::chrono::milliseconds kPatience{1000};

  // Without epoll sets it does nothing.
  explicit SocketWatch(std::vector<int> epolls, std::chrono::milliseconds patience = kPatience);
  ~SocketWatch();
  SocketWatch(const SocketWatch&) = delete;
  SocketWatch& operator=(const SocketWatch&) = delete;

 private:
  void run();

  const std::vector<int> epolls_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace weir::plugins::ucx
