// SPDX-License-Identifier: Apache-2.0
// TagService against a peer that the test plays, header by header: what is refused, and what a rank
// may send before its messages are received.
#include "core/comm/messages/tag_service.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/scripted_transport.h"

namespace weir::comm {
namespace {

constexpr uint32_t kLane = 3;

class TagServiceTest : public ::testing::Test {
 protected:
  struct Posted {
    Request request;
    std::vector<unsigned char> data;
    weir_tag_info_t info{-7, -7, 0};
  };

  TagServiceTest() { own_.wire = peer_.wire = &wire_, own_.rank = 0, peer_.rank = 1; }

  Posted& start(RequestKind kind, int32_t tag, size_t bytes) {
    posted_.push_back(std::make_unique<Posted>());
    Posted& one = *posted_.back();
    one.data.assign(bytes, static_cast<unsigned char>(tag));
    one.request.kind = kind;
    one.request.peer = 1;
    one.request.bytes = bytes;
    one.request.call.input = one.request.call.output = one.data.data();
    one.request.tag.tag = tag;
    one.request.tag.info = &one.info;
    ServiceFailure failure;
    EXPECT_TRUE(service_.start(one.request, &failure).ok());
    EXPECT_EQ(failure.result, WEIR_OK) << failure.text;
    return one;
  }
  static bool is_done(const Posted& one) { return one.request.done.load(); }

  // What the peer sends.
  void peer_sends(const TagHeader& header, const std::vector<unsigned char>& payload = {}) {
    weir_transport_op_t op{};
    auto* instance = reinterpret_cast<weir_transport_t*>(&peer_);
    ASSERT_EQ(test::scripted::send(instance, 0, kLane, &header, sizeof header, &op), WEIR_OK);
    if (payload.empty()) return;
    ASSERT_EQ(test::scripted::send(instance, 0, kLane, payload.data(), payload.size(), &op),
              WEIR_OK);
  }
  void peer_sends_short(int32_t tag, size_t bytes) {
    TagHeader header = make_tag_header(TagKind::kShort);
    header.tag = tag;
    header.bytes = bytes;
    std::vector<unsigned char> data(bytes, static_cast<unsigned char>(tag));
    const bool fits = bytes <= kTagInlineBytes;
    if (fits && bytes > 0) std::memcpy(header.data, data.data(), bytes);
    peer_sends(header, fits ? std::vector<unsigned char>() : data);
  }
  // The next header that the peer gets; of kind 0: there is none.
  TagHeader peer_gets(std::vector<unsigned char>* payload = nullptr) {
    TagHeader header{};
    auto* instance = reinterpret_cast<weir_transport_t*>(&peer_);
    if (!test::scripted::take(&peer_, 0, kLane, &header, sizeof header)) return header;
    if (has_payload(header)) {
      std::vector<unsigned char> bytes(header.bytes);
      weir_transport_op_t op{};
      EXPECT_EQ(test::scripted::recv(instance, 0, kLane, bytes.data(), bytes.size(), &op), WEIR_OK);
      if (payload != nullptr) *payload = bytes;
    }
    return header;
  }
  ServiceFailure poll() {
    ServiceFailure failure;
    for (int i = 0; i < 4 && failure.result == WEIR_OK; ++i) service_.poll(&failure);
    return failure;
  }
  void expect_refused(const std::string& part) {
    const ServiceFailure failure = poll();
    EXPECT_EQ(failure.result, WEIR_ERROR_REFUSED);
    EXPECT_EQ(failure.peer, 1u);
    EXPECT_NE(failure.text.find(part), std::string::npos) << failure.text;
  }

