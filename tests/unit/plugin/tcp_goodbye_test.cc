// SPDX-License-Identifier: Apache-2.0
// How the end of rails is understood: a rank that leaves says so on connections that it has not
// used, too, and one whose rails have ended without a word is not called dead while it lives.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "core/plugin/registry.h"
#include "plugins/tcp/instance.h"
#include "plugins/tcp/rejoin.h"
#include "unit/plugin/pair.h"

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kPatienceNs = 60'000'000'000;

class TcpGoodbye : public testing::Test {
 protected:
  void join(const char* rails, const char* tls = "off") {
    for (Pair::End& end : pair_.end) {
      end.settings = {{"WEIR_TCP_CONNECTIONS", rails}, {"WEIR_TCP_LAZY", "1"}, {"WEIR_TLS", tls}};
    }
    pair_.join();
  }
  weir_result_t finish_alone(uint32_t i, weir_transport_op_t* op, weir_result_t result) {
    const uint64_t end_ns = plugins::monotonic_ns() + kPatienceNs;
    while (result == WEIR_IN_PROGRESS && plugins::monotonic_ns() < end_ns) {
      (void)pair_.f.progress(pair_.end[i].instance);
      result = pair_.f.test(pair_.end[i].instance, op);
    }
    return result;
  }
  Bundle& bundle(uint32_t of) { return *from(pair_.end[of].instance)->bundle_of(1 - of); }
  const std::string& error(uint32_t i) const { return pair_.end[i].error; }

  Pair pair_{plugin::find_transport("tcp").value()};
};

// It makes no call after the start; the control network makes the connections for it meanwhile.
TEST_F(TcpGoodbye, ARankThatHasNotUsedARailSaysGoodbyeOnIt) {
  for (const char* tls : {"off", "control", "all"}) {
    for (const uint32_t idle : {0u, 1u}) {
      SCOPED_TRACE(std::string(tls) + ", rank " + std::to_string(idle) + " is idle");
      ASSERT_NO_FATAL_FAILURE(join("3", tls));
      const uint32_t user = 1 - idle;
      uint64_t value = 7;
      weir_transport_op_t out{};
      const weir_result_t sent =
          finish_alone(user, &out, pair_.send(user, &value, sizeof value, &out));
      ASSERT_EQ(sent, WEIR_OK) << error(user);
      ASSERT_TRUE(bundle(user).has_begun());
      ASSERT_EQ(from(pair_.end[idle].instance)->peers[user], nullptr);
      pair_.f.close(pair_.end[idle].instance);
      pair_.end[idle].instance = nullptr;
      weir_transport_op_t in{};
      EXPECT_EQ(finish_alone(user, &in, pair_.recv(user, &value, sizeof value, &in)),
                WEIR_ERROR_PEER_LOST);
      EXPECT_NE(error(user).find("has closed the communicator"), std::string::npos) << error(user);
      EXPECT_TRUE(bundle(user).left());
      EXPECT_EQ(pair_.f.peer_alive(pair_.end[user].instance, idle), WEIR_OK);
      pair_.close();
    }
  }
}

class NoConnector final : public Rejoin::Connector {
  void connect(uint32_t, const Subject&, const std::vector<Way>&, uint64_t) override {}
};

// The peer may have both.
TEST(TcpRejoin, AGoodbyeGoesOverTheOneConnectionOfARailThatHasCome) {
  int control[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, control), 0);
  Bundle bundle(2);
  NoConnector connector;
  Rejoin rejoin(Report{nullptr}, &connector);
  rejoin.add(0, true, &bundle, std::vector<std::vector<Way>>(2, std::vector<Way>(1)));
  rejoin.joined(0, {kControlLane, 1, 2, 1}, Stream(control[0]), 0);
  Control peer;
  peer.attach(Stream(control[1]));
  wire::PeerState state;
  state.rail_count = 2;
  peer.send_state(state);
  rejoin.say_goodbye();
  peer.receive();
  EXPECT_TRUE(peer.left());
  EXPECT_FALSE(bundle.has_begun());
  peer.stream().close();
}

struct Ends {
  Ends() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, data), 0);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, control), 0);
  }
  int data[2] = {-1, -1};
  int control[2] = {-1, -1};
};

