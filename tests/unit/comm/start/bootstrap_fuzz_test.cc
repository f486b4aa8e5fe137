// SPDX-License-Identifier: Apache-2.0
// Random damage to the frames of the handshake. Whatever arrives, nobody gets in with it, nothing
// is held up by it, and the honest rank that comes last finds rank 0 well. WEIR_TEST_SEED repeats a
// run.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <thread>

#include "core/base/clock.h"
#include "net/unix_socket.h"
#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

constexpr uint64_t kPatienceNs = 20'000'000'000;

uint64_t test_seed() {
  const char* text = getenv("WEIR_TEST_SEED");
  const uint64_t seed = text != nullptr ? strtoull(text, nullptr, 0) : std::random_device()();
  std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

class Damage {
 public:
  explicit Damage(uint64_t seed) : random_(seed) {}

  size_t below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  char byte() { return static_cast<char>(random_()); }

  // `bytes` changed in one to four places; sometimes left as they are.
  std::string apply(std::string bytes) {
    for (size_t i = below(5); i > 0; --i) once(&bytes);
    return bytes;
  }

 private:
  void once(std::string* bytes) {
    const size_t at = below(bytes->size());
    switch (below(8)) {
      case 0:  // a bit
        if (!bytes->empty()) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << below(8)));
        break;
      case 1:  // a byte
        if (!bytes->empty()) (*bytes)[at] = byte();
        break;
      case 2:
        bytes->resize(at);
        break;
      case 3:
        bytes->insert(at, below(40), byte());
        break;
      case 4:
        bytes->erase(at, below(8));
        break;
      case 5:  // twice, or a part of it again
        bytes->append(bytes->substr(at));
        break;
      case 6:  // a field of the header becomes extreme
        if (bytes->size() >= net::Handshake::kHeaderBytes) {
          const size_t field = 4 + 2 * below(6);
          const char value = "\x00\xff\x7f\x01"[below(4)];
          (*bytes)[field] = (*bytes)[field + 1] = value;
        }
        break;
      case 7:  // another kind
        if (bytes->size() >= 16)
          (*bytes)[below(2) == 0 ? 6 : 2 + below(2)] = static_cast<char>(below(11));
        break;
    }
  }

  std::mt19937_64 random_;
};

