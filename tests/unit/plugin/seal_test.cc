// SPDX-License-Identifier: Apache-2.0
// hook_seal: what goes over the transport beneath says nothing, and nothing but what was sent is
// delivered.
#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/plugin/registry.h"
#include "plugins/hook/hook.h"
#include "plugins/hook_seal/cipher.h"
#include "plugins/hook_seal/keys.h"
#include "unit/plugin/pair.h"

namespace weir::plugins {
namespace {

using hook_seal::Cipher;
using hook_seal::kBodyBytesMax;
using hook_seal::kHeadBytes;
using hook_seal::kHeadDataBytes;
using hook_seal::kTagBytes;
using hook_seal::TrafficSecret;
using Bytes = std::vector<unsigned char>;

// ---- The pieces ----

TrafficSecret secret_of(unsigned char byte) {
  TrafficSecret secret;
  secret.fill(byte);
  return secret;
}

std::unique_ptr<Cipher> cipher_of(unsigned char byte, Cipher::Use use,
                                  uint64_t records_max = hook_seal::kRecordsMax) {
  TrafficSecret secret = secret_of(byte);
  auto made = std::make_unique<Cipher>(&secret, use, records_max);
  EXPECT_TRUE(made->is_usable());
  EXPECT_EQ(secret, secret_of(0)) << "is wiped";
  return made;
}

Bytes counted(size_t bytes) {
  Bytes data(bytes);
  std::iota(data.begin(), data.end(), static_cast<unsigned char>(1));
  return data;
}

TEST(SealCipher, WhatWasSealedOpensInItsOrder) {
  const auto seals = cipher_of(1, Cipher::Use::kSeals);
  const auto opens = cipher_of(1, Cipher::Use::kOpens);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{487},
                             kHeadDataBytes, size_t{489}, size_t{5000}, kBodyBytesMax}) {
    const Bytes data = counted(bytes);
    Bytes head(kHeadBytes);
    ASSERT_TRUE(seals->seal_head(bytes, data.data(), head.data()));
    Bytes got(bytes + 1, 0xee);
    uint64_t told = 77;
    ASSERT_TRUE(opens->open_head(head.data(), &told, got.data(), bytes));
    EXPECT_EQ(told, bytes);
    const size_t part = std::min(bytes, kHeadDataBytes);
    EXPECT_TRUE(
        std::equal(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(part), got.begin()));
    EXPECT_EQ(got[part], part == bytes ? 0xee : got[part]);

    Bytes body(bytes + kTagBytes);
    ASSERT_TRUE(seals->seal_body(data.data(), bytes, body.data()));
    ASSERT_TRUE(opens->open_body(body.data(), bytes, got.data()));
    EXPECT_TRUE(std::equal(data.begin(), data.end(), got.begin()));
    EXPECT_EQ(got[bytes], 0xee);
  }
}

TEST(SealCipher, AHeadDeliversNoMoreThanThereIsRoomFor) {
  const auto seals = cipher_of(1, Cipher::Use::kSeals);
  const auto opens = cipher_of(1, Cipher::Use::kOpens);
  const Bytes data = counted(300);
  Bytes head(kHeadBytes);
  ASSERT_TRUE(seals->seal_head(data.size(), data.data(), head.data()));
  Bytes got(300, 0xee);
  uint64_t told = 0;
  ASSERT_TRUE(opens->open_head(head.data(), &told, got.data(), 10));
  EXPECT_EQ(told, 300u);
  EXPECT_EQ(got[9], data[9]);
  EXPECT_EQ(got[10], 0xee);
}

TEST(SealCipher, AnyBitThatChangesIsFoundAndNothingIsDelivered) {
  const Bytes data = counted(40);
  Bytes piece(data.size() + kTagBytes);
  ASSERT_TRUE(cipher_of(1, Cipher::Use::kSeals)->seal_body(data.data(), data.size(), piece.data()));
  for (size_t bit = 0; bit < piece.size() * 8; ++bit) {
    Bytes changed = piece;
    changed[bit / 8] = static_cast<unsigned char>(changed[bit / 8] ^ (1u << bit % 8));
    Bytes got(data.size(), 0xee);
    EXPECT_FALSE(
        cipher_of(1, Cipher::Use::kOpens)->open_body(changed.data(), data.size(), got.data()));
    EXPECT_EQ(got, Bytes(data.size(), 0)) << bit;
  }
}

