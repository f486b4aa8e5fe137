// SPDX-License-Identifier: Apache-2.0
#include "plugins/message/control.h"

#include <arpa/inet.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "net/little_endian.h"
#include "plugins/common/look.h"

namespace weir::plugins::message {
namespace {

constexpr size_t kPartHeaderBytes = 2;
constexpr size_t kPartBytesMax = kWordBytesMax - kPartHeaderBytes;
constexpr size_t kNamedRanksMax = 16;
// The pause between two checks for arrivals.
constexpr useconds_t kPauseUsMin = 20;
constexpr useconds_t kPauseUsMax = 20'000;
// Many ranks of a host that wait must leave time to the one that they wait for.
constexpr useconds_t kPauseUsPerRank = 16;

}  // namespace

uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

std::string names_of(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kNamedRanksMax; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() <= kNamedRanksMax) return text;
  return text + " and " + std::to_string(ranks.size() - kNamedRanksMax) + " more";
}

void Control::attach(const weir_host_t* host, uint32_t rank, uint32_t rank_count) {
  host_ = host;
  control_ = common::control_of(host);
  rank_ = rank;
  rank_count_ = rank_count;
}

void Control::say(uint32_t peer, std::string_view word) const {
  if (life(peer) != WEIR_LIFE_HERE) return;
  (void)control_->send(control_->context, peer, word.data(), word.size());
}

bool Control::receive(uint32_t peer, std::string* word) {
  if (control_ == nullptr || peer == rank_) return false;
  // Not initialized: mostly little of it is ever touched.
  if (room_ == nullptr) room_.reset(new char[kWordBytesMax]);
  size_t bytes = kWordBytesMax;
  if (control_->receive(control_->context, peer, room_.get(), &bytes) != WEIR_OK) return false;
  word->assign(room_.get(), bytes);
  return true;
}

bool Control::hear(uint32_t peer, std::string* word) {
  while (receive(peer, word)) {
    if (word->empty() || word->front() != kGatherKind) return true;
    parts_[peer].push_back(*word);
  }
  return false;
}

bool Control::hear_part(uint32_t peer, std::string* word) {
  const auto at = parts_.find(peer);
  if (at == parts_.end()) return receive(peer, word);
  *word = std::move(at->second.front());
  at->second.pop_front();
  if (at->second.empty()) parts_.erase(at);
  return true;
}

void Control::flush(uint32_t peer, uint64_t deadline_ns) const {
  if (life(peer) == WEIR_LIFE_HERE) (void)control_->flush(control_->context, peer, deadline_ns);
}

void Control::give_up(bool tells_all) const {
  const std::string_view word(&kGiveUpKind, 1);
  for (uint32_t distance = 1; distance < rank_count_; distance += tells_all ? 1 : distance) {
    say((rank_ + rank_count_ - distance) % rank_count_, word);
  }
}

net::Mac Control::key(uint32_t from, uint32_t to, const char* purpose) const {
  net::Mac pair;
  static_assert(sizeof pair == WEIR_PAIR_KEY_BYTES);
  control_->pair_key(control_->context, from == rank_ ? to : from, purpose, pair.data());
  const std::string direction = std::to_string(from) + " to " + std::to_string(to);
  const net::Mac key =
      net::hmac_sha256(pair.data(), pair.size(), direction.data(), direction.size());
  net::wipe(pair.data(), pair.size());
  return key;
}

std::string Control::describe(uint32_t peer) const {
  char text[256] = "";
  if (control_ != nullptr && peer != rank_) {
    control_->describe(control_->context, peer, text, sizeof text);
  }
  return text;
}

net::IpAddress Control::own_address(uint32_t peer) const {
  char text[64] = "";
  if (peer != rank_) control_->own_address(control_->context, peer, text, sizeof text);
  net::IpAddress address;
  if (inet_pton(AF_INET, text, address.bytes.data()) == 1) {
    address.family = 4;
  } else if (inet_pton(AF_INET6, text, address.bytes.data()) == 1) {
    address.family = 6;
  }
  return address;
}