// Its goodbye comes over the rail that both have; the message is on the one whose connections this
// rank has not taken yet.
TEST(TcpRejoin, AMessageOfAPeerThatHasLeftComesOverARailThatComesLater) {
  for (const bool comes : {true, false}) {
    Bundle bundle(2);
    NoConnector connector;
    Rejoin rejoin(Report{nullptr}, &connector);
    rejoin.add(0, true, &bundle, std::vector<std::vector<Way>>(2, std::vector<Way>(1)));
    const Ends first, second;
    rejoin.joined(0, {kControlLane, 0, 2, 1}, Stream(first.control[0]), 0);
    rejoin.joined(0, {kRailLane, 0, 2, 1}, Stream(first.data[0]), 0);
    ASSERT_EQ(bundle.up_count(), 1u);
    Bundle peer(2);
    peer.attach(1, Stream(second.data[1]), Stream(second.control[1]), 1);
    uint64_t sent = 7, got = 0;
    Op out{}, in{};
    ASSERT_EQ(peer.post_send(0, &sent, sizeof sent, &out), WEIR_OK);
    ASSERT_EQ(bundle.post_recv(0, &got, sizeof got, &in), WEIR_IN_PROGRESS);
    Control goodbye;
    goodbye.attach(Stream(first.control[1]));
    goodbye.say_goodbye();
    goodbye.stream().close();
    close(first.data[1]);
    const uint64_t began_ns = plugins::monotonic_ns();
    while (!bundle.left()) bundle.drive();
    EXPECT_EQ(in.state, kOpPending);
    if (comes) {
      rejoin.joined(0, {kControlLane, 1, 2, 1}, Stream(second.control[0]), 0);
      rejoin.joined(0, {kRailLane, 1, 2, 1}, Stream(second.data[0]), 0);
    }
    while (in.state == kOpPending && plugins::monotonic_ns() < began_ns + kPatienceNs) {
      peer.drive();
      bundle.drive();
    }
    EXPECT_EQ(in.state, comes ? kOpDone : kOpFailed + WEIR_ERROR_PEER_LOST);
    EXPECT_EQ(got, comes ? 7u : 0u);
    if (comes) continue;
    EXPECT_GE(plugins::monotonic_ns() - began_ns, 400'000'000u) << "it may still come";
    close(second.data[0]);
    close(second.control[0]);
  }
}

// The peer has both connections of a rail, and sends over it; one of them has not come here when
// the rail fails.
TEST(TcpRejoin, AMessageOverAConnectionThatDidNotComeComesOverAnotherRail) {
  const Ends first, second;
  Bundle bundle(2), peer(2);
  peer.attach(0, Stream(first.data[1]), Stream(first.control[1]), 1);
  uint64_t sent = 7, got = 0;
  Op out{}, in{};
  ASSERT_EQ(peer.post_send(0, &sent, sizeof sent, &out), WEIR_OK);
  bundle.attach(1, Stream(second.data[0]), Stream(second.control[0]), 1);
  peer.attach(1, Stream(second.data[1]), Stream(second.control[1]), 1);
  ASSERT_EQ(bundle.post_recv(0, &got, sizeof got, &in), WEIR_IN_PROGRESS);
  close(first.data[0]);
  close(first.control[0]);
  const uint64_t began_ns = plugins::monotonic_ns();
  while (peer.up_count() == 2) peer.drive();
  EXPECT_FALSE(peer.is_acknowledged()) << "it is not known what has come";
  while (in.state == kOpPending && plugins::monotonic_ns() < began_ns + kPatienceNs) {
    peer.drive();
    bundle.drive();
  }
  EXPECT_EQ(in.state, kOpDone);
  EXPECT_EQ(got, 7u);
  EXPECT_TRUE(peer.is_acknowledged());
  // Both know that the next connection of the rail is its second.
  EXPECT_EQ(bundle.returns(0), 1u);
  EXPECT_TRUE(bundle.may_return(0));
  EXPECT_TRUE(peer.may_return(0));
}

