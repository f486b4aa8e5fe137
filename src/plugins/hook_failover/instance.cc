// SPDX-License-Identifier: Apache-2.0
#include "plugins/hook_failover/instance.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>

#include "net/little_endian.h"
#include "plugins/common/look.h"

namespace weir::plugins::hook_failover {
namespace {

constexpr uint64_t kTendNs = 1'000'000;
constexpr uint64_t kTendNsPerPeer = 20'000;
constexpr uint32_t kCallsPerClock = 32;
// How long a rank that leaves waits for its peers to confirm that they have everything, where no
// transport is being changed.
constexpr uint64_t kFarewellNs = 500'000'000;
// A transport may take longer to start where there are many ranks, or where the network is slow.
constexpr uint64_t kStartNsPerRank = 5'000'000;
constexpr uint64_t kStartsOfLast = 8;

std::string text_of(uint64_t number) { return std::to_string(number); }

// Whether an error of connect comes from the network, and not from a wrong secret or address.
// WEIR_ERROR_UNSUPPORTED: the library below has no way between two of the ranks.
bool is_of_network(weir_result_t result) {
  return result == WEIR_ERROR_TIMEOUT || result == WEIR_ERROR_PEER_LOST ||
         result == WEIR_ERROR_SYSTEM || result == WEIR_ERROR_UNSUPPORTED;
}

}  // namespace

uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

Instance::Instance(const weir_host_t* host, const Chain& chain,
                   const weir_transport_config_t& config)
    : host_(host),
      channels_(common::control_of(host), static_cast<uint8_t>(chain.size() + 1)),
      meet_host_(*host),
      rank_(config.rank),
      rank_count_(config.rank_count),
      lane_count_(chain.caps.lane_count),
      message_bytes_max_(chain.caps.message_bytes_max),
      still_ns_(kStillDefaultMs * 1'000'000),
      tend_ns_(std::max(kTendNs, kTendNsPerPeer * config.rank_count)),
      members_(chain.size()) {
  meet_host_.struct_bytes = sizeof meet_host_;
  meet_host_.control = channels_.functions(static_cast<uint8_t>(chain.size()));
  meeting_.attach(&meet_host_, rank_, rank_count_);
  for (size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    member.self = this;
    member.functions = chain.parts[i].transport;
    member.host = *host;
    member.host.struct_bytes = sizeof member.host;
    member.host.context = &member;
    // Kept here, and passed to the caller when it matters there.
    member.host.error = [](void* context, const char* text) {
      static_cast<Member*>(context)->text = text;
    };
    member.host.log = [](void* context, int level, const char* text) {
      static_cast<Member*>(context)->self->log(level, text);
    };
    member.host.setting = [](void* context, const char* setting) -> const char* {
      const weir_host_t* outer = static_cast<Member*>(context)->self->host_;
      return outer->setting == nullptr ? nullptr : outer->setting(outer->context, setting);
    };
    member.host.look = [](void* context) {
      auto* const self = static_cast<Member*>(context);
      const weir_result_t heard = common::look(self->self->host_);
      self->ended_by_host = self->ended_by_host || heard != WEIR_OK;
      return heard;
    };
    member.host.control = channels_.functions(static_cast<uint8_t>(i));
  }
}

Instance::~Instance() {
  // A forked child asks the peers nothing: their connections belong to its parent.
  if (joined_ && !quiet_ && owner_ == getpid()) leave();
  for (Member& member : members_) {
    if (member.instance != nullptr) member.functions->close(member.instance);
  }
}

weir_result_t Instance::fail(weir_result_t code, const std::string& text) const {
  if (host_->error != nullptr) host_->error(host_->context, text.c_str());
  return code;
}

void Instance::log(int level, const std::string& text) const {
  if (host_->log != nullptr) host_->log(host_->context, level, text.c_str());
}

weir_result_t Instance::open(const weir_transport_config_t& config) {
  const char* still =
      host_->setting == nullptr ? nullptr : host_->setting(host_->context, kStillSetting);
  if (still != nullptr && *still != 0) {
    char* end = nullptr;
    const unsigned long long value = strtoull(still, &end, 10);
    if (*end != 0 || value < kStillMinMs || value > kStillMaxMs) {
      return fail(WEIR_ERROR_INVALID_ARGUMENT,
                  std::string("failover: ") + kStillSetting + "=" + still +
                      " is not a number of milliseconds from " + text_of(kStillMinMs) + " to " +
                      text_of(kStillMaxMs));
    }
    still_ns_ = value * 1'000'000;
  }
  for (Member& member : members_) {
    const weir_result_t result =
        member.functions->open(member.functions->context, &member.host, &config, &member.instance);
    if (result != WEIR_OK) {
      member.instance = nullptr;
      return fail(result, member.text);
    }
  }
  return WEIR_OK;
}

// For each transport two bytes of length, little-endian, and its address.
weir_result_t Instance::address(unsigned char* address, size_t* bytes) {
  size_t end = 0;
  for (Member& member : members_) {
    unsigned char own[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
    size_t own_bytes = sizeof own;
    const weir_result_t result = member.functions->address(member.instance, own, &own_bytes);
    if (result != WEIR_OK) return fail(result, member.text);
    if (end + 2 + own_bytes > WEIR_TRANSPORT_ADDRESS_BYTES_MAX) {
      return fail(WEIR_ERROR_UNSUPPORTED, std::string("failover: the addresses up to that of '") +
                                              member.functions->name + "' are longer than " +
                                              text_of(WEIR_TRANSPORT_ADDRESS_BYTES_MAX) +
                                              " bytes; allow fewer interfaces with WEIR_IFNAME");
    }
    address[end] = static_cast<unsigned char>(own_bytes);
    address[end + 1] = static_cast<unsigned char>(own_bytes >> 8);
    memcpy(address + end + 2, own, own_bytes);
    end += 2 + own_bytes;
  }
  *bytes = end;
  return WEIR_OK;
}

weir_result_t Instance::connect(const unsigned char* const* addresses, const size_t* address_bytes,
                                uint64_t deadline_ns) {
  if (!pairs_.empty()) return fail(WEIR_ERROR_INVALID_USAGE, "failover: connect was called twice");
  std::vector<std::vector<const unsigned char*>> parts(members_.size());
  std::vector<std::vector<size_t>> lengths(members_.size());
  for (uint32_t peer = 0; peer < rank_count_; ++peer) {
    size_t at = 0;
    const size_t end = addresses[peer] == nullptr ? 0 : address_bytes[peer];
    for (size_t i = 0; i < members_.size(); ++i) {
      const bool fits = at + 2 <= end;
      const size_t bytes = fits ? addresses[peer][at] + addresses[peer][at + 1] * size_t{256} : end;
      if (!fits || at + 2 + bytes > end || (i + 1 == members_.size() && at + 2 + bytes != end)) {
        return fail(WEIR_ERROR_INVALID_ARGUMENT, "failover: the address of rank " + text_of(peer) +
                                                     " does not contain " +
                                                     text_of(members_.size()) + " addresses");
      }
      parts[i].push_back(addresses[peer] + at + 2);
      lengths[i].push_back(bytes);
      at += 2 + bytes;
    }
  }
  pairs_ = std::vector<Pair>(rank_count_);
  const uint64_t copy_bytes = kCopyMemoryBytes * lane_count_ * rank_count_;
  copy_memory_.reset(new unsigned char[copy_bytes]);  // pages are touched when they are needed
  for (uint32_t peer = 0; peer < rank_count_; ++peer) {
    Pair& pair = pairs_[peer];
    pair.rank = peer;
    // Messages of a rank to itself need no other transport.
    pair.level = peer == rank_ ? last() : 0;
    pair.links.reset(new Link[members_.size()]);
    for (uint32_t lane = 0; lane < lane_count_; ++lane) {
      const uint64_t index = uint64_t{peer} * lane_count_ + lane;
      pair.sends[lane].attach(copy_memory_.get() + index * kCopyMemoryBytes, peer == rank_);
    }
  }
  uint64_t start_ns = 0;
  const weir_result_t met = connect_last(parts[last()], lengths[last()], deadline_ns, &start_ns);
  if (met != WEIR_OK) return met;
  for (uint32_t level = 0; level < last(); ++level) {
    Member& member = members_[level];
    // Leaves time for the other transports.
    const uint64_t now_ns = monotonic_ns();
    const uint64_t part_ns = deadline_ns > now_ns ? (deadline_ns - now_ns) / 2 : 0;
    const weir_result_t result =
        member.functions->connect(member.instance, parts[level].data(), lengths[level].data(),
                                  now_ns + std::min(part_ns, start_ns));
    if (result == WEIR_OK) continue;
    // The host has kept the reason, and no other transport could do better.
    if (member.ended_by_host) return result;
    if (!is_of_network(result)) return fail(result, member.text);
    do_without(level);
  }
  joined_ = true;
  note_carriers();
  return WEIR_OK;
}

// Connects the last transport, and waits until all ranks have. `start_ns`: how long any other one
// may then take, the same on all ranks: what is called a standstill later, and more where ranks are
// many or where the last one, too, took long at the rank that waited for no other.
weir_result_t Instance::connect_last(const std::vector<const unsigned char*>& addresses,
                                     const std::vector<size_t>& lengths, uint64_t deadline_ns,
                                     uint64_t* start_ns) {
  Member& member = members_[last()];
  const uint64_t began_ns = monotonic_ns();
  const weir_result_t result =
      member.functions->connect(member.instance, addresses.data(), lengths.data(), deadline_ns);
  if (result != WEIR_OK) return member.ended_by_host ? result : fail(result, member.text);
  uint64_t least_ns = monotonic_ns() - began_ns;
  if (meet_host_.control != nullptr && rank_count_ > 1) {
    std::vector<std::string> cards;
    unsigned char card[8];
    net::put(card, least_ns);
    const message::Control::Outcome met =
        meeting_.gather({reinterpret_cast<const char*>(card), sizeof card}, deadline_ns, &cards);
    if (met.result != WEIR_OK) {
      if (met.ranks.empty()) return met.result;
      return fail(met.result, "failover: " + message::names_of(met.ranks) +
                                  " did not take part in the start of its transports");
    }
    for (const std::string& other : cards) {
      if (other.size() != sizeof card) continue;
      const auto* bytes = reinterpret_cast<const unsigned char*>(other.data());
      least_ns = std::min(least_ns, net::get<uint64_t>(bytes));
    }
  }
  *start_ns = still_ns_ + kStartNsPerRank * rank_count_ + kStartsOfLast * least_ns;
  return WEIR_OK;
}

// For a transport that could not be started on this rank; the peers follow when they learn of it.
void Instance::do_without(uint32_t level) {
  Member& member = members_[level];
  log(1,
      "failover: rank " + text_of(rank_) + " starts without " + name(level) + ": " + member.text);
  member.functions->close(member.instance);
  member.instance = nullptr;
  for (Pair& pair : pairs_) {
    if (pair.rank == rank_) continue;
    pair.links[level].broken = true;
    pair.links[level].why = member.text;
    if (pair.level != level) continue;
    pair.level = level + 1;
    pair.state = Pair::State::kJoining;
    pair.links[level + 1].wanted = true;
  }
}

weir_result_t Instance::check(const char* call, uint32_t peer, uint32_t lane,
                              uint64_t bytes) const {
  if (!joined_) return fail(WEIR_ERROR_INVALID_USAGE, "failover: not connected");
  if (peer >= rank_count_ || lane >= lane_count_) {
    return fail(WEIR_ERROR_INVALID_ARGUMENT, std::string("failover: ") + call + " with peer " +
                                                 text_of(peer) + ", lane " + text_of(lane) +
                                                 ": there are " + text_of(rank_count_) +
                                                 " ranks and " + text_of(lane_count_) + " lanes");
  }
  if (bytes > message_bytes_max_) {
    return fail(WEIR_ERROR_INVALID_ARGUMENT,
                "failover: a message of " + text_of(bytes) + " bytes is above the limit");
  }
  return WEIR_OK;
}

// The index of an operation's stream is made of peer, lane and direction.
weir_result_t Instance::send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes,
                             Op* op) {
  const weir_result_t checked = check("send", peer, lane, bytes);
  if (checked != WEIR_OK) [[unlikely]]
    return checked;
  Pair& pair = pairs_[peer];
  SendStream& stream = pair.sends[lane];
  op->stream = (uint64_t{peer} * lane_count_ + lane) * 2;
  if (stream.result() != WEIR_OK) [[unlikely]]
    return fail(stream.result(), pair.why);
  stream.post(data, bytes, op);
  drive_send(pair, lane);
  lagging_ = lagging_ || stream.lags();
  return outcome(op);
}

weir_result_t Instance::recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes, Op* op) {
  const weir_result_t checked = check("recv", peer, lane, bytes);
  if (checked != WEIR_OK) [[unlikely]]
    return checked;
  Pair& pair = pairs_[peer];
  RecvStream& stream = pair.recvs[lane];
  op->stream = (uint64_t{peer} * lane_count_ + lane) * 2 + 1;
  if (stream.result() != WEIR_OK) [[unlikely]]
    return fail(stream.result(), pair.why);
  stream.post(data, bytes, op);
  drive_recv(pair, lane);
  lagging_ = lagging_ || stream.lags();
  return outcome(op);
}

