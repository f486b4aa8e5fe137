// SPDX-License-Identifier: Apache-2.0
// The bytes of addresses, cards, words and tags, and what a peer may say when.
#include "plugins/ofi/control.h"

#include <gtest/gtest.h>
#include <time.h>

#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plugins/ofi/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::ofi {
namespace {

RankAddress longest_address() {
  RankAddress address;
  address.rank = 300;
  address.providers = {"verbs;ofi_rxm", "tcp;ofi_rxm", "shm",           "sockets",
                       "udp;ofi_rxd",   "net;ofi_rxm", "some_other_one"};
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
  for (size_t cut = 0; cut < size; ++cut) EXPECT_FALSE(decode(bytes, cut, &read)) << cut;
  EXPECT_FALSE(decode(bytes, size + 1, &read)) << "with something behind it";
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
  }
}

TEST(OfiCard, PassesThroughItsBytesAndIsRefusedWithAnotherLength) {
  Card read;
  ASSERT_TRUE(decode(encode(Card{7, {1, 2, 3}}), &read));
  EXPECT_EQ(read.token, 7u);
  EXPECT_EQ(read.name.size(), kNameBytesMax) << "with zeros behind it";
  EXPECT_EQ(read.name[2], 3);
  EXPECT_EQ(read.name[3], 0);
  EXPECT_TRUE(decode(encode(Card{7, std::vector<unsigned char>(kNameBytesMax, 9)}), &read));
  EXPECT_FALSE(decode(encode(Card{7, std::vector<unsigned char>(kNameBytesMax + 1, 9)}), &read));
  EXPECT_FALSE(decode(encode(Card{7, {}}), &read)) << "a name of no bytes";
  EXPECT_FALSE(decode(std::string(), &read));
  EXPECT_FALSE(decode(std::string("abc"), &read));
}

TEST(OfiTag, NoTwoMessagesThatMayBeUnderWayHaveTheSame) {
  std::set<uint64_t> tags;
  for (const uint32_t lane : {0u, 1u, 4u}) {
    for (const uint32_t sender : {0u, 1u, 511u, kRankCountMax - 1}) {
      for (const uint64_t number : {0, 1, 32767}) {
        tags.insert(make_tag(0xffffffff, 0x12345678, lane, sender, number));
      }
    }
  }
  EXPECT_EQ(tags.size(), 36u);
  for (const uint64_t tag : tags) EXPECT_EQ(tag >> 32, 0x12345678u);
  EXPECT_EQ(make_tag(0xffff, 0x12345678, 0, 0, 0) >> 32, 0x5678u) << "a tag of 48 bits";
  EXPECT_EQ(make_tag(0, 0x12345678, 0, 0, 32768 + 3), 3u);
}

bool takes(Control* control, std::initializer_list<std::string> words) {
  bool all = true;
  for (const std::string& one : words) all = all && control->take_word(one);
  return all;
}

TEST(OfiControl, WhatAPeerSaysIsKnownAfterwards) {
  Goodbye goodbye;
  goodbye.sent = {1, 2, 3, 4, uint64_t{1} << 40};
  goodbye.received = {5, 6, 7, 8, 9};
  Control control;
  EXPECT_TRUE(takes(&control, {encode_goodbye(goodbye), encode_word(Kind::kTaken)}));
  EXPECT_TRUE(control.left());
  EXPECT_EQ(control.goodbye().sent, goodbye.sent);
  EXPECT_EQ(control.goodbye().received, goodbye.received);
  EXPECT_TRUE(control.taken());
  EXPECT_FALSE(control.ended());
  EXPECT_TRUE(takes(&control, {encode_word(Kind::kEnded)}));
  EXPECT_TRUE(control.ended());
  EXPECT_FALSE(control.lost());
}

