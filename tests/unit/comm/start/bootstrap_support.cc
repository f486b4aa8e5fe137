// SPDX-License-Identifier: Apache-2.0
#include "unit/comm/start/bootstrap_support.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "net/little_endian.h"
#include "net/unix_socket.h"

namespace weir::comm {
namespace {

std::string blob_of(Rank rank, int round, size_t blob_bytes) {
  return std::to_string(rank) + ":" + std::to_string(round) + ":" + std::string(blob_bytes, 'x');
}

}  // namespace

uint64_t deadline_in_ms(uint64_t ms) { return now_ns() + ms * 1'000'000; }

void sleep_ns(uint64_t duration_ns, uint64_t until_ns) {
  const uint64_t now = now_ns();
  if (until_ns <= now) return;
  std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(duration_ns, until_ns - now)));
}

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
  append_record(rank, blob, &records);
  return records;
}

std::string frame(Message message, uint32_t round, std::string_view payload, Rank rank) {
  std::string bytes;
  control::Frame{control::Frame::Kind::kStart, static_cast<uint8_t>(message), rank, round, payload}
      .append_to(&bytes);
  return bytes;
}

std::string give(uint32_t round, std::string_view records, uint64_t patience_us) {
  std::string payload(8, '\0');
  net::put(reinterpret_cast<unsigned char*>(payload.data()), patience_us);
  return frame(Message::kGive, round, payload.append(records));
}

std::string handshake_frame(HandshakeKind kind, std::string_view payload, uint16_t version) {
  std::string bytes(net::Handshake::kHeaderBytes, '\0');
  bytes.replace(0, 4, "WEIR");
  auto* const out = reinterpret_cast<unsigned char*>(bytes.data());
  net::put(out + 4, version);
  net::put(out + 6, static_cast<uint16_t>(kind));
  net::put(out + 8, static_cast<uint32_t>(payload.size()));
  return bytes.append(payload);
}

std::string hello() {
  return handshake_frame(kHello, std::string(net::Handshake::kNonceBytes, '\0'));
}

net::Handshake client_of(const JoiningRank& self) {
  const uint64_t patience_us = patience_until(self.deadline_ns, now_ns());
  return net::Handshake(
      identity_of(self), fresh_secret().bytes, net::kAnyRank,
      {static_cast<uint32_t>(patience_us), static_cast<uint32_t>(patience_us >> 32), 0});
}

net::Handshake server_of(const Secret& secret, Rank rank, Rank rank_count) {
  return net::Handshake(identity_of({secret, rank, rank_count, 0}), fresh_secret().bytes);
}

std::string take_out(net::Handshake* handshake) {
  std::string bytes(reinterpret_cast<const char*>(handshake->out()), handshake->out_bytes());
  handshake->sent(bytes.size());
  return bytes;
}

void feed(net::Handshake* handshake, std::string_view bytes) {
  while (!bytes.empty() && handshake->wanted() > 0) {
    const size_t part = std::min(bytes.size(), handshake->wanted());
    handshake->feed(reinterpret_cast<const unsigned char*>(bytes.data()), part);
    bytes.remove_prefix(part);
  }
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
  while (!connection_.is_open() && now_ns() < until_ns) {
    connection_ = net::Stream(net::connect_locally(socket_name(secret)));
    if (!connection_.is_open()) sleep_ns(500'000, until_ns);
  }
}

void Stranger::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(connection_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
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
        recv(connection_.fd(), static_cast<char*>(data) + received, bytes - received, 0);
    if (got > 0) {
      received += static_cast<size_t>(got);
      continue;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR) || now_ns() >= until_ns) return false;
    std::vector<pollfd> entries{{connection_.fd(), POLLIN, 0}};
    EXPECT_TRUE(wait_for_events(&entries, until_ns).ok());
  }
  return true;
}

std::optional<Stranger::HandshakeFrame> Stranger::receive_handshake(uint64_t timeout_ms) {
  const uint64_t until_ns = deadline_in_ms(timeout_ms);
  unsigned char header[net::Handshake::kHeaderBytes];
  if (!receive_bytes(header, sizeof header, until_ns)) return std::nullopt;
  HandshakeFrame frame;
  frame.bytes.assign(reinterpret_cast<const char*>(header), sizeof header);
  if (!frame.bytes.starts_with("WEIR")) return std::nullopt;
  frame.version = net::get<uint16_t>(header + 4);
  frame.kind = net::get<uint16_t>(header + 6);
  frame.payload.resize(net::get<uint32_t>(header + 8));
  if (!receive_bytes(frame.payload.data(), frame.payload.size(), until_ns)) return std::nullopt;
  frame.bytes += frame.payload;
  return frame;
}

std::optional<Stranger::Frame> Stranger::receive(uint64_t timeout_ms) {
  const uint64_t until_ns = deadline_in_ms(timeout_ms);
  unsigned char header[16];
  if (!receive_bytes(header, sizeof header, until_ns)) return std::nullopt;
  if (header[0] != 'W' || header[1] != 'C') return std::nullopt;
  Frame frame;
  frame.message = static_cast<Message>(header[3]);
  frame.rank = net::get<uint32_t>(header + 8);
  frame.round = net::get<uint32_t>(header + 12);
  frame.payload.resize(net::get<uint32_t>(header + 4));
  if (!receive_bytes(frame.payload.data(), frame.payload.size(), until_ns)) return std::nullopt;
  return frame;
}

void Stranger::hang_up() {
  if (connection_.is_open()) shutdown(connection_.fd(), SHUT_RDWR);
  connection_.close();
}

int accept_one(int listener) {
  std::vector<pollfd> entries{{listener, POLLIN, 0}};
  EXPECT_TRUE(wait_for_events(&entries, deadline_in_ms(5'000)).ok());
  return net::accept_locally(listener);
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
  net::Handshake client = client_of({secret, rank, rank_count, now_ns() + patience_us * 1000});
  const std::string first = take_out(&client);
  stranger->send(first);
  const auto challenge = stranger->receive_handshake();
  if (!challenge || challenge->kind != kChallenge) return "";
  feed(&client, challenge->bytes);
  client.prove();
  const std::string proof = take_out(&client);
  stranger->send(proof);
  const auto welcome = stranger->receive_handshake();
  if (!welcome || welcome->kind != kWelcome) return "";
  feed(&client, welcome->bytes);
  EXPECT_EQ(client.state(), net::Handshake::State::kProven);
  return first + proof;
}

std::string shake_hands(Stranger* stranger, const Secret& secret, Rank rank, Rank rank_count,
                        uint64_t patience_us) {
  const std::string sent = prove(stranger, secret, rank, rank_count, patience_us);
  if (sent.empty()) return "";
  const auto admit = stranger->receive();
  return admit && admit->message == Message::kAdmit ? sent : "";
}

}  // namespace weir::comm
