// SPDX-License-Identifier: Apache-2.0
// Clients and hosts that are not what they should be: none gets in, none holds the others up, and
// what they did appears in the error when there is one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <functional>
#include <thread>

#include "core/base/clock.h"
#include "core/comm/start/bootstrap_tree.h"
#include "net/little_endian.h"
#include "net/unix_socket.h"
#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

using testing::HasSubstr;
constexpr uint64_t kPatienceNs = 20'000'000'000;
constexpr uint16_t kOwnVersion = net::Handshake::kProtocolVersion;

void expect_all_ok(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.text();
  }
}

// Rank 0 of two waits; `intrude` does its worst; then rank 1 comes, and all is as if nothing had
// been.
void expect_formed_in_spite_of(const std::function<void(const Secret&)>& intrude) {
  const Secret secret = fresh_secret();
  std::vector<Outcome> outcomes(2);
  std::thread zero([&] { outcomes[0] = play(secret, {0, 2}); });
  intrude(secret);
  outcomes[1] = play(secret, {1, 2});
  zero.join();
  expect_all_ok(outcomes);
}

// Says hello and waits for the challenge; then what it has to say as proof.
std::string challenged(Stranger* stranger, const Secret& secret, Rank rank) {
  net::Handshake client = client_of({secret, rank, 2, now_ns() + kPatienceNs});
  stranger->send(take_out(&client));
  const auto challenge = stranger->receive_handshake();
  EXPECT_TRUE(challenge.has_value());
  if (challenge) feed(&client, challenge->bytes);
  client.prove();
  return take_out(&client);
}

TEST(BootstrapIntruder, WithoutTheSecretIsTurnedAway) {
  expect_formed_in_spite_of([](const Secret& secret) {
    Stranger stranger(secret);
    stranger.send(challenged(&stranger, secret_from_text("a guess"), 1));
    const auto reply = stranger.receive_handshake();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->kind, kRefused);
    EXPECT_TRUE(stranger.is_hung_up());
  });
}

TEST(BootstrapIntruder, WithAProofForAnotherRankIsTurnedAway) {
  expect_formed_in_spite_of([](const Secret& secret) {
    Stranger stranger(secret);
    std::string proof = challenged(&stranger, secret, 1);
    proof[net::Handshake::kHeaderBytes] ^= 1;  // the rank
    stranger.send(proof);
    const auto reply = stranger.receive_handshake();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->kind, kRefused);
  });
}

TEST(BootstrapIntruder, ThatReplaysAHandshakeIsTurnedAway) {
  const Secret secret = fresh_secret();
  std::string captured;
  {
    Outcome zero;
    std::thread thread([&] { zero = play(secret, {0, 2}); });
    Stranger honest(secret);
    captured = shake_hands(&honest, secret, 1, 2);
    ASSERT_FALSE(captured.empty());
    honest.hang_up();
    thread.join();
    EXPECT_EQ(zero.status.code(), Code::kPeerLost);
  }
  std::vector<Outcome> outcomes(2);
  std::thread zero([&] { outcomes[0] = play(secret, {0, 2}); });
  Stranger replayer(secret);
  replayer.send(captured);
  const auto challenge = replayer.receive_handshake();
  ASSERT_TRUE(challenge.has_value());
  EXPECT_EQ(challenge->kind, kChallenge);
  const auto reply = replayer.receive_handshake();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->kind, kRefused);
  EXPECT_TRUE(replayer.is_hung_up());
  outcomes[1] = play(secret, {1, 2});
  zero.join();
  expect_all_ok(outcomes);
}