TEST(SealCipher, APieceOpensInItsOwnPlaceOnlyAndAtItsOwnLength) {
  const auto seals = cipher_of(1, Cipher::Use::kSeals);
  const Bytes data = counted(64);
  std::vector<Bytes> pieces(4, Bytes(data.size() + kTagBytes));
  for (Bytes& piece : pieces) {
    ASSERT_TRUE(seals->seal_body(data.data(), data.size(), piece.data()));
  }
  EXPECT_NE(pieces[0], pieces[1]) << "the same bytes look different each time";
  Bytes got(data.size());
  for (size_t place = 0; place < pieces.size(); ++place) {
    for (size_t which = 0; which < pieces.size(); ++which) {
      const auto opens = cipher_of(1, Cipher::Use::kOpens);
      for (size_t i = 0; i < place; ++i) {
        ASSERT_TRUE(opens->open_body(pieces[i].data(), data.size(), got.data()));
      }
      EXPECT_EQ(opens->open_body(pieces[which].data(), data.size(), got.data()), which == place)
          << which << " in the place of " << place;
    }
  }
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{48}, size_t{63}}) {
    EXPECT_FALSE(cipher_of(1, Cipher::Use::kOpens)->open_body(pieces[0].data(), bytes, got.data()));
  }
  EXPECT_FALSE(
      cipher_of(2, Cipher::Use::kOpens)->open_body(pieces[0].data(), data.size(), got.data()));
}

TEST(SealCipher, AKeyEndsBeforeItsLimitOnBothSidesAlike) {
  constexpr uint64_t kLimit = 10;
  const auto seals = cipher_of(1, Cipher::Use::kSeals, kLimit);
  const auto opens = cipher_of(1, Cipher::Use::kOpens, kLimit);
  const auto forgets = cipher_of(1, Cipher::Use::kOpens);
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  uint64_t records = 0;
  uint64_t keys = 1;
  bool forgotten = false;
  for (int i = 0; i < 200; ++i) {
    const size_t bytes = random() % 2 == 0 ? random() % 100 : random() % kBodyBytesMax;
    const uint64_t added = std::max<size_t>(1, (bytes + 16383) / 16384);
    if (records != 0 && records + added > kLimit) {
      ++keys;
      records = 0;
    }
    records += added;
    const Bytes data = counted(bytes);
    Bytes piece(bytes + kTagBytes), got(bytes);
    ASSERT_TRUE(seals->seal_body(data.data(), bytes, piece.data()));
    ASSERT_TRUE(opens->open_body(piece.data(), bytes, got.data())) << i;
    EXPECT_EQ(got, data);
    EXPECT_EQ(seals->key_count(), keys);
    EXPECT_EQ(opens->key_count(), keys);
    forgotten = !forgets->open_body(piece.data(), bytes, got.data()) || forgotten;
    EXPECT_EQ(forgotten, keys > 1) << "it is another key";
  }
  EXPECT_GT(keys, 20u);
}

// ---- The keys ----

struct TwoKeys {
  hook_seal::Keys end[2];
  TwoKeys(const char* a, const char* b, uint64_t id_a = 7, uint64_t id_b = 7,
          const char* transport_b = "ucx") {
    EXPECT_TRUE(end[0].open(reinterpret_cast<const unsigned char*>(a), strlen(a), id_a, 0, "ucx"));
    EXPECT_TRUE(
        end[1].open(reinterpret_cast<const unsigned char*>(b), strlen(b), id_b, 1, transport_b));
    for (auto& one : end) one.set_peers({end[0].own(), end[1].own()});
  }
  TrafficSecret of(uint32_t rank, uint32_t peer, uint32_t lane, bool sending) {
    TrafficSecret secret{};
    EXPECT_TRUE(end[rank].traffic_secret(peer, lane, sending, &secret));
    return secret;
  }
};