weir_result_t Instance::test(Op* op) {
  if (op->state == 0) [[unlikely]] {
    return fail(WEIR_ERROR_INVALID_USAGE, "failover: test of an operation never posted");
  }
  count_call();
  if (op->state == kOpPending) {
    const uint64_t channel = op->stream / 2;
    Pair& pair = pairs_[channel / lane_count_];
    const auto lane = static_cast<uint32_t>(channel % lane_count_);
    if (op->stream % 2 == 0) {
      drive_send(pair, lane);
    } else {
      drive_recv(pair, lane);
    }
  }
  return outcome(op);
}

weir_result_t Instance::outcome(const Op* op) const {
  if (op->state == kOpDone) return WEIR_OK;
  if (op->state == kOpPending) return WEIR_IN_PROGRESS;
  return fail(static_cast<weir_result_t>(op->state - kOpFailed),
              pairs_[op->stream / 2 / lane_count_].why);
}

void Instance::drive_send(Pair& pair, uint32_t lane) {
  // Until the peer has reported what it has received, nothing may be sent over another transport.
  if (pair.state != Pair::State::kGood) return;
  SendStream& stream = pair.sends[lane];
  const weir_result_t result = stream.advance(route(pair, lane));
  if (result != WEIR_OK) [[unlikely]] {
    transport_failed(pair, &stream, result);
  } else if (stream.wants_word() && pair.rank != rank_) {
    poll_link(pair, pair.level);
  }
}