TEST(OfiControl, WhatMayNotBeSaidOrNotNowIsNotTaken) {
  const auto takes_all = [](std::initializer_list<std::string> words) {
    Control control;
    return takes(&control, words);
  };
  const std::string goodbye = encode_goodbye(Goodbye());
  const std::string taken = encode_word(Kind::kTaken), ended = encode_word(Kind::kEnded);
  EXPECT_TRUE(takes_all({taken, goodbye, ended}));
  EXPECT_FALSE(takes_all({ended})) << "before the goodbye";
  EXPECT_FALSE(takes_all({goodbye, goodbye}));
  EXPECT_FALSE(takes_all({taken, taken}));
  EXPECT_FALSE(takes_all({goodbye, ended, taken})) << "behind the last word";
  EXPECT_FALSE(takes_all({goodbye, encode_word(Kind::kGiveUp)}));
  EXPECT_FALSE(takes_all({std::string()})) << "nothing";
  EXPECT_FALSE(takes_all({std::string(1, 99)})) << "no kind";
  EXPECT_FALSE(takes_all({std::string(1, 0)})) << "no kind";
  for (const std::string& word : {goodbye, taken, encode_word(Kind::kGiveUp)}) {
    EXPECT_FALSE(takes_all({word + "x"})) << int{word[0]};
    EXPECT_FALSE(takes_all({word.substr(0, word.size() - 1)})) << int{word[0]};
  }
}

// The control network of one peer, in the test's hands.
class OfiPeer : public testing::Test {
 protected:
  OfiPeer() {
    functions_.struct_bytes = sizeof functions_;
    functions_.context = this;
    functions_.life = [](void* self, uint32_t) { return static_cast<OfiPeer*>(self)->life_; };
    functions_.receive = [](void* self, uint32_t, void* message, size_t* bytes) {
      return static_cast<OfiPeer*>(self)->receive(message, bytes);
    };
    host_.struct_bytes = sizeof host_;
    host_.control = &functions_;
    network_.attach(&host_, 0, 2);
    control_.attach(&network_, 1);
  }
  weir_result_t receive(void* message, size_t* bytes) {
    if (words_.empty()) {
      if (when_nothing_is_there_) std::exchange(when_nothing_is_there_, nullptr)();
      return WEIR_IN_PROGRESS;
    }
    const std::string word = words_.front();
    words_.pop_front();
    *bytes = word.size();
    memcpy(message, word.data(), word.size());
    return WEIR_OK;
  }

  int life_ = WEIR_LIFE_HERE;
  std::deque<std::string> words_;
  std::function<void()> when_nothing_is_there_;
  weir_control_t functions_{};
  weir_host_t host_{};
  message::Control network_;
  Control control_;
};

TEST_F(OfiPeer, WhoLeavesBetweenTwoLooksHasSaidGoodbye) {
  for (const int life : {WEIR_LIFE_LEFT, WEIR_LIFE_LOST}) {
    control_ = Control();
    control_.attach(&network_, 1);
    life_ = WEIR_LIFE_HERE;
    when_nothing_is_there_ = [&] {
      words_.push_back(encode_goodbye(Goodbye()));
      life_ = life;
    };
    control_.drive();
    EXPECT_FALSE(control_.left() || control_.ended());
    control_.drive();
    EXPECT_TRUE(control_.left());
    EXPECT_TRUE(control_.ended());
    EXPECT_FALSE(control_.lost()) << "it is taken for dead";
  }
}

TEST_F(OfiPeer, WhoEndsWithoutAGoodbyeIsLost) {
  control_.drive();
  life_ = WEIR_LIFE_LOST;
  control_.drive();
  EXPECT_TRUE(control_.ended());
  EXPECT_FALSE(control_.left());
  EXPECT_TRUE(control_.lost());
}

TEST_F(OfiPeer, TheGoodbyeOfWhoHasLeftIsAwaitedAndNotForEver) {
  life_ = WEIR_LIFE_LEFT;
  control_.drive();
  EXPECT_TRUE(control_.ended());
  EXPECT_FALSE(control_.left()) << "its goodbye may be on its way";
  EXPECT_FALSE(control_.lost());
  const uint64_t end_ns = message::monotonic_ns() + 30'000'000'000;
  while (!control_.left() && message::monotonic_ns() < end_ns) {
    const timespec pause = {0, 10'000'000};
    nanosleep(&pause, nullptr);
    control_.drive();
  }
  EXPECT_TRUE(control_.left());
  EXPECT_FALSE(control_.lost());
}

TEST_F(OfiPeer, WhoGivesUpHasLeft) {
  words_.push_back(encode_word(Kind::kGiveUp));
  control_.drive();
  EXPECT_TRUE(control_.left());
  EXPECT_TRUE(control_.ended());
  EXPECT_FALSE(control_.lost());
}

}  // namespace
}  // namespace weir::plugins::ofi