TEST(SealKeys, BothEndsHaveThoseOfADirectionAndALaneAndNoTwoAreTheSame) {
  TwoKeys keys("the secret of a job", "the secret of a job");
  std::vector<TrafficSecret> all;
  for (uint32_t lane = 0; lane < 3; ++lane) {
    EXPECT_EQ(keys.of(0, 1, lane, true), keys.of(1, 0, lane, false));
    EXPECT_EQ(keys.of(0, 1, lane, false), keys.of(1, 0, lane, true));
    all.push_back(keys.of(0, 1, lane, true));
    all.push_back(keys.of(0, 1, lane, false));
    all.push_back(keys.of(0, 0, lane, true));
    all.push_back(keys.of(1, 1, lane, true));
  }
  // Other instances, of the same ranks and the same secret.
  TwoKeys again("the secret of a job", "the secret of a job");
  all.push_back(again.of(0, 1, 0, true));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
}

TEST(SealKeys, AnotherSecretIdTransportOrPublicKeyGivesOthers) {
  TwoKeys secret("the secret of a job", "another secret");
  EXPECT_NE(secret.of(0, 1, 0, true), secret.of(1, 0, 0, false));
  TwoKeys id("the secret of a job", "the secret of a job", 7, 8);
  EXPECT_NE(id.of(0, 1, 0, true), id.of(1, 0, 0, false));
  TwoKeys transport("the secret of a job", "the secret of a job", 7, 7, "ofi");
  EXPECT_NE(transport.of(0, 1, 0, true), transport.of(1, 0, 0, false));
  TwoKeys key("the secret of a job", "the secret of a job");
  TwoKeys other("the secret of a job", "the secret of a job");
  key.end[1].set_peers({other.end[0].own(), key.end[1].own()});
  EXPECT_NE(key.of(0, 1, 0, true), key.of(1, 0, 0, false));
}

TEST(SealKeys, ZerosAreNobodysKey) {
  hook_seal::Keys keys;
  const unsigned char secret[] = {1, 2, 3};
  ASSERT_TRUE(keys.open(secret, sizeof secret, 7, 0, "ucx"));
  keys.set_peers({keys.own(), {}});
  TrafficSecret got;
  EXPECT_FALSE(keys.traffic_secret(1, 0, true, &got));
}

// ---- The hook ----

// The wire between the two ranks: what is sent is kept, and may be changed when it is received.
struct Wire {
  std::vector<Bytes> sent;
  std::vector<std::string> asked;  // values of WEIR_TLS that the transport beneath was told
};
Wire wire;

class Recorder final : public hook::Hook {
 public:
  static constexpr char kName[] = "recorder";
  static void limit(const weir_transport_part_t*, weir_transport_caps_t* caps) {
    caps->bits &= ~uint64_t{WEIR_CAP_SEALED};
  }
  using Hook::Hook;
  weir_result_t start(const weir_transport_config_t&) override {
    const char* tls = setting("WEIR_TLS");
    wire.asked.push_back(tls == nullptr ? "" : tls);
    return WEIR_OK;
  }
  weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                     weir_transport_op_t* op) override {
    const auto* first = static_cast<const unsigned char*>(data);
    wire.sent.emplace_back(first, first + bytes);
    return Hook::send(peer, lane, data, bytes, op);
  }
};

const weir_transport_functions_t* recorded() {
  static const weir_transport_functions_t* const made =
      hook::make_table<Recorder>(plugin::find_transport("shm").value());
  wire = {};
  return made;
}

bool contains(const Bytes& where, const std::string& what) {
  return std::search(where.begin(), where.end(), what.begin(), what.end()) != where.end();
}

bool is_seen(const std::string& what) {
  return std::any_of(wire.sent.begin(), wire.sent.end(),
                     [&](const Bytes& one) { return contains(one, what); });
}

// Both ends in one thread's hands: until the operation has ended.
weir_result_t finish(Pair* pair, uint32_t rank, weir_transport_op_t* op, weir_result_t posted) {
  const uint64_t end = monotonic_ns() + 30'000'000'000;
  while (posted == WEIR_IN_PROGRESS && monotonic_ns() < end) {
    (void)pair->f.progress(pair->end[0].instance);
    (void)pair->f.progress(pair->end[1].instance);
    posted = pair->f.test(pair->end[rank].instance, op);
  }
  return posted;
}