void Instance::drive_recv(Pair& pair, uint32_t lane) {
  if (pair.state != Pair::State::kGood && pair.state != Pair::State::kJoining) return;
  RecvStream& stream = pair.recvs[lane];
  const weir_result_t result = stream.advance(route(pair, lane));
  if (stream.owes_word() && pair.rank != rank_) {
    stream.word_given();
    pair.links[pair.level].wanted = true;
  }
  const Link& link = pair.links[pair.level];
  if (link.wanted) push_link(pair, pair.level);
  if (stream.holds()) {
    if (link.sending) push_link(pair, pair.level);
    if (link.is_idle()) stream.release();
  }
  if (result != WEIR_OK) [[unlikely]]
    transport_failed(pair, &stream, result);
}

void Instance::count_call() {
  if (++calls_ % kCallsPerClock != 0 && !hurry_) return;
  const uint64_t now_ns = monotonic_ns();
  if (!hurry_ && now_ns - tended_ns_ < tend_ns_) return;
  hurry_ = false;
  tend(now_ns);
  drive_lagging();
}

weir_result_t Instance::progress() {
  if (!joined_) return WEIR_OK;
  // Failures are reported by the operations.
  for (uint32_t level = 0; level <= last(); ++level) {
    const Member& member = members_[level];
    if ((carriers_ >> level & 1) == 0 || member.instance == nullptr) continue;
    (void)member.functions->progress(member.instance);
  }
  count_call();
  if (lagging_) drive_lagging();
  return WEIR_OK;
}

