// SPDX-License-Identifier: Apache-2.0
// The bytes of addresses, control frames and tags.
#include "plugins/ofi/control.h"

#include <gtest/gtest.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <set>

#include "plugins/ofi/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::ofi {
namespace {

RankAddress longest_address() {
  RankAddress address;
  address.rank = 300;
  address.providers = {"verbs;ofi_rxm", "tcp;ofi_rxm", "shm",           "sockets",
                       "udp;ofi_rxd",   "net;ofi_rxm", "some_other_one"};
  address.place.host.bytes[7] = 9;
  for (uint8_t i = 0; i < kOffersMax; ++i) {
    Offer offer;
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
  ASSERT_EQ(read.place.offers.size(), kOffersMax);
  for (size_t i = 0; i < kOffersMax; ++i) {
    EXPECT_EQ(read.place.offers[i].address, address.place.offers[i].address);
    EXPECT_EQ(read.place.offers[i].port, address.place.offers[i].port);
    EXPECT_EQ(read.place.offers[i].is_loopback, i == 4);
    EXPECT_EQ(read.place.offers[i].is_asked_for, i == 2);
  }
  for (size_t cut = 0; cut < size; ++cut) EXPECT_FALSE(decode(bytes, cut, &read)) << cut;
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

class OfiControl : public testing::Test {
 protected:
  OfiControl() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds_), 0);
    control_.attach(fds_[0]);
  }
  ~OfiControl() override { end(); }
  void end() {
    if (fds_[1] >= 0) close(fds_[1]);
    fds_[1] = -1;
  }
  void write_bytes(const unsigned char* bytes, size_t count) {
    ASSERT_EQ(write(fds_[1], bytes, count), static_cast<ssize_t>(count));
  }
  void write_card() {
    unsigned char frame[kHeaderBytes + kPayloadBytesMax];
    write_bytes(frame, encode_card({7, {1, 2, 3}}, frame));
  }
  int fds_[2];
  Control control_;
};

TEST_F(OfiControl, FramesMayArriveInPiecesOfAnySize) {
  unsigned char bytes[2048];
  size_t size = encode_card({7, {1, 2, 3}}, bytes);
  size += encode_frame(Kind::kReady, bytes + size);
  Goodbye goodbye;
  goodbye.sent = {1, 2, 3, 4, uint64_t{1} << 40};
  goodbye.received = {5, 6, 7, 8, 9};
  size += encode_goodbye(goodbye, bytes + size);
  size += encode_frame(Kind::kTaken, bytes + size);
  for (size_t i = 0; i < size; ++i) {
    write_bytes(bytes + i, 1);
    control_.drive();
  }
  EXPECT_TRUE(control_.has_card());
  EXPECT_EQ(control_.card().token, 7u);
  EXPECT_EQ(control_.card().name[2], 3);
  EXPECT_TRUE(control_.ready());
  EXPECT_TRUE(control_.left());
  EXPECT_EQ(control_.goodbye().sent, goodbye.sent);
  EXPECT_EQ(control_.goodbye().received, goodbye.received);
  EXPECT_TRUE(control_.taken());
  EXPECT_FALSE(control_.ended());
  end();
  control_.drive();
  EXPECT_TRUE(control_.ended());
  EXPECT_FALSE(control_.lost()) << "it said goodbye";
}

TEST_F(OfiControl, TheLatestNoticeIsKeptBeyondTheEnd) {
  write_card();
  unsigned char frame[kHeaderBytes + kPayloadBytesMax];
  write_bytes(frame, encode_frame(Kind::kReady, frame));
  uint32_t number = 0;
  for (const size_t bytes : {size_t{5}, kNoticeBytesMax, size_t{0}, size_t{77}}) {
    const std::vector<unsigned char> notice(bytes, static_cast<unsigned char>(bytes));
    write_bytes(frame, encode_notice(number++, notice.data(), notice.size(), frame));
    control_.drive();
    ASSERT_EQ(control_.notice_bytes(), bytes);
    EXPECT_EQ(memcmp(control_.notice(), notice.data(), bytes), 0);
  }
  end();
  control_.drive();
  EXPECT_TRUE(control_.lost());
  EXPECT_EQ(control_.notice_bytes(), 77u);
}