struct Exchange {
  weir_result_t sent;
  weir_result_t received;
  Bytes data;
};

// From rank 0 to rank 1.
Exchange exchange(Pair* pair, const Bytes& data, size_t room) {
  Exchange done;
  done.data.assign(room, 0xee);
  weir_transport_op_t send_op{}, recv_op{};
  const weir_result_t sent = pair->send(0, data.data(), data.size(), &send_op);
  const weir_result_t received = pair->recv(1, done.data.data(), room, &recv_op);
  done.received = finish(pair, 1, &recv_op, received);
  done.sent = done.received == WEIR_OK ? finish(pair, 0, &send_op, sent) : sent;
  return done;
}

TEST(HookSeal, NothingOfAMessageIsReadOnTheWire) {
  const std::string secret = "what nobody else shall read";
  for (const bool sealed : {false, true}) {
    const auto* transport = recorded();
    Pair pair(sealed ? plugin::sealed_for("all", transport).value() : transport);
    for (auto& end : pair.end) end.settings["WEIR_TLS"] = "all";
    pair.join();
    EXPECT_EQ(wire.asked, std::vector<std::string>(2, sealed ? "control" : "all"));
    for (const size_t bytes : {secret.size(), size_t{400}, size_t{3000}, size_t{1'000'000}}) {
      Bytes data(bytes, 'x');
      for (size_t at = 0; at + secret.size() <= bytes; at += 397) {
        std::copy(secret.begin(), secret.end(), data.begin() + static_cast<std::ptrdiff_t>(at));
      }
      const Exchange done = exchange(&pair, data, data.size());
      ASSERT_EQ(done.sent, WEIR_OK) << pair.end[0].error;
      ASSERT_EQ(done.received, WEIR_OK) << pair.end[1].error;
      EXPECT_EQ(done.data, data);
    }
    EXPECT_FALSE(wire.sent.empty());
    EXPECT_EQ(is_seen(secret), !sealed);
    EXPECT_EQ(is_seen("xxxxxxxx"), !sealed);
  }
}

TEST(HookSeal, TheSameMessageNeverLooksTheSame) {
  Pair pair(plugin::sealed_for("all", recorded()).value());
  pair.join();
  const Bytes data(200, 'a');
  for (int i = 0; i < 20; ++i) ASSERT_EQ(exchange(&pair, data, data.size()).received, WEIR_OK);
  ASSERT_EQ(wire.sent.size(), 20u);
  for (const Bytes& one : wire.sent)
    EXPECT_EQ(one.size(), kHeadBytes) << "short ones have one size";
  std::sort(wire.sent.begin(), wire.sent.end());
  EXPECT_EQ(std::unique(wire.sent.begin(), wire.sent.end()), wire.sent.end());
}

