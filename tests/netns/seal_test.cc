// SPDX-License-Identifier: Apache-2.0
// What somebody sees who listens between two hosts: every packet of rank 1's host is kept and
// searched for what the ranks tell each other.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "net/handshake.h"
#include "netns/lab.h"
#include "support/collective_checks.h"

namespace weir::test {
namespace {

const std::string kWords = "what nobody but the two may read";
// The first bytes of each frame of the bootstrap: magic and version.
const std::string kBootstrap{'W', 'E', 'I', 'R', net::Handshake::kProtocolVersion, 0};

class OnTheWire : public testing::Test {
 protected:
  void SetUp() override {
    static const std::string reason = why_no_lab();
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

// All packets of the host that this process is on, until it is read.
class Capture {
 public:
  void open() {
    socket_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(ETH_P_ALL));
    ASSERT_GE(socket_, 0) << "AF_PACKET: " << errno;
    const int bytes = 64 << 20;
    if (setsockopt(socket_, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0) {
      (void)setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
  }
  // Packets that have come so far.
  std::vector<std::string> take() {
    std::vector<std::string> packets;
    std::vector<char> one(256 * 1024);
    for (;;) {
      const ssize_t got = recv(socket_, one.data(), one.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return packets;
      packets.emplace_back(one.data(), static_cast<size_t>(got));
    }
  }

 private:
  int socket_ = -1;  // until the process ends
};

size_t packets_with(const std::vector<std::string>& packets, const std::string& words) {
  size_t count = 0;
  for (const std::string& one : packets) count += one.find(words) != std::string::npos;
  return count;
}

struct Seen {
  bool messages;
  bool bootstrap;
};

void listen_between(const std::string& transport, const std::string& mode, const Seen& expected) {
  SCOPED_TRACE(transport + " with WEIR_TLS=" + mode);
  Capture capture;
  LabOptions options;
  options.hosts = {{0}, {1}};
  options.environment = {{"WEIR_TRANSPORT", transport}, {"WEIR_TLS", mode}, {"UCX_TLS", "tcp"}};
  options.before = [&](int rank) {
    if (rank == 1) capture.open();
  };
  run_in_lab(options, [&](int rank, weir_comm_t comm) {
    for (const size_t bytes : {size_t{128}, size_t{64 * 1024}}) {
      std::string own;
      while (own.size() < bytes) own += kWords;
      std::string all(2 * bytes, 0);
      ASSERT_EQ(weir_all_gather(comm, own.data(), all.data(), bytes, WEIR_UINT8, nullptr), WEIR_OK)
          << weir_last_error(comm);
      EXPECT_EQ(all.substr(0, bytes), own.substr(0, bytes));
      EXPECT_EQ(all.substr(bytes), own.substr(0, bytes));
    }
    if (rank == 1) {
      const std::vector<std::string> packets = capture.take();
      EXPECT_GT(packets.size(), 20u) << "the wire was listened to";
      EXPECT_EQ(packets_with(packets, kWords) != 0, expected.messages);
      EXPECT_EQ(packets_with(packets, kBootstrap) != 0, expected.bootstrap);
    }
    ASSERT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
  });
}

void listen_to_all_modes(const std::string& transport) {
  listen_between(transport, "off", {.messages = true, .bootstrap = true});
  listen_between(transport, "control", {.messages = true, .bootstrap = false});
  listen_between(transport, "all", {.messages = false, .bootstrap = false});
}

TEST_F(OnTheWire, OverTcpNothingIsReadThatWasToBeEncrypted) { listen_to_all_modes("tcp"); }

#ifdef WEIR_TEST_UCX
TEST_F(OnTheWire, OverUcxNothingIsReadThatWasToBeEncrypted) { listen_to_all_modes("ucx"); }
#endif

#ifdef WEIR_TEST_OFI
TEST_F(OnTheWire, OverOfiNothingIsReadThatWasToBeEncrypted) { listen_to_all_modes("ofi"); }
#endif

void collectives_hold(const std::string& transport) {
  run_in_lab(
      {.hosts = {{0, 2}, {1}},
       .environment = {{"WEIR_TRANSPORT", transport}, {"WEIR_TLS", "all"}, {"UCX_TLS", "tcp"}}},
      [](int, weir_comm_t comm) {
        for (const size_t count : {size_t{255}, size_t{70'001}}) {
          check_every_collective(comm, count);
        }
      });
}

#ifdef WEIR_TEST_UCX
TEST_F(OnTheWire, OverSealedUcxTheResultsAreTheSame) { collectives_hold("ucx"); }
TEST_F(OnTheWire, BesideSharedMemoryUcxIsSealedBetweenHosts) { collectives_hold("shm,ucx"); }
#endif
#ifdef WEIR_TEST_OFI
TEST_F(OnTheWire, OverSealedOfiTheResultsAreTheSame) { collectives_hold("ofi"); }
#endif

}  // namespace
}  // namespace weir::test
