// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/lazy.h"

#include <errno.h>

#include <algorithm>

namespace weir::plugins::tcp {
namespace {

constexpr uint64_t kStepNs = 20'000;
// Between attempts at the same lane, growing with their number.
constexpr uint64_t kPauseNsMin = 2'000'000;
constexpr uint64_t kPauseNsMax = 250'000'000;
// A host answers when it makes progress; that its process lives the control connection tells.
constexpr uint64_t kPatienceNs = 30'000'000'000;

// The peer has gone, or was given up.
bool is_gone(const Control& control) {
  return control.left() || control.lost() || control.fd() < 0;
}

}  // namespace

Lazy::Lazy(uint32_t rank, uint32_t rank_count, Channel* channels, Joiner* joiner)
    : rank_(rank),
      channels_(channels),
      joiner_(joiner),
      memory_(new unsigned char[rank_count * Prelude::kMemoryBytes]),
      peers_(rank_count),
      lanes_(size_t{rank_count} * kLaneCount) {
  wanted_.reserve(lanes_.size());
  settling_.reserve(lanes_.size());
}

void Lazy::add(uint32_t peer, Control* control, ZeroCopy::Wish wish, const Way& way) {
  Peer& added = peers_[peer];
  added.way = way;
  added.prelude =
      std::make_unique<Prelude>(memory_.get() + peer * Prelude::kMemoryBytes, rank_ < peer, &news_);
  control->carry(added.prelude.get());
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    channels_[index_of(peer, lane)].attach_later(control, added.prelude.get(),
                                                 static_cast<uint8_t>(lane), wish);
  }
}

void Lazy::take(uint32_t peer, uint32_t lane, Stream stream) {
  Channel& channel = channels_[index_of(peer, lane)];
  // Given up since it was welcomed.
  if (channel.control()->fd() < 0) return stream.close();
  channel.connect(stream);
  if (channel.is_early()) settling_.push_back(index_of(peer, lane));
}

void Lazy::step(uint64_t now_ns) {
  if (now_ns < next_ns_) return;
  next_ns_ = now_ns + kStepNs;
  if (news_) find_wanted();
  for (size_t i = wanted_.size(); i-- > 0;) {
    const size_t index = wanted_[i];
    if (now_ns < lanes_[index].next_ns) continue;
    wanted_[i] = wanted_.back();
    wanted_.pop_back();
    begin(index, now_ns);
  }
  joiner_->step(now_ns);
  if (joiner_->lacks_descriptors()) fail_for_want_of_descriptors(EMFILE);
  std::erase_if(settling_, [this](size_t index) {
    Channel& channel = channels_[index];
    if (channel.control()->fd() < 0) return true;
    if (channel.sends_early()) channel.drive_send();
    channel.look_for_begin();
    return !channel.is_early() || is_gone(*channel.control());
  });
}

void Lazy::find_wanted() {
  news_ = false;
  for (uint32_t peer = 0; peer < rank_; ++peer) {
    if (peers_[peer].prelude == nullptr) continue;
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      const size_t index = index_of(peer, lane);
      if (!peers_[peer].prelude->is_wanted(lane) || lanes_[index].under_way) continue;
      lanes_[index].under_way =
          true;  // for good: from then on it is in wanted_, or at the joiner's
      wanted_.push_back(index);
    }
  }
}

void Lazy::begin(size_t index, uint64_t now_ns) {
  const auto peer = static_cast<uint32_t>(index / kLaneCount);
  const auto lane = static_cast<uint32_t>(index % kLaneCount);
  Control* control = channels_[index].control();
  if (is_gone(*control)) return;
  const int error_number = joiner_->begin({.peer = peer, .lane = lane, .patience_ns = kPatienceNs},
                                          peers_[peer].way, now_ns);
  if (error_number == EMFILE || error_number == ENFILE) {
    channels_[index].give_up(WEIR_ERROR_SYSTEM, error_number);
  } else if (error_number != 0) {
    lanes_[index].next_ns = now_ns + kPauseNsMax;
    wanted_.push_back(index);
  }
}

// The host's: lanes for which a connection waits that cannot be accepted.
void Lazy::fail_for_want_of_descriptors(int error_number) {
  for (uint32_t peer = rank_ + 1; peer < peers_.size(); ++peer) {
    for (uint32_t lane = 0; peers_[peer].prelude != nullptr && lane < kLaneCount; ++lane) {
      Channel& channel = channels_[index_of(peer, lane)];
      if (!channel.is_connected() && !channel.idle() && peers_[peer].prelude->is_wanted(lane)) {
        channel.give_up(WEIR_ERROR_SYSTEM, error_number);
      }
    }
  }
}

bool Lazy::may_come(const Handshake& shown) {
  if (shown.lane() >= kLaneCount || peers_[shown.peer()].prelude == nullptr) return false;
  Channel& channel = channels_[index_of(shown.peer(), shown.lane())];
  return !channel.is_connected() && !channel.control()->lost() && channel.control()->fd() >= 0;
}

void Lazy::join(const Handshake& shown, Stream stream, uint64_t) {
  take(shown.peer(), shown.lane(), stream);
}

// The host has welcomed a connection when it says that it begins: nothing takes that back.
bool Lazy::goes_on(const Handshake& meant) {
  const Control& control = *channels_[index_of(meant.peer(), meant.lane())].control();
  return peers_[meant.peer()].prelude->peer_began(meant.lane()) || !is_gone(control);
}

void Lazy::fail(const Handshake& meant, int error_number, uint64_t now_ns) {
  const size_t index = index_of(meant.peer(), meant.lane());
  Lane& lane = lanes_[index];
  Control* control = channels_[index].control();
  control->receive();
  if (peers_[meant.peer()].prelude->peer_began(meant.lane()) || is_gone(*control)) {
    return channels_[index].give_up(WEIR_ERROR_PEER_LOST, error_number);
  }
  lane.next_ns = now_ns + std::min(kPauseNsMax, kPauseNsMin << std::min(lane.attempt_count, 7u));
  ++lane.attempt_count;
  wanted_.push_back(index);
}

}  // namespace weir::plugins::tcp