TEST(BootstrapIntruder, ThatSendsGarbageIsHungUpOn) {
  expect_formed_in_spite_of([](const Secret& secret) {
    for (const std::string& garbage :
         {std::string("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), std::string(1000, '\0'),
          std::string(100'000, '\xff'), std::string("SSH-2.0-OpenSSH_9.2p1\r\n")}) {
      Stranger stranger(secret);
      stranger.send(garbage);
      EXPECT_TRUE(stranger.is_hung_up());
    }
  });
}

TEST(BootstrapIntruder, ThatAnnouncesAWrongSizeIsHungUpOnBeforeItSendsMore) {
  expect_formed_in_spite_of([](const Secret& secret) {
    for (const uint32_t bytes : {0u, 31u, 33u, 1u << 20, 0x7fffffffu, 0xffffffffu}) {
      Stranger stranger(secret);
      std::string header = hello().substr(0, net::Handshake::kHeaderBytes);
      for (size_t i = 0; i < 4; ++i) header[8 + i] = static_cast<char>(bytes >> (8 * i));
      stranger.send(header);
      EXPECT_TRUE(stranger.is_hung_up()) << bytes;
    }
  });
}

TEST(BootstrapIntruder, ThatSkipsTheProofIsHungUpOn) {
  expect_formed_in_spite_of([](const Secret& secret) {
    for (const std::string& bytes :
         {give(1, record(1, "blob")), frame(Message::kTake, 0, ""),
          frame(Message::kFailure, 0, pack_failure(Status(Code::kAborted, "all of you, stop"))),
          handshake_frame(kChallenge, std::string(32, '\0')),
          handshake_frame(kRefused, std::string("\2\0\0\0\3\0\0\0", 8))}) {
      Stranger first(secret);
      first.send(bytes);
      EXPECT_TRUE(first.is_hung_up());
      Stranger second(secret);
      second.send(hello());
      ASSERT_TRUE(second.receive_handshake().has_value());
      second.send(bytes);
      EXPECT_TRUE(second.is_hung_up());
    }
  });
}

TEST(BootstrapIntruder, OfAnotherVersionIsToldBothAndTheOthersGoOn) {
  expect_formed_in_spite_of([](const Secret& secret) {
    Stranger stranger(secret);
    stranger.send(handshake_frame(kHello, std::string(32, '\0'), 9));
    const auto reply = stranger.receive_handshake();
    ASSERT_TRUE(reply.has_value());
    ASSERT_EQ(reply->kind, kRefused);
    const auto* const payload = reinterpret_cast<const unsigned char*>(reply->payload.data());
    EXPECT_EQ(net::get<uint32_t>(payload), 1u) << "the reason is the version";
    EXPECT_EQ(net::get<uint32_t>(payload + 4), kOwnVersion);
  });
}

TEST(BootstrapIntruder, IsMentionedWhenRanksAreMissing) {
  const Secret secret = fresh_secret();
  Outcome zero;
  std::thread thread([&] { zero = play(secret, {0, 3, 1'000}); });
  {
    Stranger stranger(secret);
    stranger.send(handshake_frame(kHello, std::string(32, '\0'), 9));
    (void)stranger.receive_handshake();
    Stranger scanner(secret);
    scanner.send(std::string(64, 'x'));
    EXPECT_TRUE(scanner.is_hung_up());
  }
  thread.join();
  EXPECT_EQ(zero.status.code(), Code::kTimeout);
  EXPECT_THAT(zero.status.text(), HasSubstr("ranks 1, 2 of 3 have not joined"));
  EXPECT_THAT(zero.status.text(), HasSubstr("1 with protocol version 9 (this is version 4)"));
  EXPECT_THAT(zero.status.text(), HasSubstr("1 of another protocol"));
  EXPECT_THAT(zero.status.text(), HasSubstr("process " + std::to_string(getpid())));
}

TEST(BootstrapIntruder, HundredsThatStaySilentDoNotKeepRanksOut) {
  const Secret secret = fresh_secret();
  std::vector<Outcome> outcomes(8);
  std::thread zero([&] { outcomes[0] = play(secret, {0, 8}); });
  std::vector<Stranger> silent;
  for (int i = 0; i < 300; ++i) silent.emplace_back(secret);
  const uint64_t start_ns = now_ns();
  std::vector<std::thread> threads;
  for (Rank rank = 1; rank < 8; ++rank) {
    threads.emplace_back([&, rank] { outcomes[rank] = play(secret, {rank, 8}); });
  }
  for (std::thread& thread : threads) thread.join();
  zero.join();
  expect_all_ok(outcomes);
  EXPECT_LT(static_cast<double>(now_ns() - start_ns) * 1e-9, kAtOnceSeconds);
}

TEST(BootstrapIntruder, AFloodOfConnectionsDoesNotKeepRanksOut) {
  const Secret secret = fresh_secret();
  std::atomic<bool> stop = false;
  std::atomic<int> flood_count = 0;
  std::thread flood([&] {
    while (!stop) {
      Stranger stranger(net::connect_locally(socket_name(secret)));
      if (!stranger.connected()) continue;
      stranger.send("x");
      ++flood_count;
    }
  });
  const auto outcomes = play_all(secret, all_ranks(6));
  stop = true;
  flood.join();
  expect_all_ok(outcomes);
}

// A host with limits that a test can wait for.
struct ShortRoot {
  ShortRoot(const Secret& secret, uint64_t unproven_ns, size_t unproven_count) {
    thread = std::thread([this, secret, unproven_ns, unproven_count] {
      auto joined = Tree::join(secret, 0, 2, deadline_in_ms(20'000), {},
                               {.unproven_ns = unproven_ns, .unproven_count = unproven_count});
      status = joined.ok() ? Status() : joined.status();
    });
  }
  ~ShortRoot() { thread.join(); }
  std::thread thread;
  Status status;
};

TEST(BootstrapIntruder, ThatDripsOneByteAtATimeRunsOutOfTime) {
  const Secret secret = fresh_secret();
  ShortRoot root(secret, 100'000'000, 16);
  Stranger stranger(secret);
  const std::string bytes = hello();
  const uint64_t start_ns = now_ns();
  bool hung_up = false;
  for (size_t i = 0; i < bytes.size() && !hung_up; ++i) {
    stranger.send(bytes.substr(i, 1));
    hung_up = stranger.is_hung_up(15);
  }
  EXPECT_TRUE(hung_up);
  EXPECT_LT(static_cast<double>(now_ns() - start_ns) * 1e-9, kAtOnceSeconds);
  EXPECT_TRUE(play(secret, {1, 2}, 0).status.ok());
}

TEST(BootstrapIntruder, TheOldestSilentConnectionGivesWayToANewOne) {
  const Secret secret = fresh_secret();
  ShortRoot root(secret, 20'000'000'000, 3);
  std::vector<Stranger> silent;
  for (int i = 0; i < 4; ++i) silent.emplace_back(secret);
  EXPECT_TRUE(silent[0].is_hung_up());
  EXPECT_FALSE(silent[3].is_hung_up(10));
  EXPECT_TRUE(play(secret, {1, 2}, 0).status.ok());
}

TEST(BootstrapIntruder, AThousandSilentOnesDoNotKeepTheRanksFromMeeting) {
  const Secret secret = fresh_secret();
  std::atomic<bool> stop = false;
  std::atomic<int> come = 0;
  std::thread crowd([&] {
    std::deque<Stranger> held;
    while (!stop) {
      Stranger stranger(net::connect_locally(socket_name(secret)));
      if (!stranger.connected()) {
        sleep_ns(100'000, UINT64_MAX);
        continue;
      }
      held.push_back(std::move(stranger));
      ++come;
      if (held.size() > 1000) held.pop_front();
    }
  });
  std::vector<std::thread> ranks;
  std::vector<Outcome> outcomes(8);
  for (Rank rank = 0; rank < 8; ++rank) {
    ranks.emplace_back([&, rank] { outcomes[rank] = play(secret, {rank, 8, 60'000}, 0); });
    for (int i = 0; i < 30'000 && come < 1000; ++i) sleep_ns(1'000'000, UINT64_MAX);
  }
  for (std::thread& rank : ranks) rank.join();
  stop = true;
  crowd.join();
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.text();
  }
}

TEST(BootstrapIntruder, AMemberThatBreaksTheProtocolFailsForAllAndIsNamed) {
  const Secret secret = fresh_secret();
  for (const std::string& bytes : {give(7, record(1, "wrong round")), frame(Message::kTake, 0, ""),
                                   std::string("nonsense that is longer than a header")}) {
    Outcome zero;
    std::thread thread([&] { zero = play(secret, {0, 2}); });
    Stranger stranger(secret);
    ASSERT_FALSE(shake_hands(&stranger, secret, 1, 2).empty());
    const auto ready = stranger.receive();
    ASSERT_TRUE(ready.has_value());
    EXPECT_EQ(ready->message, Message::kTake);
    stranger.send(bytes);
    const auto failure = stranger.receive();
    thread.join();
    EXPECT_EQ(zero.status.code(), Code::kInternal);
    EXPECT_THAT(zero.status.text(), HasSubstr("rank 1 of 2 (process"));
    EXPECT_THAT(zero.status.text(), HasSubstr("sent an unexpected frame before all_gather 1"));
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(unpack_failure(failure->payload).text(), zero.status.text());
  }
}

// ---- Hosts that are not rank 0
// --------------------------------------------------------------------

// Listens in the place of the root and answers the first who comes with `answer`.
Status status_against_host(const Secret& secret, const std::function<void(Stranger*)>& answer,
                           uint64_t timeout_ms = 20'000) {
  const net::Stream listener(net::listen_locally(socket_name(secret), 8));
  EXPECT_TRUE(listener.is_open());
  Outcome joining;
  std::thread thread([&] { joining = play(secret, {1, 2, timeout_ms}); });
  Stranger host(accept_one(listener.fd()));
  EXPECT_TRUE(host.connected());
  answer(&host);
  thread.join();
  return joining.status;
}

TEST(BootstrapFalseHost, ThatCannotProveItselfIsRefused) {
  const Status status = status_against_host(fresh_secret(), [&](Stranger* host) {
    ASSERT_TRUE(host->receive_handshake().has_value());
    host->send(handshake_frame(kChallenge, std::string(32, '\0')));
    ASSERT_TRUE(host->receive_handshake().has_value());
    host->send(handshake_frame(kWelcome, std::string(32, '\5')));
    EXPECT_TRUE(host->is_hung_up());
  });
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_THAT(status.text(), HasSubstr("could not prove to rank 1 that it holds the secret"));
}

TEST(BootstrapFalseHost, ThatReflectsTheOwnProofIsRefused) {
  const Status status = status_against_host(fresh_secret(), [&](Stranger* host) {
    const auto hello = host->receive_handshake();
    ASSERT_TRUE(hello.has_value());
    host->send(handshake_frame(kChallenge, hello->payload));
    const auto proof = host->receive_handshake();
    ASSERT_TRUE(proof.has_value());
    host->send(handshake_frame(kWelcome, proof->payload.substr(proof->payload.size() - 32)));
    EXPECT_TRUE(host->is_hung_up());
  });
  EXPECT_EQ(status.code(), Code::kRefused);
}

TEST(BootstrapFalseHost, ThatTurnsTheProofDownIsNamed) {
  const Status status = status_against_host(fresh_secret(), [&](Stranger* host) {
    host->send(handshake_frame(kRefused, std::string("\2\0\0\0\3\0\0\0", 8)));
  });
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_THAT(status.text(), HasSubstr("does not accept the secret of rank 1"));
}

// Of version 2, too, whose frames began in the same way.
TEST(BootstrapFalseHost, OfAnotherVersionIsRefusedAndBothAreNamed) {
  for (const uint16_t version : {uint16_t{2}, uint16_t{9}}) {
    std::string reason("\1\0\0\0\0\0\0\0", 8);
    reason[4] = static_cast<char>(version);
    for (const std::string& answer :
         {handshake_frame(kChallenge, std::string(32, '\0'), version),
          handshake_frame(kRefused, reason, version), handshake_frame(kRefused, reason)}) {
      const Status status =
          status_against_host(fresh_secret(), [&](Stranger* host) { host->send(answer); });
      EXPECT_EQ(status.code(), Code::kRefused);
      EXPECT_THAT(status.text(),
                  HasSubstr("protocol version " + std::to_string(version) + ", rank 1 version 4"));
    }
  }
}

TEST(BootstrapFalseHost, ThatSpeaksAnotherProtocolIsRefused) {
  const Status status = status_against_host(
      fresh_secret(), [&](Stranger* host) { host->send("220 mail.example.org ESMTP ready\r\n"); });
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_THAT(status.text(), HasSubstr("does not speak the bootstrap protocol"));
}

TEST(BootstrapFalseHost, ThatStaysSilentTimesOutAndIsNamed) {
  const Status status = status_against_host(
      fresh_secret(), [](Stranger* host) { EXPECT_TRUE(host->is_hung_up()); }, 100);
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_THAT(status.text(), HasSubstr("process " + std::to_string(getpid()) +
                                       " (rank 0, unless that came later than others) listens for "
                                       "the other ranks but does not answer rank 1"));
}

TEST(BootstrapFalseHost, ThatHangsUpIsTriedAgainUntilTheDeadline) {
  const Status status = status_against_host(
      fresh_secret(), [](Stranger* host) { host->hang_up(); }, 100);
  EXPECT_EQ(status.code(), Code::kTimeout);
}

// ---- Other users (needs root, to become one)
// ---------------------------------------------------------

constexpr uid_t kOtherUser = 65534;

TEST(BootstrapOtherUser, IsTurnedAwayAndMentioned) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const Secret secret = fresh_secret();
  Outcome zero;
  std::thread thread([&] { zero = play(secret, {0, 2, 500}); });
  // seteuid is per process; a Stranger only needs it while it connects. The name is looked up
  // before.
  const std::string name = socket_name(secret);
  sleep_ns(50'000'000, UINT64_MAX);
  const pid_t pid = fork();
  if (pid == 0) {
    if (setuid(kOtherUser) != 0) _exit(3);
    Stranger stranger(net::connect_locally(name));
    if (!stranger.connected()) _exit(2);
    stranger.send(hello());
    _exit(stranger.receive_handshake(400).has_value() ? 1 : 0);
  }
  thread.join();
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(zero.status.code(), Code::kTimeout);
  EXPECT_THAT(zero.status.text(), HasSubstr("1 of user 65534, not 0"));
}

TEST(BootstrapOtherUser, InThePlaceOfRank0IsRefusedAndBothAreNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const Secret secret = fresh_secret();
  const std::string name = socket_name(secret);
  const pid_t pid = fork();
  if (pid == 0) {
    if (setuid(kOtherUser) != 0 || net::listen_locally(name, 8) < 0) _exit(1);
    pause();
  }
  await_root(secret);
  const Outcome other = play(secret, {1, 2});
  const Outcome zero = play(secret, {0, 2});
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(other.status.code(), Code::kRefused);
  EXPECT_THAT(other.status.text(), HasSubstr("belongs to user 65534, rank 1 to user 0"));
  EXPECT_EQ(zero.status.code(), Code::kRefused);
}

}  // namespace
}  // namespace weir::comm