void Instance::drive_lagging() {
  lagging_ = false;
  for (Pair& pair : pairs_) {
    for (uint32_t lane = 0; lane < lane_count_; ++lane) {
      if (pair.sends[lane].lags()) drive_send(pair, lane);
      if (pair.recvs[lane].lags()) drive_recv(pair, lane);
      lagging_ = lagging_ || pair.sends[lane].lags() || pair.recvs[lane].lags();
    }
  }
}

weir_result_t Instance::peer_alive(uint32_t peer) {
  if (!joined_ || peer >= rank_count_) {
    return fail(WEIR_ERROR_INVALID_ARGUMENT,
                "failover: peer_alive of rank " + text_of(peer) + " of " + text_of(rank_count_));
  }
  const Pair& pair = pairs_[peer];
  if (peer == rank_) return WEIR_OK;
  // A peer is dead if it is dead for all transports. A transport that has failed does not count: a
  // peer that has left it in order is not dead for it, whatever has happened to the peer since.
  const bool failed = pair.state == Pair::State::kSuspect || pair.state == Pair::State::kLost;
  for (uint32_t level = std::min(pair.level + (failed ? 1 : 0), last()); level <= last(); ++level) {
    const Member& member = members_[level];
    if (member.instance == nullptr) continue;
    if (member.functions->peer_alive(member.instance, peer) == WEIR_ERROR_PEER_LOST) continue;
    return WEIR_OK;
  }
  return fail(WEIR_ERROR_PEER_LOST, members_[last()].text);
}

