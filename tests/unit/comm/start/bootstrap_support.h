// SPDX-License-Identifier: Apache-2.0
// What the tests of the bootstrap share: ranks as threads, deadlines, and a socket that speaks for
// itself.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/start/bootstrap.h"
#include "core/comm/start/bootstrap_node.h"
#include "core/comm/start/bootstrap_parent.h"
#include "net/handshake.h"
#include "net/stream.h"

namespace weir::comm {

// Deadlines are 20 s where none should pass. What must not wait for one ends well before, even when
// the machine stands still for a while.
inline constexpr double kAtOnceSeconds = 10;

uint64_t deadline_in_ms(uint64_t ms);
// Sleeps, at most until `until_ns`.
void sleep_ns(uint64_t duration_ns, uint64_t until_ns);
Secret fresh_secret();

struct Player {
  Rank rank = 0;
  Rank rank_count = 0;
  uint64_t timeout_ms = 20'000;
};

// What a rank got from joining, or from the first all_gather after it that failed.
struct Outcome {
  Status status;
  std::vector<std::string> blobs;  // of the last all_gather
  double seconds = 0;
};

// Joins as `player` and gathers `rounds` times the text "<rank>:<round>:<blob_bytes × x>".
Outcome play(const Secret& secret, const Player& player, int rounds = 1, size_t blob_bytes = 0);
std::vector<std::string> expected_blobs(Rank rank_count, int round, size_t blob_bytes);

// One thread per player.
std::vector<Outcome> play_all(const Secret& secret, const std::vector<Player>& players,
                              int rounds = 1, size_t blob_bytes = 0);
std::vector<Player> all_ranks(Rank rank_count, uint64_t timeout_ms = 20'000);

// ---- Bytes of the protocol

// What a rank gives, as kGive holds it.
std::string record(Rank rank, std::string_view blob);
// Frames without a MAC.
std::string frame(Message message, uint32_t round, std::string_view payload, Rank rank = 0);
std::string give(uint32_t round, std::string_view records, uint64_t patience_us = 20'000'000);

// Kinds of the handshake's frames (net/handshake.h).
enum HandshakeKind : uint16_t {
  kHello = 1,
  kChallenge = 2,
  kProof = 3,
  kWelcome = 4,
  kRefused = 5
};
std::string handshake_frame(HandshakeKind kind, std::string_view payload,
                            uint16_t version = net::Handshake::kProtocolVersion);
std::string hello();

// The two ends of a handshake, with fresh nonces; what each has to say is to be taken.
net::Handshake client_of(const JoiningRank& self);
net::Handshake server_of(const Secret& secret, Rank rank, Rank rank_count);
std::string take_out(net::Handshake* handshake);
void feed(net::Handshake* handshake, std::string_view bytes);

size_t open_descriptor_count();

// A client of the root that does what the test says; blocking, with limits.
class Stranger {
 public:
  // Tries to connect until somebody listens, for at most 5 s.
  explicit Stranger(const Secret& secret);
  // Owns the descriptor.
  explicit Stranger(int connection) : connection_(connection) {}

  bool connected() const { return connection_.is_open(); }
  void send(std::string_view bytes);
  // The next frame of the handshake, or nothing when the peer hung up or was silent for
  // `timeout_ms`.
  struct HandshakeFrame {
    uint16_t version = 0;
    uint16_t kind = 0;
    std::string payload{};
    std::string bytes{};  // all of it
  };
  std::optional<HandshakeFrame> receive_handshake(uint64_t timeout_ms = 5'000);
  // The next frame after the handshake, without a MAC.
  struct Frame {
    Message message = Message::kAdmit;
    Rank rank = 0;
    uint32_t round = 0;
    std::string payload{};
  };
  std::optional<Frame> receive(uint64_t timeout_ms = 5'000);
  // Whether the peer hangs up within `timeout_ms`; bytes that arrive before are dropped.
  bool is_hung_up(uint64_t timeout_ms = 5'000);
  void hang_up();

 private:
  bool receive_bytes(void* data, size_t bytes, uint64_t until_ns);
  net::Stream connection_;
};

// Accepts one connection, which the caller owns; at most for 5 s.
int accept_one(int listener);

// Returns when somebody listens for the ranks with `secret`: who comes after that is not the root.
void await_root(const Secret& secret);

// Proves `rank` of `rank_count` through `stranger`; the bytes it sent, or "" when it was not
// welcome.
std::string prove(Stranger* stranger, const Secret& secret, Rank rank, Rank rank_count,
                  uint64_t patience_us = 20'000'000);
// The same, and waits for word that it is admitted, which over a network carries a MAC.
std::string shake_hands(Stranger* stranger, const Secret& secret, Rank rank, Rank rank_count,
                        uint64_t patience_us = 20'000'000);

}  // namespace weir::comm