  test::Wire wire_;
  test::End own_;
  test::End peer_;
  engine::Context context_ = [this] {
    engine::Context context;
    context.rank = 0;
    context.rank_count = 2;
    context.transport = &test::scripted_transport();
    context.instance = reinterpret_cast<weir_transport_t*>(&own_);
    return context;
  }();
  TagService service_{context_, kLane, [](Request& request, const Status& status) {
                        EXPECT_TRUE(status.ok()) << status.text();
                        request.done.store(true);
                      }};
  std::vector<std::unique_ptr<Posted>> posted_;
};

TEST_F(TagServiceTest, AShortMessageIsReceivedWhereItIsWanted) {
  Posted& small = start(RequestKind::kTagRecv, 5, 100);
  Posted& large = start(RequestKind::kTagRecv, 6, 5000);
  peer_sends_short(6, 4000);
  peer_sends_short(5, 9);
  EXPECT_EQ(poll().result, WEIR_OK);
  ASSERT_TRUE(is_done(small) && is_done(large));
  EXPECT_EQ(large.info.bytes, 4000u);
  EXPECT_EQ(small.info.bytes, 9u);
  EXPECT_EQ(small.info.source, 1);
  EXPECT_EQ(small.info.tag, 5);
}

TEST_F(TagServiceTest, ALongMessageGoesOnceItsReceiveHasAnswered) {
  Posted& sent = start(RequestKind::kTagSend, 9, 100'000);
  const TagHeader ready = peer_gets();
  ASSERT_EQ(ready.kind, TagKind::kReady);
  EXPECT_EQ(ready.bytes, 100'000u);
  EXPECT_EQ(poll().result, WEIR_OK);
  EXPECT_EQ(static_cast<int>(peer_gets().kind), 0);
  TagHeader clear = make_tag_header(TagKind::kClear);
  clear.ticket = ready.ticket;
  clear.receive_ticket = 77;
  peer_sends(clear);
  EXPECT_EQ(poll().result, WEIR_OK);
  std::vector<unsigned char> payload;
  const TagHeader data = peer_gets(&payload);
  ASSERT_EQ(data.kind, TagKind::kData);
  EXPECT_EQ(data.receive_ticket, 77u);
  EXPECT_TRUE(payload == sent.data);
  EXPECT_TRUE(is_done(sent));
}

// 64 KiB of short messages, with 256 bytes for each; then announcements, until some were received.
TEST_F(TagServiceTest, ARankSendsAsManyShortMessagesAsItsPeerAllows) {
  const uint64_t each = held_bytes(1000);
  const uint64_t allowed = TagService::kHeldBytesMax / each;
  for (uint64_t i = 0; i < allowed; ++i) {
    start(RequestKind::kTagSend, 1, 1000);
    ASSERT_EQ(peer_gets().kind, TagKind::kShort) << i;
  }
  start(RequestKind::kTagSend, 1, 1000);
  ASSERT_EQ(peer_gets().kind, TagKind::kReady);
  TagHeader received = make_tag_header(TagKind::kReceived);
  received.received_bytes = each;
  peer_sends(received);
  EXPECT_EQ(poll().result, WEIR_OK);
  start(RequestKind::kTagSend, 1, 1000);
  EXPECT_EQ(peer_gets().kind, TagKind::kShort);
  start(RequestKind::kTagSend, 1, 1000);
  EXPECT_EQ(peer_gets().kind, TagKind::kReady);
}

// Messages of no bytes take their header's memory at the receiver, so that they are announced, too.
TEST_F(TagServiceTest, AMessageOfNoBytesThatWasAnnouncedHasNoPayload) {
  for (uint64_t i = 0; i < TagService::kHeldBytesMax / held_bytes(0); ++i) {
    start(RequestKind::kTagSend, 1, 0);
    ASSERT_EQ(peer_gets().kind, TagKind::kShort) << i;
  }
  Posted& sent = start(RequestKind::kTagSend, 1, 0);
  const TagHeader ready = peer_gets();
  ASSERT_EQ(ready.kind, TagKind::kReady);
  TagHeader clear = make_tag_header(TagKind::kClear);
  clear.ticket = ready.ticket;
  clear.receive_ticket = 9;
  peer_sends(clear);
  EXPECT_EQ(poll().result, WEIR_OK);
  const TagHeader data = peer_gets();
  ASSERT_EQ(data.kind, TagKind::kData);
  EXPECT_EQ(data.bytes, 0u);
  EXPECT_TRUE(is_done(sent));

  Posted& received = start(RequestKind::kTagRecv, 2, 8);
  TagHeader other = make_tag_header(TagKind::kReady);
  other.tag = 2;
  peer_sends(other);
  EXPECT_EQ(poll().result, WEIR_OK);
  other = peer_gets();
  ASSERT_EQ(other.kind, TagKind::kClear);
  TagHeader nothing = make_tag_header(TagKind::kData);
  nothing.tag = 2;
  nothing.receive_ticket = other.receive_ticket;
  peer_sends(nothing);
  peer_sends_short(3, 8);  // the next header is read as one
  Posted& next = start(RequestKind::kTagRecv, 3, 8);
  const ServiceFailure failure = poll();
  EXPECT_EQ(failure.result, WEIR_OK) << failure.text;
  ASSERT_TRUE(is_done(received) && is_done(next));
  EXPECT_EQ(received.info.bytes, 0u);
  EXPECT_EQ(received.info.tag, 2);
}

// A peer is told what was received when it is half of what it may send, by a header for that alone
// or by one that goes anyway.
TEST_F(TagServiceTest, APeerIsToldWhatWasReceived) {
  const uint64_t each = held_bytes(1000);
  uint64_t received = 0;
  while (received + each < TagService::kHeldBytesMax / 2) {
    start(RequestKind::kTagRecv, 1, 1000);
    peer_sends_short(1, 1000);
    EXPECT_EQ(poll().result, WEIR_OK);
    received += each;
  }
  EXPECT_EQ(static_cast<int>(peer_gets().kind), 0);
  start(RequestKind::kTagRecv, 1, 1000);
  peer_sends_short(1, 1000);
  EXPECT_EQ(poll().result, WEIR_OK);
  received += each;
  TagHeader told = peer_gets();
  ASSERT_EQ(told.kind, TagKind::kReceived);
  EXPECT_EQ(told.received_bytes, received);
  start(RequestKind::kTagRecv, 1, 1000);
  peer_sends_short(1, 1000);
  EXPECT_EQ(poll().result, WEIR_OK);
  start(RequestKind::kTagSend, 2, 8);
  told = peer_gets();
  ASSERT_EQ(told.kind, TagKind::kShort);
  EXPECT_EQ(told.received_bytes, received + each);
}

TEST_F(TagServiceTest, WhatIsNoHeaderIsRefused) {
  start(RequestKind::kTagRecv, 1, 8);
  peer_sends(TagHeader{});
  expect_refused("does not begin with WTAG");
}

TEST_F(TagServiceTest, MoreThanWasAllowedIsRefused) {
  start(RequestKind::kTagRecv, 1, 8);
  for (uint64_t held = 0; held <= TagService::kHeldBytesMax; held += held_bytes(200)) {
    peer_sends_short(2, 200);
  }
  ServiceFailure failure;
  for (int i = 0; i < 100 && failure.result == WEIR_OK; ++i) service_.poll(&failure);
  EXPECT_EQ(failure.result, WEIR_ERROR_REFUSED);
  EXPECT_NE(failure.text.find("more than 65536 bytes"), std::string::npos) << failure.text;
}

TEST_F(TagServiceTest, AnAnswerToNothingIsRefused) {
  start(RequestKind::kTagRecv, 1, 8);
  TagHeader clear = make_tag_header(TagKind::kClear);
  peer_sends(clear);
  expect_refused("an answer without a message");
}

TEST_F(TagServiceTest, DataWithoutAReceiveAreRefused) {
  start(RequestKind::kTagRecv, 1, 8);
  TagHeader data = make_tag_header(TagKind::kData);
  data.bytes = 8;
  data.receive_ticket = 1000;
  peer_sends(data, std::vector<unsigned char>(8));
  expect_refused("a message without a receive");
}

TEST_F(TagServiceTest, DataOfAnotherLengthThanAnnouncedAreRefused) {
  start(RequestKind::kTagRecv, 1, 50'000);
  TagHeader ready = make_tag_header(TagKind::kReady);
  ready.tag = 1;
  ready.bytes = 40'000;
  peer_sends(ready);
  EXPECT_EQ(poll().result, WEIR_OK);
  const TagHeader clear = peer_gets();
  ASSERT_EQ(clear.kind, TagKind::kClear);
  TagHeader data = make_tag_header(TagKind::kData);
  data.tag = 1;
  data.bytes = 60'000;
  data.receive_ticket = clear.receive_ticket;
  peer_sends(data, std::vector<unsigned char>(60'000));
  expect_refused("another tag or length");
}

TEST_F(TagServiceTest, ReceiptsOfWhatWasNeverSentAreRefused) {
  start(RequestKind::kTagRecv, 1, 8);
  TagHeader received = make_tag_header(TagKind::kReceived);
  received.received_bytes = 1;
  peer_sends(received);
  expect_refused("received other bytes than were sent");
}

TEST(TagHeaders, SayWhatIsWrongWithThem) {
  EXPECT_EQ(wrong_with(make_tag_header(TagKind::kShort)), "");
  TagHeader header = make_tag_header(static_cast<TagKind>(6));
  EXPECT_EQ(wrong_with(header), "its kind is 6");
  header = make_tag_header(TagKind::kShort);
  header.tag = -1;
  EXPECT_EQ(wrong_with(header), "its tag is -1");
  header = make_tag_header(TagKind::kShort);
  header.bytes = kTagShortBytesMax + 1;
  EXPECT_NE(wrong_with(header), "");
  header = make_tag_header(TagKind::kReady);
  EXPECT_EQ(wrong_with(header), "");
  header.bytes = UINT64_MAX;
  EXPECT_NE(wrong_with(header), "");
  header = make_tag_header(TagKind::kClear);
  header.zero_too = 1;
  EXPECT_NE(wrong_with(header), "");
}

}  // namespace
}  // namespace weir::comm
