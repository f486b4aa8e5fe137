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
#include "core/comm/bootstrap_door.h"
#include "core/comm/bootstrap_tree.h"
#include "unit/comm/bootstrap_support.h"

namespace weir::comm {
namespace {

using testing::HasSubstr;
using wire::Kind;

constexpr uint64_t kPatienceUs = 20'000'000;

void expect_all_ok(const std::vector<Outcome>& outcomes) {
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.text();
  }
}

std::string with_version(std::string frame, char version) {
  frame[4] = version;
  return frame;
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

TEST(BootstrapIntruder, WithoutTheSecretIsTurnedAway) {
  expect_formed_in_spite_of([](const Secret& secret) {
    Stranger stranger(secret);
    wire::Claim claim;
    claim.rank = 1;
    claim.rank_count = 2;
    claim.patience_us = kPatienceUs;
    stranger.send(wire::encode_hello(claim.guest_nonce));
    const auto challenge = stranger.receive();
    ASSERT_TRUE(challenge.has_value());
    claim.host_nonce = wire::decode_nonce(challenge->payload);
    stranger.send(wire::encode_proof(secret_from_text("a guess"), claim));
    const auto reply = stranger.receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->header.kind, Kind::kTurnedAway);
    EXPECT_TRUE(stranger.is_hung_up());
  });
}

TEST(BootstrapIntruder, WithAProofForAnotherRankIsTurnedAway) {
  expect_formed_in_spite_of([](const Secret& secret) {
    Stranger stranger(secret);
    wire::Claim claim;
    claim.rank = 1;
    claim.rank_count = 2;
    claim.patience_us = kPatienceUs;
    stranger.send(wire::encode_hello(claim.guest_nonce));
    const auto challenge = stranger.receive();
    ASSERT_TRUE(challenge.has_value());
    claim.host_nonce = wire::decode_nonce(challenge->payload);
    std::string proof = wire::encode_proof(secret, claim);
    proof[wire::kHeaderBytes] ^= 1;  // the rank
    stranger.send(proof);
    const auto reply = stranger.receive();
    ASSERT_TRUE(reply.has_value());
    EXPECT_EQ(reply->header.kind, Kind::kTurnedAway);
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
  const auto challenge = replayer.receive();
  ASSERT_TRUE(challenge.has_value());
  EXPECT_EQ(challenge->header.kind, Kind::kChallenge);
  const auto reply = replayer.receive();
  ASSERT_TRUE(reply.has_value());
  EXPECT_EQ(reply->header.kind, Kind::kTurnedAway);
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
      std::string header = wire::encode_hello({}).substr(0, wire::kHeaderBytes);
      for (size_t i = 0; i < 4; ++i) header[8 + i] = static_cast<char>(bytes >> (8 * i));
      stranger.send(header);
      EXPECT_TRUE(stranger.is_hung_up()) << bytes;
    }
  });
}

TEST(BootstrapIntruder, ThatSkipsTheProofIsHungUpOn) {
  expect_formed_in_spite_of([](const Secret& secret) {
    for (const std::string& frame :
         {wire::encode_give(1, kPatienceUs, record(1, "blob")), wire::encode_ready(),
          wire::encode_failure(0, Status(Code::kAborted, "all of you, stop")),
          wire::encode_challenge({}), wire::encode_turned_away(wire::TurnedAway::kProof)}) {
      Stranger first(secret);
      first.send(frame);
      EXPECT_TRUE(first.is_hung_up());
      Stranger second(secret);
      second.send(wire::encode_hello({}));
      ASSERT_TRUE(second.receive().has_value());
      second.send(frame);
      EXPECT_TRUE(second.is_hung_up());
    }
  });
}

TEST(BootstrapIntruder, OfAnotherVersionIsToldBothAndTheOthersGoOn) {
  expect_formed_in_spite_of([](const Secret& secret) {
    Stranger stranger(secret);
    stranger.send(with_version(wire::encode_hello({}), 9));
    const auto reply = stranger.receive();
    ASSERT_TRUE(reply.has_value());
    ASSERT_EQ(reply->header.kind, Kind::kTurnedAway);
    uint32_t reason = 0;
    uint32_t version = 0;
    wire::decode_turned_away(reply->payload, &reason, &version);
    EXPECT_EQ(reason, static_cast<uint32_t>(wire::TurnedAway::kVersion));
    EXPECT_EQ(version, wire::kProtocolVersion);
  });
}