TEST_F(OfiControl, ANoticeThatCannotLeaveGivesWayToTheLatest) {
  unsigned char notice[kNoticeBytesMax] = {};
  uint32_t version = 0;
  while (control_.send_notice(notice, sizeof notice, ++version)) ASSERT_LT(version, 100'000u);
  const uint32_t stuck = version;
  for (int i = 0; i < 10; ++i) {
    notice[0] = static_cast<unsigned char>(i);
    EXPECT_FALSE(control_.send_notice(notice, sizeof notice, ++version));
  }
  Control peer;
  const int fd = dup(fds_[1]);
  peer.attach(fd);
  unsigned char frame[2 * kHeaderBytes + kPayloadBytesMax];
  size_t bytes = encode_card({7, {1}}, frame);
  bytes += encode_frame(Kind::kReady, frame + bytes);
  // They stand where the handshake of the two would have put them: before all notices.
  int before[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, before), 0);
  ASSERT_EQ(write(before[0], frame, bytes), static_cast<ssize_t>(bytes));
  peer.attach(before[1]);
  peer.drive();
  peer.attach(fd);
  while (!control_.send_notice(notice, sizeof notice, version)) peer.drive();
  peer.drive();
  EXPECT_FALSE(peer.ended());
  EXPECT_EQ(peer.notice()[0], 9);
  EXPECT_GT(version, stuck);
  close(before[0]);
  close(before[1]);
}

TEST_F(OfiControl, AnEndWithoutAGoodbyeIsALoss) {
  write_card();
  control_.drive();
  EXPECT_FALSE(control_.lost());
  end();
  control_.drive();
  EXPECT_TRUE(control_.lost());
}

TEST_F(OfiControl, WhatIsNoFrameEndsTheConnection) {
  const auto ends = [](std::vector<unsigned char> bytes) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    Control control;
    control.attach(fds[0]);
    EXPECT_EQ(write(fds[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    control.drive();
    close(fds[1]);
    return control.lost();
  };
  unsigned char raw[2048];
  const auto frames = [&](std::initializer_list<Kind> kinds) {
    size_t size = 0;
    for (const Kind kind : kinds) {
      size +=
          kind == Kind::kCard ? encode_card({7, {1}}, raw + size) : encode_frame(kind, raw + size);
    }
    return std::vector<unsigned char>(raw, raw + size);
  };
  EXPECT_FALSE(ends(frames({Kind::kCard, Kind::kReady})));
  EXPECT_TRUE(ends(frames({Kind::kReady}))) << "before the card";
  EXPECT_TRUE(ends(frames({Kind::kCard, Kind::kCard}))) << "a second card";
  EXPECT_TRUE(ends(frames({Kind::kCard, Kind::kReady, Kind::kReady})));
  EXPECT_TRUE(ends(frames({Kind::kCard, Kind::kTaken, Kind::kTaken})));
  auto bytes = frames({Kind::kCard});
  bytes[0] = 'X';
  EXPECT_TRUE(ends(bytes)) << "another magic";
  bytes = frames({Kind::kCard});
  bytes[2] = 99;
  EXPECT_TRUE(ends(bytes)) << "no kind";
  bytes = frames({Kind::kCard});
  bytes[7] = 0xff;
  EXPECT_TRUE(ends(bytes)) << "four gigabytes to come";
  EXPECT_TRUE(ends({'W', 'O', 5, 0, 3, 0, 0, 0})) << "a notice without a number";
  EXPECT_TRUE(ends({'W', 'O', 5, 0, 5, 4, 0, 0})) << "a notice of one byte too many";
  bytes = frames({Kind::kCard, Kind::kReady});
  bytes.insert(bytes.end(), {'W', 'O', 5, 0, 5, 0, 0, 0, 1, 0, 0, 0, 42});
  EXPECT_TRUE(ends(bytes)) << "the second notice first";
  for (const uint32_t name_bytes : {0u, static_cast<uint32_t>(kNameBytesMax + 1), ~0u}) {
    bytes = frames({Kind::kCard});
    for (size_t i = 0; i < 4; ++i) {
      bytes[kHeaderBytes + 4 + i] = static_cast<unsigned char>(name_bytes >> (8 * i));
    }
    EXPECT_TRUE(ends(bytes)) << "a name of " << name_bytes << " bytes";
  }
}

}  // namespace
}  // namespace weir::plugins::ofi
