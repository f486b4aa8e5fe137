// SPDX-License-Identifier: Apache-2.0
#include "unit/comm/bootstrap_support.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>

#include "core/base/clock.h"
#include "core/comm/bootstrap_door.h"

namespace weir::comm {
namespace {

std::string blob_of(Rank rank, int round, size_t blob_bytes) {
  return std::to_string(rank) + ":" + std::to_string(round) + ":" + std::string(blob_bytes, 'x');
}

}  // namespace

uint64_t deadline_in_ms(uint64_t ms) { return now_ns() + ms * 1'000'000; }

Secret fresh_secret() {
  Result<Secret> secret = Secret::random();
  EXPECT_TRUE(secret.ok());
  return secret.take();
}

Outcome play(const Secret& secret, const Player& player, int rounds, size_t blob_bytes) {
  Outcome outcome;
  const uint64_t start_ns = now_ns();
  auto joined =
      Bootstrap::join(secret, player.rank, player.rank_count, deadline_in_ms(player.timeout_ms));
  outcome.status = joined.ok() ? Status() : joined.status();
  for (int round = 1; round <= rounds && outcome.status.ok(); ++round) {
    auto blobs = joined.value()->all_gather(blob_of(player.rank, round, blob_bytes),
                                            deadline_in_ms(player.timeout_ms));
    if (blobs.ok()) {
      outcome.blobs = blobs.take();
    } else {
      outcome.status = blobs.status();
    }
  }
  outcome.seconds = static_cast<double>(now_ns() - start_ns) * 1e-9;
  return outcome;
}

std::vector<std::string> expected_blobs(Rank rank_count, int round, size_t blob_bytes) {
  std::vector<std::string> blobs;
  for (Rank rank = 0; rank < rank_count; ++rank) blobs.push_back(blob_of(rank, round, blob_bytes));
  return blobs;
}

std::vector<Outcome> play_all(const Secret& secret, const std::vector<Player>& players, int rounds,
                              size_t blob_bytes) {
  std::vector<Outcome> outcomes(players.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < players.size(); ++i) {
    threads.emplace_back([&, i] { outcomes[i] = play(secret, players[i], rounds, blob_bytes); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<Player> all_ranks(Rank rank_count, uint64_t timeout_ms) {
  std::vector<Player> players;
  for (Rank rank = 0; rank < rank_count; ++rank) players.push_back({rank, rank_count, timeout_ms});
  return players;
}

std::string record(Rank rank, std::string_view blob) {
  std::string records;
  wire::append_record(rank, blob, &records);
  return records;
}

size_t open_descriptor_count() {
  size_t count = 0;
  DIR* directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

Stranger::Stranger(const Secret& secret) {
  const uint64_t until_ns = deadline_in_ms(5'000);
  while (!connection_.valid() && now_ns() < until_ns) {
    EXPECT_TRUE(connect_to(door_name(secret), &connection_).ok());
    if (!connection_.valid()) sleep_ns(500'000, until_ns);
  }
}

void Stranger::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(connection_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return;  // the peer is gone, which receive tells
    }
  }
}

bool Stranger::receive_bytes(void* data, size_t bytes, uint64_t until_ns) {
  size_t received = 0;
  while (received < bytes) {
    const ssize_t got =
        recv(connection_.get(), static_cast<char*>(data) + received, bytes - received, 0);
    if (got > 0) {
      received += static_cast<size_t>(got);
      continue;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR) || now_ns() >= until_ns) return false;
    std::vector<pollfd> entries{{connection_.get(), POLLIN, 0}};
    EXPECT_TRUE(wait_for_events(&entries, until_ns).ok());
  }
  return true;
}

std::optional<Stranger::Frame> Stranger::receive(uint64_t timeout_ms) {
  const uint64_t until_ns = deadline_in_ms(timeout_ms);
  unsigned char header[wire::kHeaderBytes];
  Frame frame;
  if (!receive_bytes(header, sizeof header, until_ns)) return std::nullopt;
  if (!wire::decode_header(header, &frame.header)) return std::nullopt;
  frame.payload.resize(frame.header.payload_bytes);
  if (!receive_bytes(frame.payload.data(), frame.payload.size(), until_ns)) return std::nullopt;
  return frame;
}

bool Stranger::is_hung_up(uint64_t timeout_ms) {
  const uint64_t until_ns = deadline_in_ms(timeout_ms);
  char byte = 0;
  while (receive_bytes(&byte, 1, until_ns)) {
  }
  return now_ns() < until_ns;
}

void await_root(const Secret& secret) {
  const Stranger stranger(secret);
  EXPECT_TRUE(stranger.connected());
}

std::string prove(Stranger* stranger, const Secret& secret, Rank rank, Rank rank_count,
                  uint64_t patience_us) {
  wire::Claim claim;
  claim.guest_nonce = fresh_secret().bytes;
  claim.rank = rank;
  claim.rank_count = rank_count;
  claim.patience_us = patience_us;
  const std::string hello = wire::encode_hello(claim.guest_nonce);
  stranger->send(hello);
  const auto challenge = stranger->receive();
  if (!challenge || challenge->header.kind != wire::Kind::kChallenge) return "";
  claim.host_nonce = wire::decode_nonce(challenge->payload);
  const std::string proof = wire::encode_proof(secret, claim);
  stranger->send(proof);
  const auto welcome = stranger->receive();
  if (!welcome || welcome->header.kind != wire::Kind::kWelcome) return "";
  return hello + proof;
}

std::string shake_hands(Stranger* stranger, const Secret& secret, Rank rank, Rank rank_count,
                        uint64_t patience_us) {
  const std::string sent = prove(stranger, secret, rank, rank_count, patience_us);
  if (sent.empty()) return "";
  const auto admit = stranger->receive();
  return admit && admit->header.kind == wire::Kind::kAdmit ? sent : "";
}

}  // namespace weir::comm