TEST(HookSeal, MessagesOfAllLengthsArriveInBothDirectionsAndOnManyAhead) {
  Pair pair(plugin::sealed_for("all", recorded()).value());
  pair.join();
  const size_t lengths[] = {0,    1,     487,        488,     489,     504,     8191,
                            8192, 65536, 128 * 1024, 131'560, 131'561, 500'000, 2'000'003};
  struct One {
    weir_transport_op_t op{};
    weir_result_t posted = WEIR_OK;
    Bytes data;
  };
  constexpr size_t kCount = std::size(lengths);
  for (const bool recv_first : {true, false}) {
    std::vector<One> sends(2 * kCount), recvs(2 * kCount);
    const auto post = [&](bool receives) {
      for (uint32_t i = 0; i < 2 * kCount; ++i) {
        const uint32_t rank = i % 2;
        One& one = receives ? recvs[i] : sends[i];
        one.data = receives ? Bytes(lengths[i / 2] + 1, 0xee) : counted(lengths[i / 2] + rank);
        one.posted = receives ? pair.recv(1 - rank, one.data.data(), lengths[i / 2], &one.op)
                              : pair.send(rank, one.data.data(), lengths[i / 2], &one.op);
      }
    };
    post(recv_first);
    post(!recv_first);
    for (uint32_t i = 0; i < 2 * kCount; ++i) {
      const uint32_t rank = i % 2;
      ASSERT_EQ(finish(&pair, 1 - rank, &recvs[i].op, recvs[i].posted), WEIR_OK)
          << pair.end[1 - rank].error;
      ASSERT_EQ(finish(&pair, rank, &sends[i].op, sends[i].posted), WEIR_OK)
          << pair.end[rank].error;
      EXPECT_TRUE(
          std::equal(recvs[i].data.begin(), recvs[i].data.end() - 1, sends[i].data.begin()));
      EXPECT_EQ(recvs[i].data.back(), 0xee);
    }
  }
}

TEST(HookSeal, AnotherLengthIsAMismatchWithBoth) {
  const size_t lengths[][2] = {{10, 20}, {400'000, 8}, {8, 400'000}, {0, 1}, {300'000, 300'001}};
  for (const auto& [sent, expected] : lengths) {
    Pair pair(plugin::sealed_for("all", recorded()).value());
    pair.join();
    const Exchange done = exchange(&pair, counted(sent), expected);
    EXPECT_EQ(done.received, WEIR_ERROR_MISMATCH);
    const std::string& text = pair.end[1].error;
    EXPECT_NE(text.find("sent " + std::to_string(sent) + " bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("receives " + std::to_string(expected)), std::string::npos) << text;
  }
}

// What hook_fault does beneath the seal, from the `at`-th operation on.
std::string sealed_over(const std::string& fault, size_t bytes, int good_count) {
  const auto* transport = plugin::wrap_with_hooks(recorded(), "seal,fault").value();
  Pair pair(transport);
  pair.end[0].settings["WEIR_FAULT"] = fault + ",rank=0";
  pair.end[1].settings["WEIR_FAULT"] = fault + ",rank=1";
  const bool at_receiver = fault.find("corrupt") == 0;
  pair.end[at_receiver ? 0 : 1].settings["WEIR_FAULT"] = "";
  pair.join();
  // Later messages are sent, too, so that one that was left out or repeated is followed by another.
  struct One {
    weir_transport_op_t op{};
    weir_result_t posted = WEIR_OK;
    Bytes data;
  };
  std::vector<One> sends(6), recvs(6);
  for (size_t i = 0; i < sends.size(); ++i) {
    sends[i].data = Bytes(bytes, static_cast<unsigned char>('a' + i));
    sends[i].posted = pair.send(0, sends[i].data.data(), bytes, &sends[i].op);
    recvs[i].data = Bytes(bytes, 0xee);
    recvs[i].posted = pair.recv(1, recvs[i].data.data(), bytes, &recvs[i].op);
  }
  int good = 0;
  weir_result_t result = WEIR_OK;
  for (size_t i = 0; i < recvs.size() && result == WEIR_OK; ++i) {
    result = finish(&pair, 1, &recvs[i].op, recvs[i].posted);
    if (result != WEIR_OK) break;
    EXPECT_EQ(recvs[i].data, sends[i].data) << "what is delivered is what was sent";
    ++good;
  }
  EXPECT_EQ(good, good_count) << fault;
  EXPECT_EQ(result, WEIR_ERROR_SYSTEM) << fault;
  const std::string text = pair.end[1].error;
  // It stays so: nothing more is delivered in this direction of this lane.
  weir_transport_op_t op{};
  Bytes more(bytes);
  EXPECT_EQ(pair.recv(1, more.data(), bytes, &op), WEIR_ERROR_SYSTEM);
  return text;
}

TEST(HookSeal, AChangedBitIsAnErrorThatNamesTheRanksAndNoData) {
  for (const size_t bytes : {size_t{100}, size_t{300'000}}) {
    // Of long messages it is a body.
    const std::string text = sealed_over("corrupt_at=2,seed=3", bytes, bytes == 100 ? 1 : 0);
    EXPECT_NE(text.find("from rank 0 to rank 1 (lane 0, number"), std::string::npos) << text;
    EXPECT_NE(text.find("was altered in transit"), std::string::npos) << text;
  }
}

TEST(HookSeal, ARepeatedMessageIsFoundOut) {
  const std::string text = sealed_over("duplicate_at=2", 100, 2);
  EXPECT_NE(text.find("number 2"), std::string::npos) << text;
  EXPECT_NE(text.find("repeated, dropped or reordered"), std::string::npos) << text;
}

TEST(HookSeal, MessagesInAnotherOrderAreFoundOut) {
  const std::string text = sealed_over("reorder_at=3", 100, 2);
  EXPECT_NE(text.find("number 2"), std::string::npos) << text;
}

TEST(HookSeal, AnotherPublicKeyOpensNothing) {
  Pair ranks(plugin::sealed_for("all", recorded()).value());
  unsigned char other[32] = {9};
  ASSERT_EQ(ranks.open(0), WEIR_OK);
  ASSERT_EQ(ranks.open(1), WEIR_OK);
  // Somebody between them gives rank 1 a key of his own in the place of rank 0's.
  memcpy(ranks.end[0].address, other, sizeof other);
  weir_result_t joined = WEIR_OK;
  std::thread helper([&] { joined = ranks.connect(1); });
  ASSERT_EQ(ranks.connect(0), WEIR_OK);
  helper.join();
  ASSERT_EQ(joined, WEIR_OK);
  const Exchange done = exchange(&ranks, counted(100), 100);
  EXPECT_EQ(done.received, WEIR_ERROR_SYSTEM);
  EXPECT_EQ(done.data, Bytes(100, 0xee)) << "nothing was delivered";
}

TEST(HookSeal, OneSidedOperationsAreNotThereAndTheReasonIsTold) {
  const auto* inner = recorded();
  weir_transport_functions_t with_put = *inner;
  with_put.name = "with_put";
  with_put.caps.bits |= WEIR_CAP_PUT;
  static weir_transport_functions_t kept;
  kept = with_put;
  const auto* sealed = plugin::sealed_for("all", &kept).value();
  ASSERT_NE(sealed->caps.bits & WEIR_CAP_PUT, 0u);
  Pair pair(sealed);
  ASSERT_EQ(pair.open(0), WEIR_OK) << pair.end[0].error;
  char reason[200] = "";
  EXPECT_EQ(sealed->remote_caps(pair.end[0].instance, reason, sizeof reason), 0u);
  EXPECT_NE(std::string(reason).find("one-sided operations cannot be (WEIR_TLS=all)"),
            std::string::npos)
      << reason;
  unsigned char byte = 0;
  weir_transport_memory_t* memory = nullptr;
  EXPECT_EQ(sealed->memory_register(pair.end[0].instance, &byte, 1, &memory),
            WEIR_ERROR_UNSUPPORTED);
  EXPECT_NE(pair.end[0].error.find("one-sided"), std::string::npos) << pair.end[0].error;
}

TEST(HookSeal, WhatEncryptsByItselfOrNeedNotIsLeftAsItIs) {
  const auto* inner = recorded();
  for (const char* tls : {"off", "control", "", static_cast<const char*>(nullptr)}) {
    EXPECT_EQ(plugin::sealed_for(tls, inner).value(), inner);
  }
  EXPECT_NE(plugin::sealed_for("all", inner).value(), inner);
  EXPECT_NE(plugin::sealed_for("all", inner).value()->caps.bits & WEIR_CAP_SEALED, 0u);
  for (const char* name : {"tcp", "shm", "self"}) {
    const auto* transport = plugin::find_transport(name).value();
    EXPECT_EQ(plugin::sealed_for("all", transport).value(), transport) << name;
  }
}

TEST(HookSeal, AnAddressWithoutAKeyIsRefused) {
  Pair pair(plugin::sealed_for("all", recorded()).value());
  ASSERT_EQ(pair.open(0), WEIR_OK);
  ASSERT_EQ(pair.open(1), WEIR_OK);
  pair.end[1].address_bytes = 31;
  EXPECT_EQ(pair.connect(0), WEIR_ERROR_INVALID_ARGUMENT);
  EXPECT_NE(pair.end[0].error.find("rank 1 has 31 bytes"), std::string::npos) << pair.end[0].error;
}

}  // namespace
}  // namespace weir::plugins
