// SPDX-License-Identifier: Apache-2.0
// The watch over UCX's sockets: which it shuts, and that a loop like UCX's ends because of it.
#include "plugins/ucx/socket_watch.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace weir::plugins::ucx {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) { EXPECT_GE(fd, 0); }
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor(const Descriptor&) = delete;

  int get() const { return fd_; }
  void reset() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  int fd_;
};

class SocketWatchTest : public testing::Test {
 protected:
  SocketWatchTest()
      : epoll_(epoll_create1(EPOLL_CLOEXEC)), listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
    // One connection waits to be accepted; the next one is not answered.
    EXPECT_EQ(listen(listener_.get(), 0), 0);
    watch(listener_);
  }

  Descriptor connect_one() {
    sockaddr_in address{};
    socklen_t bytes = sizeof address;
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    const int rc = connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    EXPECT_TRUE(rc == 0 || errno == EINPROGRESS);
    return client;
  }
  void watch(const Descriptor& one) const {
    epoll_event event{};
    event.data.fd = one.get();
    EXPECT_EQ(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, one.get(), &event), 0);
  }
  std::vector<int> epolls() const { return {epoll_.get()}; }

  // As UCX sends the end of a connection.
  static int send_in_a_loop(int fd) {
    const std::array<char, 9> text{};
    ssize_t sent = 0;
    do {
      sent = send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    } while (sent >= 0 || errno == EAGAIN);
    return errno;
  }

  Descriptor epoll_;
  Descriptor listener_;
};

TEST_F(SocketWatchTest, EpollSetsAreFound) {
  const std::vector<int> all = epoll_descriptors();
  EXPECT_TRUE(std::binary_search(all.begin(), all.end(), epoll_.get()));
  EXPECT_FALSE(std::binary_search(all.begin(), all.end(), listener_.get()));
}

TEST_F(SocketWatchTest, ALoopOverASocketThatTakesNothingEnds) {
  const Descriptor client = connect_one();
  watch(client);
  const auto begin = std::chrono::steady_clock::now();
  const SocketWatch bound(epolls(), std::chrono::milliseconds(200));
  EXPECT_EQ(send_in_a_loop(client.get()), EPIPE);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST_F(SocketWatchTest, AConnectionThatIsIdleOrListensStays) {
  const Descriptor client = connect_one();
  watch(client);
  EXPECT_EQ(shut_stuck_sockets(epolls()), 0);
  EXPECT_EQ(send(client.get(), "x", 1, MSG_NOSIGNAL), 1);
}

TEST_F(SocketWatchTest, AConnectionThatIsNotAnsweredIsShut) {
  const Descriptor first = connect_one();
  const Descriptor second = connect_one();
  watch(second);
  EXPECT_EQ(shut_stuck_sockets(epolls()), 1);
}

// The number of a descriptor may belong to another file than when it was added.
TEST_F(SocketWatchTest, ASocketThatIsNotInTheSetStays) {
  const Descriptor first = connect_one();
  Descriptor second = connect_one();
  watch(second);
  const int number = second.get();
  const Descriptor copy(dup(number));
  second.reset();
  const Descriptor other = connect_one();
  ASSERT_EQ(other.get(), number);
  EXPECT_EQ(shut_stuck_sockets(epolls()), 0);
}

TEST_F(SocketWatchTest, WithoutSetsItDoesNothing) {
  const SocketWatch none({}, std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace weir::plugins::ucx
