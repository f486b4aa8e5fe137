// SPDX-License-Identifier: Apache-2.0
// The bytes of addresses, words and tags, and what a peer may say when.
#include "plugins/ofi/control.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <time.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "net/control_mesh.h"
#include "plugins/ofi/wire.h"
#include "weir/plugin.h"

namespace {

// What happens between two looks at a connection that has nothing to read, once.
std::function<void()> when_nothing_is_there;  // NOLINT: of this thread alone
int watched_descriptor = -1;

}  // namespace

extern "C" ssize_t recv(int fd, void* data, size_t bytes, int flags) {
  const ssize_t got = recvfrom(fd, data, bytes, flags, nullptr, nullptr);
  if (got < 0 && errno == EAGAIN && fd == watched_descriptor && when_nothing_is_there) {
    const auto happens = std::move(when_nothing_is_there);
    when_nothing_is_there = nullptr;
    happens();
    errno = EAGAIN;
  }
  return got;
}

namespace weir::plugins::ofi {
namespace {

RankAddress longest_address() {
  RankAddress address;
  address.rank = 300;
  address.providers = {"verbs;ofi_rxm", "tcp;ofi_rxm", "shm",           "sockets",
                       "udp;ofi_rxd",   "net;ofi_rxm", "some_other_one"};
  address.place.rank = 300;
  address.place.host.bytes[7] = 9;
  for (uint8_t i = 0; i < net::mesh::kOffersMax; ++i) {
    net::mesh::Offer offer;
    offer.address.family = i % 2 == 0 ? 4 : 6;
    offer.address.bytes[0] = 10;
    offer.address.bytes[3] = i;
    offer.port = static_cast<uint16_t>(4000 + i);
    offer.speed_mbits = 100'000;
    offer.prefix_bits = 24;
    offer.is_loopback = i == 4;
    offer.is_asked_for = i == 2;
    address.place.offers.push_back(offer);
  }
  return address;
}

TEST(OfiAddress, TheLongestPassesThroughItsBytesAndNoPartOfItDoes) {
  const RankAddress address = longest_address();
  unsigned char bytes[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  const size_t size = encode(address, bytes);
  ASSERT_LE(size, sizeof bytes);
  RankAddress read;
  ASSERT_TRUE(decode(bytes, size, &read));
  EXPECT_EQ(read.rank, 300u);
  EXPECT_EQ(read.providers, address.providers);
  EXPECT_EQ(read.place.host, address.place.host);
  ASSERT_EQ(read.place.offers.size(), net::mesh::kOffersMax);
  for (size_t i = 0; i < net::mesh::kOffersMax; ++i) {
    EXPECT_EQ(read.place.offers[i].address, address.place.offers[i].address);
    EXPECT_EQ(read.place.offers[i].port, address.place.offers[i].port);
    EXPECT_EQ(read.place.offers[i].is_loopback, i == 4);
    EXPECT_EQ(read.place.offers[i].is_asked_for, i == 2);
  }
  for (size_t cut = 0; cut < size; ++cut) EXPECT_FALSE(decode(bytes, cut, &read)) << cut;
  bytes[8] ^= 1;
  EXPECT_FALSE(decode(bytes, size, &read)) << "of one rank, with the place of another";
}

TEST(OfiAddress, RandomBytesAreNeverReadBeyondTheirEnd) {
  std::mt19937 random(7);
  unsigned char good[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  const size_t size = encode(longest_address(), good);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<unsigned char> bytes(good, good + random() % (size + 1));
    for (int k = 0; k < 4 && !bytes.empty(); ++k) {
      bytes[random() % bytes.size()] = static_cast<unsigned char>(random());
    }
    RankAddress read;
    if (!decode(bytes.data(), bytes.size(), &read)) continue;
    EXPECT_FALSE(read.providers.empty());
    EXPECT_GE(read.place.offers.size(), 1u);
  }
}

TEST(OfiTag, NoTwoMessagesThatMayBeUnderWayHaveTheSame) {
  std::set<uint64_t> tags;
  for (const uint32_t lane : {0u, 1u, 4u}) {
    for (const uint32_t sender : {0u, 1u, 511u}) {
      for (const uint64_t number : {0, 1, 65535}) {
        tags.insert(make_tag(0xffffffff, 0x12345678, lane, sender, number));
      }
    }
  }
  EXPECT_EQ(tags.size(), 27u);
  for (const uint64_t tag : tags) EXPECT_EQ(tag >> 32, 0x12345678u);
  EXPECT_EQ(make_tag(0xffff, 0x12345678, 0, 0, 0) >> 32, 0x5678u) << "a tag of 48 bits";
  EXPECT_EQ(make_tag(0, 0x12345678, 0, 0, 65536 + 3), 3u);
}

using Word = std::vector<unsigned char>;

Word word(Kind kind) {
  Word made(kWordBytesMax);
  made.resize(encode_word(kind, made.data()));
  return made;
}

Word card(uint32_t token = 7) {
  Word made(kWordBytesMax);
  made.resize(encode_card({token, {1, 2, 3}}, made.data()));
  return made;
}

bool takes(Control* control, std::initializer_list<Word> words) {
  bool all = true;
  for (const Word& one : words) all = all && control->take_word(one.data(), one.size());
  return all;
}

TEST(OfiControl, WhatAPeerSaysIsKnownAfterwards) {
  Goodbye goodbye;
  goodbye.sent = {1, 2, 3, 4, uint64_t{1} << 40};
  goodbye.received = {5, 6, 7, 8, 9};
  Word goodbye_word(kWordBytesMax);
  goodbye_word.resize(encode_goodbye(goodbye, goodbye_word.data()));
  Control control;
  EXPECT_TRUE(takes(&control, {card(), word(Kind::kReady), goodbye_word, word(Kind::kTaken)}));
  EXPECT_TRUE(control.has_card());
  EXPECT_EQ(control.card().token, 7u);
  EXPECT_EQ(control.card().name.size(), kNameBytesMax) << "with zeros behind it";
  EXPECT_EQ(control.card().name[2], 3);
  EXPECT_TRUE(control.ready());
  EXPECT_TRUE(control.left());
  EXPECT_EQ(control.goodbye().sent, goodbye.sent);
  EXPECT_EQ(control.goodbye().received, goodbye.received);
  EXPECT_TRUE(control.taken());
  EXPECT_FALSE(control.lost());
}

TEST(OfiControl, WhatMayNotBeSaidOrNotNowIsNotTaken) {
  const auto takes_all = [](std::initializer_list<Word> words) {
    Control control;
    return takes(&control, words);
  };
  EXPECT_TRUE(takes_all({card(), word(Kind::kReady)}));
  EXPECT_FALSE(takes_all({word(Kind::kReady)})) << "before the card";
  EXPECT_FALSE(takes_all({card(), card()})) << "a second card";
  EXPECT_FALSE(takes_all({card(), word(Kind::kReady), word(Kind::kReady)}));
  EXPECT_FALSE(takes_all({card(), word(Kind::kTaken), word(Kind::kTaken)}));
  EXPECT_FALSE(takes_all({{}})) << "nothing";
  EXPECT_FALSE(takes_all({{99}})) << "no kind";
  EXPECT_FALSE(takes_all({{0}})) << "no kind";
  for (const Kind kind : {Kind::kCard, Kind::kReady, Kind::kGoodbye, Kind::kTaken}) {
    Word longer = kind == Kind::kCard ? card() : word(kind);
    longer.push_back(0);
    EXPECT_FALSE(takes_all({longer})) << static_cast<int>(kind);
    longer.resize(longer.size() - 2);
    EXPECT_FALSE(takes_all({longer})) << static_cast<int>(kind);
  }
  for (const uint32_t name_bytes : {0u, static_cast<uint32_t>(kNameBytesMax + 1), ~0u}) {
    Word bad = card();
    for (size_t i = 0; i < 4; ++i) bad[5 + i] = static_cast<unsigned char>(name_bytes >> (8 * i));
    EXPECT_FALSE(takes_all({bad})) << "a name of " << name_bytes << " bytes";
  }
}

uint64_t in_a_minute_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec + 60) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// Two ranks that have met.
class OfiControls : public testing::Test {
 protected:
  void SetUp() override {
    net::InterfaceFilter filter;
    std::string reason;
    ASSERT_TRUE(net::InterfaceFilter::parse("lo", &filter, &reason)) << reason;
    const std::string secret = "the secret of both";
    std::vector<net::mesh::Bytes> addresses;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      net::MeshConfig config;
      config.purpose = "ofi";
      config.comm_id = 7;
      config.rank = rank;
      config.rank_count = 2;
      config.secret = secret.data();
      config.secret_bytes = secret.size();
      meshes_[rank] = std::make_unique<net::ControlMesh>(config);
      ASSERT_EQ(meshes_[rank]->listen(filter), Outcome::kOk) << meshes_[rank]->text();
      addresses.emplace_back(net::mesh::kAddressBytesMax);
      addresses[rank].resize(meshes_[rank]->address(addresses[rank].data()));
    }
    const unsigned char* const places[] = {addresses[0].data(), addresses[1].data()};
    const size_t sizes[] = {addresses[0].size(), addresses[1].size()};
    const auto join = [&](uint32_t rank) {
      return meshes_[rank]->join(places, sizes, {}, in_a_minute_ns());
    };
    Outcome other = Outcome::kSystem;
    std::thread thread([&] { other = join(1); });
    EXPECT_EQ(join(0), Outcome::kOk) << meshes_[0]->text();
    thread.join();
    ASSERT_EQ(other, Outcome::kOk) << meshes_[1]->text();
    for (uint32_t rank = 0; rank < 2; ++rank) controls_[rank].attach(meshes_[rank].get(), 1 - rank);
  }
  void TearDown() override { watched_descriptor = -1; }
  // Until `is_so`, or a minute has passed.
  template <typename Condition>
  void drive(Control* control, const Condition& is_so) {
    for (const uint64_t end_ns = in_a_minute_ns(); !is_so();) {
      control->drive();
      ASSERT_LT(in_a_minute_ns(), end_ns + 60'000'000'000u);
    }
  }

  using Outcome = net::ControlMesh::Outcome;
  std::unique_ptr<net::ControlMesh> meshes_[2];
  Control controls_[2];
};

TEST_F(OfiControls, WhoLeavesBetweenTwoLooksHasSaidGoodbye) {
  controls_[1].say_card({7, {1, 2, 3}});
  drive(&controls_[0], [&] { return controls_[0].has_card(); });
  controls_[0].drive();
  watched_descriptor = controls_[0].fd();
  when_nothing_is_there = [&] {
    controls_[1].say_goodbye(Goodbye());
    meshes_[1]->leave(0, {});
    meshes_[1].reset();
  };
  drive(&controls_[0], [&] { return controls_[0].ended(); });
  EXPECT_TRUE(controls_[0].left());
  EXPECT_FALSE(controls_[0].lost()) << "it is taken for dead";
}

TEST_F(OfiControls, WhoEndsWithoutAGoodbyeIsLost) {
  controls_[1].say_card({7, {1, 2, 3}});
  drive(&controls_[0], [&] { return controls_[0].has_card(); });
  meshes_[1].reset();
  drive(&controls_[0], [&] { return controls_[0].ended(); });
  EXPECT_FALSE(controls_[0].left());
  EXPECT_TRUE(controls_[0].lost());
}

}  // namespace
}  // namespace weir::plugins::ofi