void Instance::describe_peer(uint32_t peer, char* text, size_t text_bytes) const {
  if (text_bytes == 0) return;
  text[0] = 0;
  if (!joined_ || peer >= rank_count_ || peer == rank_) return;
  const Member& member = members_[pairs_[peer].level];
  char way[512] = "";
  constexpr size_t kEnd = offsetof(weir_transport_functions_t, describe_peer) + sizeof(void*);
  if (member.instance != nullptr && member.functions->struct_bytes >= kEnd &&
      member.functions->describe_peer != nullptr) {
    member.functions->describe_peer(member.instance, peer, way, sizeof way);
  }
  if (way[0] != 0) {
    snprintf(text, text_bytes, "%s: %s", member.functions->name, way);
  } else {
    snprintf(text, text_bytes, "%s: rank %u", member.functions->name, peer);
  }
}

void Instance::quiesce() {
  quiet_ = true;
  for (Member& member : members_) {
    if (member.instance == nullptr) continue;
    if ((member.functions->caps.bits & WEIR_CAP_QUIESCE) != 0) {
      member.functions->quiesce(member.instance);
    }
  }
}

// If the transport failed just now, a peer might still need data of this rank, or the confirmation
// that this rank has received the peer's data. So the peers are asked; a peer that answers has
// everything.
void Instance::leave() {
  std::vector<Pair*> left;
  leaving_ = true;
  for (Pair& pair : pairs_) {
    if (pair.rank == rank_) continue;
    for (uint32_t lane = 0; lane < lane_count_; ++lane) {
      // With operations in flight this is no orderly end, but for receives on the last lane.
      const bool receives = pair.recvs[lane].busy() && lane + 1 < lane_count_;
      if (pair.sends[lane].busy() || receives) return;
    }
    if (!pair.is_used(lane_count_) || pair.state == Pair::State::kLost) continue;
    ask(pair, pair.level);
    left.push_back(&pair);
  }
  const uint64_t begin_ns = monotonic_ns();
  uint64_t now_ns = begin_ns;
  const auto is_done = [&](const Pair* pair) {
    const bool is_changing = pair->state != Pair::State::kGood;
    const uint64_t patience_ns = is_changing ? std::max(kFarewellNs, still_ns_) : kFarewellNs;
    if (now_ns - begin_ns >= patience_ns || meeting_.life(pair->rank) != WEIR_LIFE_HERE)
      return true;
    if (is_changing) return pair->state == Pair::State::kLost;
    bool all = pair->links[pair->level].answered;
    for (uint32_t lane = 0; lane < lane_count_; ++lane) {
      all = all && pair->sends[lane].has_word_of_all();
    }
    return all;
  };
  while (!left.empty()) {
    tend(now_ns);
    drive_lagging();
    std::erase_if(left, is_done);
    if (!left.empty()) sched_yield();
    now_ns = monotonic_ns();
  }
}

}  // namespace weir::plugins::hook_failover