TEST(BootstrapIntruder, IsMentionedWhenRanksAreMissing) {
  const Secret secret = fresh_secret();
  Outcome zero;
  std::thread thread([&] { zero = play(secret, {0, 3, 1'000}); });
  {
    Stranger stranger(secret);
    stranger.send(with_version(wire::encode_hello({}), 9));
    (void)stranger.receive();
    Stranger scanner(secret);
    scanner.send(std::string(64, 'x'));
    EXPECT_TRUE(scanner.is_hung_up());
  }
  thread.join();
  EXPECT_EQ(zero.status.code(), Code::kTimeout);
  EXPECT_THAT(zero.status.text(), HasSubstr("ranks 1, 2 of 3 have not joined"));
  EXPECT_THAT(zero.status.text(),
              HasSubstr("1 with bootstrap protocol version 9 (this is version 2)"));
  EXPECT_THAT(zero.status.text(), HasSubstr("1 that spoke no bootstrap protocol"));
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
      Fd connection;
      if (!connect_to(door_name(secret), &connection).ok()) return;
      if (!connection.valid()) continue;
      Stranger stranger(std::move(connection));
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
struct ShortDoor {
  explicit ShortDoor(const Secret& secret, DoorLimits limits) {
    thread = std::thread([this, secret, limits] {
      auto joined = Tree::join(secret, 0, 2, deadline_in_ms(20'000), {},
                               {.door = limits, .own_hosts = false});
      status = joined.ok() ? Status() : joined.status();
    });
  }
  ~ShortDoor() { thread.join(); }
  std::thread thread;
  Status status;
};

TEST(BootstrapIntruder, ThatDripsOneByteAtATimeRunsOutOfTime) {
  const Secret secret = fresh_secret();
  ShortDoor door(secret, {.unproven_ns = 100'000'000, .unproven_count = 16});
  Stranger stranger(secret);
  const std::string hello = wire::encode_hello({});
  const uint64_t start_ns = now_ns();
  bool hung_up = false;
  for (size_t i = 0; i < hello.size() && !hung_up; ++i) {
    stranger.send(hello.substr(i, 1));
    hung_up = stranger.is_hung_up(15);
  }
  EXPECT_TRUE(hung_up);
  EXPECT_LT(static_cast<double>(now_ns() - start_ns) * 1e-9, kAtOnceSeconds);
  EXPECT_TRUE(play(secret, {1, 2}, 0).status.ok());
}

TEST(BootstrapIntruder, TheOldestSilentConnectionGivesWayToANewOne) {
  const Secret secret = fresh_secret();
  ShortDoor door(secret, {.unproven_ns = 20'000'000'000, .unproven_count = 3});
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
    std::deque<Fd> held;
    while (!stop) {
      Fd connection;
      if (!connect_to(door_name(secret), &connection).ok() || !connection.valid()) {
        sleep_ns(100'000, UINT64_MAX);
        continue;
      }
      held.push_back(std::move(connection));
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
  for (const std::string& frame :
       {wire::encode_give(7, kPatienceUs, record(1, "wrong round")), wire::encode_ready(),
        std::string("nonsense that is longer than a header")}) {
    Outcome zero;
    std::thread thread([&] { zero = play(secret, {0, 2}); });
    Stranger stranger(secret);
    ASSERT_FALSE(shake_hands(&stranger, secret, 1, 2).empty());
    const auto ready = stranger.receive();
    ASSERT_TRUE(ready.has_value());
    EXPECT_EQ(ready->header.kind, Kind::kReady);
    stranger.send(frame);
    const auto failure = stranger.receive();
    thread.join();
    EXPECT_EQ(zero.status.code(), Code::kInternal);
    EXPECT_THAT(zero.status.text(), HasSubstr("rank 1 of 2 (process"));
    EXPECT_THAT(zero.status.text(), HasSubstr("out of turn before all_gather 1"));
    ASSERT_TRUE(failure.has_value());
    EXPECT_EQ(wire::decode_failure(failure->payload).text(), zero.status.text());
  }
}

// ---- Hosts that are not rank 0
// --------------------------------------------------------------------

// Listens in the place of the root and answers the first guest with `answer`.
Status status_against_host(const Secret& secret, const std::function<void(Stranger*)>& answer,
                           uint64_t timeout_ms = 20'000) {
  Fd listener;
  EXPECT_TRUE(listen_at(door_name(secret), 8, &listener).ok());
  EXPECT_TRUE(listener.valid());
  Outcome guest;
  std::thread thread([&] { guest = play(secret, {1, 2, timeout_ms}); });
  std::vector<pollfd> entries{{listener.get(), POLLIN, 0}};
  EXPECT_TRUE(wait_for_events(&entries, deadline_in_ms(5'000)).ok());
  Fd connection;
  EXPECT_EQ(accept_at(listener.get(), &connection), Accept::kAccepted);
  Stranger host(std::move(connection));
  answer(&host);
  thread.join();
  return guest.status;
}

TEST(BootstrapFalseHost, ThatCannotProveItselfIsRefused) {
  const Secret secret = fresh_secret();
  const Status status = status_against_host(secret, [&](Stranger* host) {
    wire::Claim claim;
    claim.role = wire::Role::kHost;
    const auto hello = host->receive();
    ASSERT_TRUE(hello.has_value());
    claim.guest_nonce = wire::decode_nonce(hello->payload);
    host->send(wire::encode_challenge(claim.host_nonce));
    const auto proof = host->receive();
    ASSERT_TRUE(proof.has_value());
    (void)wire::decode_proof(proof->payload, &claim);
    host->send(wire::encode_welcome(secret_from_text("a guess"), claim));
    EXPECT_TRUE(host->is_hung_up());
  });
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_THAT(status.text(), HasSubstr("could not prove to rank 1 that it holds the secret"));
}

TEST(BootstrapFalseHost, ThatReflectsTheGuestsOwnProofIsRefused) {
  const Status status = status_against_host(fresh_secret(), [&](Stranger* host) {
    const auto hello = host->receive();
    ASSERT_TRUE(hello.has_value());
    host->send(wire::encode_challenge(wire::decode_nonce(hello->payload)));
    const auto proof = host->receive();
    ASSERT_TRUE(proof.has_value());
    std::string welcome = wire::encode_welcome(Secret(), {.rank_count = 2});
    welcome.replace(welcome.size() - wire::kProofBytes, wire::kProofBytes,
                    proof->payload.substr(proof->payload.size() - wire::kProofBytes));
    host->send(welcome);
    EXPECT_TRUE(host->is_hung_up());
  });
  EXPECT_EQ(status.code(), Code::kRefused);
}

TEST(BootstrapFalseHost, ThatTurnsTheProofDownIsNamed) {
  const Status status = status_against_host(fresh_secret(), [&](Stranger* host) {
    host->send(wire::encode_turned_away(wire::TurnedAway::kProof));
  });
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_THAT(status.text(), HasSubstr("does not accept the secret of rank 1"));
}

TEST(BootstrapFalseHost, OfAnotherVersionIsRefusedAndBothAreNamed) {
  for (const std::string& answer : {with_version(wire::encode_challenge({}), 9),
                                    with_version(wire::encode_turned_away({}), 9)}) {
    const Status status =
        status_against_host(fresh_secret(), [&](Stranger* host) { host->send(answer); });
    EXPECT_EQ(status.code(), Code::kRefused);
    EXPECT_THAT(status.text(), HasSubstr("protocol version 9, rank 1 version 2"));
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
                                       " listens for the other ranks but does not answer rank 1"));
}

TEST(BootstrapFalseHost, ThatHangsUpIsKnockedAtAgainUntilTheDeadline) {
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
  const std::string name = door_name(secret);
  sleep_ns(50'000'000, UINT64_MAX);
  const pid_t pid = fork();
  if (pid == 0) {
    if (setuid(kOtherUser) != 0) _exit(3);
    Fd connection;
    if (!connect_to(name, &connection).ok() || !connection.valid()) _exit(2);
    Stranger stranger(std::move(connection));
    stranger.send(wire::encode_hello({}));
    _exit(stranger.receive(400).has_value() ? 1 : 0);
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
  const std::string name = door_name(secret);
  const pid_t pid = fork();
  if (pid == 0) {
    Fd listener;
    if (setuid(kOtherUser) != 0 || !listen_at(name, 8, &listener).ok()) _exit(1);
    pause();
  }
  await_root(secret);
  const Outcome guest = play(secret, {1, 2});
  const Outcome zero = play(secret, {0, 2});
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(guest.status.code(), Code::kRefused);
  EXPECT_THAT(guest.status.text(), HasSubstr("belongs to user 65534, rank 1 to user 0"));
  EXPECT_EQ(zero.status.code(), Code::kRefused);
}

}  // namespace
}  // namespace weir::comm