// In up to four pieces.
void send_in_pieces(Stranger* stranger, std::string_view bytes, Damage* damage) {
  for (int i = 0; i < 3 && !bytes.empty(); ++i) {
    const size_t size = damage->below(bytes.size() + 1);
    stranger->send(bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  stranger->send(bytes);
}

TEST(BootstrapFuzz, NoDamagedHandshakeIsWelcome) {
  Damage damage(test_seed());
  const Secret secret = fresh_secret();
  Outcome zero;
  std::thread thread([&] { zero = play(secret, {0, 2}); });
  int challenged_count = 0;
  for (int i = 0; i < 1500; ++i) {
    Stranger stranger(secret);
    net::Handshake client = client_of({secret, 1, 2, now_ns() + kPatienceNs});
    const std::string first = take_out(&client);
    const std::string sent_first = damage.apply(first);
    const bool is_whole = sent_first.starts_with(first);
    send_in_pieces(&stranger, sent_first, &damage);
    // A truncated frame has no answer: do not wait for one.
    const auto challenge = stranger.receive_handshake(is_whole ? 5'000 : 1);
    if (is_whole) {
      ASSERT_TRUE(challenge.has_value()) << i;
    }
    if (!challenge) continue;
    if (challenge->kind != kChallenge) {
      EXPECT_EQ(challenge->kind, kRefused);
      continue;
    }
    ++challenged_count;
    feed(&client, challenge->bytes);
    client.prove();
    const std::string proof = take_out(&client);
    const std::string sent_proof = damage.apply(proof);
    // Only the right bytes in the right place would be welcome.
    if (sent_first == first && sent_proof.starts_with(proof)) continue;
    send_in_pieces(&stranger, sent_proof, &damage);
    const auto reply = stranger.receive_handshake(1);
    if (reply) {
      EXPECT_EQ(reply->kind, kRefused) << i;
    }
  }
  EXPECT_GT(challenged_count, 100);
  const Outcome one = play(secret, {1, 2});
  thread.join();
  EXPECT_TRUE(one.status.ok()) << one.status.text();
  EXPECT_TRUE(zero.status.ok()) << zero.status.text();
}

TEST(BootstrapFuzz, NoDamagedParentIsBelieved) {
  Damage damage(test_seed());
  const Secret secret = fresh_secret();
  const net::Stream listener(net::listen_locally(socket_name(secret), 8));
  ASSERT_TRUE(listener.is_open());
  int welcome_count = 0;
  for (int i = 0; i < 600; ++i) {
    bool is_honest = true;
    std::thread host([&] {
      Stranger self(accept_one(listener.fd()));
      ASSERT_TRUE(self.connected());
      net::Handshake server = server_of(secret, 0, 2);
      const auto first = self.receive_handshake();
      if (!first) return;
      feed(&server, first->bytes);
      const std::string challenge = take_out(&server);
      const std::string sent_challenge = damage.apply(challenge);
      is_honest = sent_challenge == challenge;
      send_in_pieces(&self, sent_challenge, &damage);
      const auto proof = self.receive_handshake(is_honest ? 5'000 : 1);
      if (!proof) return;
      feed(&server, proof->bytes);
      server.welcome();
      const std::string welcome = take_out(&server);
      const std::string sent_welcome = damage.apply(welcome);
      is_honest = is_honest && sent_welcome.starts_with(welcome);
      send_in_pieces(&self, sent_welcome, &damage);
    });  // hangs up
    auto found = connect_locally({secret, 1, 2, deadline_in_ms(5'000)}, socket_name(secret));
    host.join();
    const bool is_in = found.ok() && found.value().link != nullptr;
    EXPECT_EQ(is_in, is_honest) << i;
    if (is_in) ++welcome_count;
  }
  EXPECT_GT(welcome_count, 10);
}

TEST(BootstrapFuzz, DamageAfterTheWelcomeEndsInAnErrorAndNeverInAWait) {
  Damage damage(test_seed());
  for (int i = 0; i < 300; ++i) {
    const Secret secret = fresh_secret();
    Outcome zero;
    std::thread thread([&] { zero = play(secret, {0, 2}); });
    {
      Stranger one(secret);
      ASSERT_FALSE(shake_hands(&one, secret, 1, 2).empty());
      ASSERT_TRUE(one.receive().has_value());
      send_in_pieces(&one, damage.apply(give(1, record(1, "a small blob"))), &damage);
      send_in_pieces(
          &one,
          damage.apply(frame(Message::kFailure, 1, pack_failure(Status(Code::kAborted, "gone")))),
          &damage);
    }
    thread.join();
    EXPECT_LT(zero.seconds, kAtOnceSeconds);
    // Rank 0 may have got a blob before the connection ended, but never waits for more.
    if (!zero.status.ok()) {
      EXPECT_FALSE(zero.status.text().empty());
    }
  }
}

TEST(BootstrapFuzz, AChildSurvivesADamagedResult) {
  Damage damage(test_seed());
  const Secret secret = fresh_secret();
  const net::Stream listener(net::listen_locally(socket_name(secret), 8));
  ASSERT_TRUE(listener.is_open());
  for (int i = 0; i < 300; ++i) {
    std::thread host([&] {
      Stranger self(accept_one(listener.fd()));
      ASSERT_TRUE(self.connected());
      net::Handshake server = server_of(secret, 0, 2);
      const auto first = self.receive_handshake();
      ASSERT_TRUE(first.has_value());
      feed(&server, first->bytes);
      self.send(take_out(&server));
      const auto proof = self.receive_handshake();
      ASSERT_TRUE(proof.has_value());
      feed(&server, proof->bytes);
      server.welcome();
      self.send(take_out(&server));
      self.send(frame(Message::kAdmit, 0, ""));
      const std::string result = frame(Message::kTake, 0, "") +
                                 frame(Message::kTake, 1, record(0, "zero") + record(1, "one"));
      send_in_pieces(&self, damage.apply(result), &damage);
    });
    const uint64_t start_ns = now_ns();
    auto child = Bootstrap::join(secret, 1, 2, deadline_in_ms(20'000));
    if (child.ok()) {
      auto blobs = child.value()->all_gather("one", deadline_in_ms(20'000));
      if (blobs.ok()) {
        EXPECT_EQ(blobs.value().size(), 2u);
      }
    }
    EXPECT_LT(static_cast<double>(now_ns() - start_ns) * 1e-9, kAtOnceSeconds);
    host.join();
  }
}

// After the proof, on a host, where a frame has no MAC.
TEST(BootstrapFuzz, FramesComeOutAsTheyWentInWhateverThePieces) {
  Damage damage(test_seed());
  const Secret secret = fresh_secret();
  for (int i = 0; i < 50; ++i) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    Stranger sender(ends[0]);
    control::Link link(net::Stream(ends[1]), true, server_of(secret, 0, 2));
    std::thread proving([&] { ASSERT_NE(prove(&sender, secret, 1, 2), ""); });
    for (int error_number = 0; !link.is_proven(); sleep_ns(10'000, UINT64_MAX)) {
      ASSERT_EQ(link.advance(&error_number), control::Link::Step::kGoesOn);
      link.handshake().welcome();
    }
    proving.join();
    std::vector<std::string> blobs;
    std::string bytes;
    for (size_t k = damage.below(20); k > 0; --k) {
      blobs.emplace_back(damage.below(300), damage.byte());
      bytes += frame(Message::kTake, 1, record(static_cast<Rank>(blobs.size()), blobs.back()));
    }
    size_t read_count = 0;
    const auto take = [&](const control::Frame& one) {
      Rank rank = 0;
      std::string_view records = one.payload;
      std::string_view blob;
      EXPECT_LT(read_count, blobs.size());
      EXPECT_TRUE(take_record(&records, &rank, &blob));
      EXPECT_TRUE(records.empty());
      EXPECT_EQ(blob, blobs[read_count]);
      EXPECT_EQ(rank, ++read_count);
      return true;
    };
    while (!bytes.empty()) {
      const size_t size = std::min(bytes.size(), 1 + damage.below(100));
      sender.send(bytes.substr(0, size));
      bytes.erase(0, size);
      ASSERT_TRUE(link.receive(take));
    }
    EXPECT_EQ(read_count, blobs.size());
    EXPECT_TRUE(link.receive(take));
    sender.hang_up();
    EXPECT_FALSE(link.receive(take));
    EXPECT_FALSE(link.is_malformed());
  }
}

TEST(BootstrapFuzz, AFailureTextCannotRedrawATerminal) {
  Damage damage(test_seed());
  for (int i = 0; i < 200; ++i) {
    std::string payload(damage.below(100), '\0');
    for (char& byte : payload) byte = damage.byte();
    const Status status = unpack_failure(payload);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), Code::kInProgress);
    EXPECT_FALSE(status.text().empty());
    for (const char c : status.text()) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
    }
  }
}

}  // namespace
}  // namespace weir::comm