// As above, of a rail that returns: the peer's word comes when it is too late.
TEST(TcpRejoin, AWelcomeToAConnectionThatThePeerHasEndedCountsNoMore) {
  const Ends first, other, again;
  Bundle bundle(2), peer(2);
  NoConnector connector;
  Rejoin rejoin(Report{nullptr}, &connector);
  rejoin.add(0, true, &bundle, std::vector<std::vector<Way>>(2, std::vector<Way>(1)));
  const auto drive = [&] {
    peer.drive();
    bundle.drive();
  };
  bundle.attach(0, Stream(first.data[0]), Stream(first.control[0]), 1);
  peer.attach(0, Stream(first.data[1]), Stream(first.control[1]), 1);
  bundle.attach(1, Stream(other.data[0]), Stream(other.control[0]), 1);
  peer.attach(1, Stream(other.data[1]), Stream(other.control[1]), 1);
  shutdown(first.data[0], SHUT_RDWR);
  shutdown(first.control[0], SHUT_RDWR);
  const uint64_t end_ns = plugins::monotonic_ns() + kPatienceNs;
  uint64_t value = 7;
  Op in{}, out{};
  const auto exchange = [&] {
    in = out = Op{};
    ASSERT_EQ(bundle.post_recv(0, &value, sizeof value, &in), WEIR_IN_PROGRESS);
    ASSERT_EQ(peer.post_send(0, &value, sizeof value, &out), WEIR_OK);
    while (in.state == kOpPending && plugins::monotonic_ns() < end_ns) drive();
    ASSERT_EQ(in.state, kOpDone);
  };
  while (!(bundle.may_return(0) && peer.may_return(0)) && plugins::monotonic_ns() < end_ns) {
    exchange();
  }
  ASSERT_TRUE(bundle.may_return(0) && peer.may_return(0));
  uint64_t now_ns = plugins::monotonic_ns();
  for (int i = 0; i < 2; ++i) rejoin.step(now_ns += 1'000'000'000);  // connects
  rejoin.joined(0, {kControlLane, 0, 2, 2}, Stream(again.control[0]), now_ns);
  rejoin.joined(0, {kRailLane, 0, 2, 2}, Stream(again.data[0]), now_ns);
  // The peer welcomes it, uses it and ends it, and says so over the other rail.
  ASSERT_EQ(write(again.data[1], &kWelcome, 1), 1);
  peer.attach(0, Stream(again.data[1]), Stream(again.control[1]), 2);
  while (peer.up_count() == 2 && plugins::monotonic_ns() < end_ns) {
    shutdown(again.data[1], SHUT_RD);
    peer.drive();
  }
  ASSERT_EQ(peer.up_count(), 1u);
  while (bundle.returns(0) != 2 && plugins::monotonic_ns() < end_ns) exchange();
  ASSERT_EQ(bundle.returns(0), 2u);
  rejoin.step(now_ns += 20'000'000);
  EXPECT_EQ(bundle.up_count(), 1u);
  char byte = 0;
  EXPECT_EQ(recv(again.data[0], &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EBADF) << "it is not closed";
}

// As where only the network between them is gone.
TEST_F(TcpGoodbye, APeerWhoseRailsHaveAllEndedCannotBeReachedAndIsNotDead) {
  ASSERT_NO_FATAL_FAILURE(join("2"));
  uint64_t value = 7, got = 0;
  weir_transport_op_t in{}, out{};
  const weir_result_t posted = pair_.recv(1, &got, sizeof got, &in);
  ASSERT_LE(pair_.send(0, &value, sizeof value, &out), WEIR_IN_PROGRESS);
  ASSERT_EQ(pair_.wait(1, &in, posted), WEIR_OK);
  const uint64_t end_ns = plugins::monotonic_ns() + kPatienceNs;
  while (bundle(0).any_down() || bundle(1).any_down()) {
    ASSERT_LT(plugins::monotonic_ns(), end_ns);
    for (Pair::End& end : pair_.end) (void)pair_.f.progress(end.instance);
  }
  for (uint32_t rail = 0; rail < 2; ++rail) {
    shutdown(bundle(0).data_stream(rail).fd(), SHUT_RDWR);
    shutdown(bundle(0).control(rail).fd(), SHUT_RDWR);
  }
  in = {};
  EXPECT_EQ(finish_alone(1, &in, pair_.recv(1, &got, sizeof got, &in)), WEIR_ERROR_PEER_LOST);
  ASSERT_TRUE(bundle(1).lost());
  EXPECT_EQ(pair_.f.peer_alive(pair_.end[1].instance, 0), WEIR_OK)
      << "the control network may still tell why: " << error(1);
  weir_result_t alive = WEIR_OK;
  while (alive == WEIR_OK && plugins::monotonic_ns() < end_ns) {
    usleep(1000);
    alive = pair_.f.peer_alive(pair_.end[1].instance, 0);
  }
  EXPECT_EQ(alive, WEIR_ERROR_PEER_LOST);
  EXPECT_NE(error(1).find("rank 0 cannot be reached"), std::string::npos) << error(1);
  EXPECT_EQ(error(1).find("dead: "), std::string::npos) << error(1);
  // When it has left in order, nothing is wrong.
  pair_.f.close(pair_.end[0].instance);
  pair_.end[0].instance = nullptr;
  pair_.end[0].control.reset();
  while (pair_.f.peer_alive(pair_.end[1].instance, 0) != WEIR_OK) {
    ASSERT_LT(plugins::monotonic_ns(), end_ns) << error(1);
    usleep(1000);
  }
}

}  // namespace
}  // namespace weir::plugins::tcp
