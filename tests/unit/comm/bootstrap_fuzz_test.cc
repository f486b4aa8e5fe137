// SPDX-License-Identifier: Apache-2.0
// Random damage to the frames of the handshake. Whatever arrives, nobody gets in with it, nothing
// is held up by it, and the honest rank that comes last finds rank 0 well. WEIR_TEST_SEED repeats a
// run.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <thread>

#include "core/base/clock.h"
#include "core/comm/bootstrap_channel.h"
#include "core/comm/bootstrap_door.h"
#include "core/comm/bootstrap_knock.h"
#include "unit/comm/bootstrap_support.h"

namespace weir::comm {
namespace {

using wire::Kind;

constexpr uint64_t kPatienceUs = 20'000'000;

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
        if (bytes->size() >= wire::kHeaderBytes) {
          const size_t field = 4 + 2 * below(6);
          const char value = "\x00\xff\x7f\x01"[below(4)];
          (*bytes)[field] = (*bytes)[field + 1] = value;
        }
        break;
      case 7:  // another kind
        if (bytes->size() >= wire::kHeaderBytes) (*bytes)[6] = static_cast<char>(below(11));
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
    wire::Claim claim;
    claim.guest_nonce = fresh_secret().bytes;
    claim.rank = 1;
    claim.rank_count = 2;
    claim.patience_us = kPatienceUs;
    const std::string hello = wire::encode_hello(claim.guest_nonce);
    const std::string sent_hello = damage.apply(hello);
    const bool is_whole = sent_hello.starts_with(hello);
    send_in_pieces(&stranger, sent_hello, &damage);
    // A truncated frame has no answer: do not wait for one.
    const auto challenge = stranger.receive(is_whole ? 5'000 : 1);
    if (is_whole) {
      ASSERT_TRUE(challenge.has_value()) << i;
    }
    if (!challenge) continue;
    if (challenge->header.kind != Kind::kChallenge) {
      EXPECT_EQ(challenge->header.kind, Kind::kTurnedAway);
      continue;
    }
    ++challenged_count;
    claim.host_nonce = wire::decode_nonce(challenge->payload);
    const std::string proof = wire::encode_proof(secret, claim);
    const std::string sent_proof = damage.apply(proof);
    // Only the right bytes in the right place would be welcome.
    if (sent_hello == hello && sent_proof.starts_with(proof)) continue;
    send_in_pieces(&stranger, sent_proof, &damage);
    const auto reply = stranger.receive(1);
    if (reply) {
      EXPECT_EQ(reply->header.kind, Kind::kTurnedAway) << i;
    }
  }
  EXPECT_GT(challenged_count, 100);
  const Outcome one = play(secret, {1, 2});
  thread.join();
  EXPECT_TRUE(one.status.ok()) << one.status.text();
  EXPECT_TRUE(zero.status.ok()) << zero.status.text();
}

TEST(BootstrapFuzz, NoDamagedHostIsBelieved) {
  Damage damage(test_seed());
  const Secret secret = fresh_secret();
  Fd listener;
  ASSERT_TRUE(listen_at(door_name(secret), 8, &listener).ok());
  int welcome_count = 0;
  for (int i = 0; i < 600; ++i) {
    bool is_honest = true;
    std::thread host([&] {
      std::vector<pollfd> entries{{listener.get(), POLLIN, 0}};
      ASSERT_TRUE(wait_for_events(&entries, deadline_in_ms(5'000)).ok());
      Fd connection;
      ASSERT_EQ(accept_at(listener.get(), &connection), Accept::kAccepted);
      Stranger self(std::move(connection));
      wire::Claim claim;
      claim.role = wire::Role::kHost;
      claim.host_nonce = fresh_secret().bytes;
      const auto hello = self.receive();
      if (!hello) return;
      claim.guest_nonce = wire::decode_nonce(hello->payload);
      const std::string challenge = wire::encode_challenge(claim.host_nonce);
      const std::string sent_challenge = damage.apply(challenge);
      is_honest = sent_challenge == challenge;
      send_in_pieces(&self, sent_challenge, &damage);
      const auto proof = self.receive(is_honest ? 5'000 : 1);
      if (!proof) return;
      (void)wire::decode_proof(proof->payload, &claim);
      const std::string welcome = wire::encode_welcome(secret, claim);
      const std::string sent_welcome = damage.apply(welcome);
      is_honest = is_honest && sent_welcome == welcome;
      send_in_pieces(&self, sent_welcome, &damage);
      self.send(wire::encode_admit());
    });  // hangs up
    auto entry = knock({secret, 1, 2, deadline_in_ms(5'000)}, door_name(secret));
    host.join();
    const bool is_in = entry.ok() && entry.value().has_value();
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
      send_in_pieces(&one,
                     damage.apply(wire::encode_give(1, kPatienceUs, record(1, "a small blob"))),
                     &damage);
      send_in_pieces(&one, damage.apply(wire::encode_failure(1, Status(Code::kAborted, "gone"))),
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

TEST(BootstrapFuzz, AGuestSurvivesADamagedResult) {
  Damage damage(test_seed());
  const Secret secret = fresh_secret();
  Fd listener;
  ASSERT_TRUE(listen_at(door_name(secret), 8, &listener).ok());
  for (int i = 0; i < 300; ++i) {
    std::thread host([&] {
      std::vector<pollfd> entries{{listener.get(), POLLIN, 0}};
      ASSERT_TRUE(wait_for_events(&entries, deadline_in_ms(5'000)).ok());
      Fd connection;
      ASSERT_EQ(accept_at(listener.get(), &connection), Accept::kAccepted);
      Stranger self(std::move(connection));
      wire::Claim claim;
      claim.role = wire::Role::kHost;
      const auto hello = self.receive();
      ASSERT_TRUE(hello.has_value());
      claim.guest_nonce = wire::decode_nonce(hello->payload);
      self.send(wire::encode_challenge(claim.host_nonce));
      const auto proof = self.receive();
      ASSERT_TRUE(proof.has_value());
      (void)wire::decode_proof(proof->payload, &claim);
      self.send(wire::encode_welcome(secret, claim));
      self.send(wire::encode_admit());
      const std::string result =
          wire::encode_ready() + wire::encode_take(1, record(0, "zero") + record(1, "one"));
      send_in_pieces(&self, damage.apply(result), &damage);
    });
    const uint64_t start_ns = now_ns();
    auto guest = Bootstrap::join(secret, 1, 2, deadline_in_ms(20'000));
    if (guest.ok()) {
      auto blobs = guest.value()->all_gather("one", deadline_in_ms(20'000));
      if (blobs.ok()) {
        EXPECT_EQ(blobs.value().size(), 2u);
      }
    }
    EXPECT_LT(static_cast<double>(now_ns() - start_ns) * 1e-9, kAtOnceSeconds);
    host.join();
  }
}

TEST(BootstrapFuzz, FramesComeOutAsTheyWentInWhateverThePieces) {
  Damage damage(test_seed());
  for (int i = 0; i < 50; ++i) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    Stranger sender{Fd(ends[0])};
    Channel channel{Fd(ends[1])};
    std::vector<std::string> blobs;
    std::string bytes;
    for (size_t k = damage.below(20); k > 0; --k) {
      blobs.emplace_back(damage.below(300), damage.byte());
      bytes += wire::encode_take(1, record(static_cast<Rank>(blobs.size()), blobs.back()));
    }
    size_t read_count = 0;
    while (!bytes.empty()) {
      const size_t size = std::min(bytes.size(), 1 + damage.below(100));
      sender.send(bytes.substr(0, size));
      bytes.erase(0, size);
      while (channel.read({Kind::kTake}) == Channel::Read::kFrame) {
        Rank rank = 0;
        std::string_view records = channel.payload();
        std::string_view blob;
        ASSERT_LT(read_count, blobs.size());
        ASSERT_TRUE(wire::take_record(&records, &rank, &blob));
        EXPECT_TRUE(records.empty());
        EXPECT_EQ(blob, blobs[read_count]);
        EXPECT_EQ(rank, ++read_count);
      }
    }
    EXPECT_EQ(read_count, blobs.size());
    EXPECT_EQ(channel.read({Kind::kTake}), Channel::Read::kNothing);
    sender.hang_up();
    EXPECT_EQ(channel.read({Kind::kTake}), Channel::Read::kClosed);
  }
}

TEST(BootstrapFuzz, NoHeaderMakesAReaderTakeMoreThanTheLimit) {
  Damage damage(test_seed());
  for (int i = 0; i < 20'000; ++i) {
    std::string frame = damage.apply(wire::encode_give(1, kPatienceUs, record(1, "blob")));
    frame.resize(wire::kHeaderBytes);
    unsigned char bytes[wire::kHeaderBytes];
    std::copy(frame.begin(), frame.end(), bytes);
    wire::Header header;
    if (!wire::decode_header(bytes, &header) || !wire::header_fits(header)) continue;
    EXPECT_LE(header.payload_bytes, wire::kRecordsBytesMax + 8);
  }
}

TEST(BootstrapFuzz, AFailureTextCannotRedrawATerminal) {
  Damage damage(test_seed());
  for (int i = 0; i < 200; ++i) {
    std::string payload(4 + damage.below(100), '\0');
    for (char& byte : payload) byte = damage.byte();
    const Status status = wire::decode_failure(payload);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.code(), Code::kInProgress);
    for (const char c : status.text()) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
    }
  }
}

}  // namespace
}  // namespace weir::comm