void Control::say_block(uint32_t peer, std::string_view block) const {
  std::string word;
  do {
    const std::string_view part = block.substr(0, kPartBytesMax);
    block.remove_prefix(part.size());
    word.assign({kGatherKind, static_cast<char>(block.empty() ? 1 : 0)});
    word += part;
    say(peer, word);
  } while (!block.empty());
}

bool Control::read_block(std::string_view block, uint32_t first, uint32_t count,
                         std::vector<std::string>* cards) const {
  for (uint32_t i = 0; i < count; ++i) {
    if (block.size() < 4) return false;
    const auto bytes = net::get<uint32_t>(reinterpret_cast<const unsigned char*>(block.data()));
    block.remove_prefix(4);
    if (bytes > kCardBytesMax || bytes > block.size()) return false;
    (*cards)[(first + i) % rank_count_] = std::string(block.substr(0, bytes));
    block.remove_prefix(bytes);
  }
  return block.empty();
}

Control::Outcome Control::gather(std::string_view card, uint64_t deadline_ns,
                                 std::vector<std::string>* cards,
                                 const std::function<weir_result_t()>& work) {
  cards->assign(rank_count_, std::string());
  (*cards)[rank_] = card;
  const useconds_t pause_us_max = std::max(kPauseUsMax, kPauseUsPerRank * rank_count_);
  // Before each round this rank has the cards of `held` ranks, its own and those that follow it.
  for (uint32_t held = 1; held < rank_count_;) {
    const uint32_t count = std::min(held, rank_count_ - held);
    const uint32_t source = (rank_ + held) % rank_count_;
    std::string block;
    for (uint32_t i = 0; i < count; ++i) {
      const std::string& one = (*cards)[(rank_ + i) % rank_count_];
      unsigned char length[4];
      net::put(length, static_cast<uint32_t>(one.size()));
      block.append(reinterpret_cast<const char*>(length), sizeof length).append(one);
    }
    say_block((rank_ + rank_count_ - held) % rank_count_, block);

    block.clear();
    uint64_t looked_ns = 0;
    useconds_t pause_us = kPauseUsMin;
    for (bool complete = false; !complete;) {
      // Asked before words are read: those read after an end are all that there will be.
      const int life_of_source = life(source);
      std::string word;
      if (hear_part(source, &word)) {
        // It has given up.
        if (word.size() < kPartHeaderBytes || word[0] != kGatherKind) {
          return {WEIR_ERROR_PEER_LOST, {source}};
        }
        block += word.substr(kPartHeaderBytes);
        complete = word[1] != 0;
        if (block.size() > (kCardBytesMax + 4) * size_t{count}) {
          return {WEIR_ERROR_REFUSED, {source}};
        }
        continue;
      }
      if (life_of_source != WEIR_LIFE_HERE) return {WEIR_ERROR_PEER_LOST, {source}};
      const uint64_t now = monotonic_ns();
      if (now - looked_ns > common::kLookNs) {
        looked_ns = now;
        const weir_result_t heard = common::look(host_);
        if (heard != WEIR_OK) return {heard, {}};
        // A rank that has died may be the reason why others are silent.
        for (uint32_t i = held; i < rank_count_; ++i) {
          const uint32_t peer = (rank_ + i) % rank_count_;
          if (life(peer) == WEIR_LIFE_LOST) return {WEIR_ERROR_PEER_LOST, {peer}};
        }
      }
      if (now >= deadline_ns) {
        Outcome late{WEIR_ERROR_TIMEOUT, {}};
        for (uint32_t i = held; i < rank_count_; ++i) {
          late.ranks.push_back((rank_ + i) % rank_count_);
        }
        std::sort(late.ranks.begin(), late.ranks.end());
        return late;
      }
      const weir_result_t worked = work ? work() : WEIR_OK;
      if (worked != WEIR_OK) return {worked, {}};
      usleep(pause_us);
      pause_us = std::min(pause_us * 2, pause_us_max);
    }
    if (!read_block(block, source, count, cards)) return {WEIR_ERROR_REFUSED, {source}};
    held += count;
  }
  return {};
}

}  // namespace weir::plugins::message
