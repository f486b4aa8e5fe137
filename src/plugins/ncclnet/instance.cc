// SPDX-License-Identifier: Apache-2.0
#include "plugins/ncclnet/instance.h"

#include <sched.h>

#include <algorithm>

#include "net/little_endian.h"

namespace weir::plugins::ncclnet {
namespace {

// How long a failure of the plugin may wait for a goodbye or a death to explain it, and how long
// data that a peer sent before it left may still be on their way to a rank that waits for them.
constexpr uint64_t kUnexplainedNs = 250'000'000;
constexpr uint64_t kFarewellNs = 1'000'000'000;
// The time limit of close: sent data should still leave.
constexpr uint64_t kFlushNs = 300'000'000;
constexpr uint32_t kIdleCountMax = 256;
constexpr int kDrainCountMax = 10'000;

// A rank's farewell to a peer with which it has exchanged messages: kFarewellKind, and for each
// lane 8 bytes, the number of messages to that peer that were sent.
constexpr char kFarewellKind = message::kOwnKind + 1;
constexpr size_t kFarewellBytes = 1 + 8 * kLaneCount;

}  // namespace

weir_result_t Instance::open_plugin(uint64_t comm_id) {
  const char* wanted = report.setting("WEIR_NCCL_NET_PLUGIN");
  std::string reason = "WEIR_NCCL_NET_PLUGIN is not set: no plugin to load";
  if (wanted != nullptr && *wanted != 0) plugin = weir::ncclnet::open_plugin(wanted, 0, &reason);
  if (plugin == nullptr) return report.fail(WEIR_ERROR_UNSUPPORTED, reason);
  const auto initialized = plugin->init(comm_id, &context);
  if (initialized != weir::ncclnet::kSuccess) {
    return plugin_failed(WEIR_ERROR_UNSUPPORTED, "init", initialized);
  }
  has_context = true;
  int count = 0;
  const auto counted = plugin->devices(&count);
  if (counted != weir::ncclnet::kSuccess) {
    return plugin_failed(WEIR_ERROR_UNSUPPORTED, "devices", counted);
  }
  bool found = false;
  for (int i = 0; i < count; ++i) {
    weir::ncclnet::DeviceProperties one;
    const auto told = plugin->properties(i, &one);
    if (told != weir::ncclnet::kSuccess) {
      return plugin_failed(WEIR_ERROR_UNSUPPORTED, "getProperties", told);
    }
    const bool usable = (one.pointer_kinds & weir::ncclnet::kPointerHost) != 0 &&
                        one.offload_type == weir::ncclnet::kDeviceIsHost &&
                        one.message_bytes_max >= Flow::kSlotBytes;
    if (!usable || (found && one.speed_mbits <= properties.speed_mbits)) continue;
    found = true;
    device = i;
    properties = one;
  }
  if (found) return WEIR_OK;
  return report.fail(WEIR_ERROR_UNSUPPORTED,
                     plugin->description() + ": none of its " +
                         text_of(static_cast<uint64_t>(std::max(count, 0))) +
                         " devices supports host memory");
}

void Instance::make_active(Flow* flow) {
  if (flow->active) return;
  flow->active = true;
  flow->next_active = active;
  active = flow;
}

void Instance::move() {
  bool moved = false;
  for (Flow** link = &active; *link != nullptr;) {
    Flow* flow = *link;
    moved = flow->drive() || moved;
    if (flow->failure().result != WEIR_OK) {
      break_off(static_cast<uint32_t>(index_of(flow) / kLaneCount));
    }
    if (flow->idle()) {
      flow->active = false;
      *link = flow->next_active;
    } else {
      link = &flow->next_active;
    }
  }
  if (moved) {
    idle_count = 0;
  } else if (++idle_count >= kIdleCountMax) {
    idle_count = 0;
    next_look = (next_look + 1) % rank_count;
    if (next_look != rank) look_at(next_look);
  }
  if (troubled_count != 0) [[unlikely]]
    tend();
}

// A flow of the peer has failed.
void Instance::break_off(uint32_t other) {
  Peer& peer = peers[other];
  if (peer.state != Peer::State::kHere) return;
  bool by_plugin = false;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    for (const auto* flows : {&sends, &recvs}) {
      const Failure& failure = (*flows)[other * kLaneCount + lane].failure();
      by_plugin = by_plugin || failure.plugin != weir::ncclnet::kSuccess;
    }
  }
  // A message of another length says nothing about the peer's life.
  if (!by_plugin) return;
  peer.state = Peer::State::kBroken;
  peer.since_ns = monotonic_ns();
  ++troubled_count;
}

void Instance::look_at(uint32_t other) {
  Peer& peer = peers[other];
  if (other == rank || peer.state == Peer::State::kLost || peer.told) return;
  // Asked before words are read: those read after an end are all that there will be.
  const int life = control.life(other);
  std::string word;
  while (!peer.told && control.hear(other, &word)) hear_word(other, word);
  if (peer.told) return;
  if (life == WEIR_LIFE_LEFT) return note_leaving(other);
  if (life != WEIR_LIFE_LOST || peer.state == Peer::State::kLeft) return;
  if (peer.state == Peer::State::kHere) ++troubled_count;
  peer.state = Peer::State::kLost;
  if (!peer.ended) end_flows(other);
}

void Instance::note_leaving(uint32_t other) {
  Peer& peer = peers[other];
  if (peer.state == Peer::State::kLeft) return;
  if (peer.state == Peer::State::kHere) ++troubled_count;
  peer.state = Peer::State::kLeft;
  peer.since_ns = monotonic_ns();
}

// A peer that gives up has sent nothing.
void Instance::hear_word(uint32_t other, const std::string& word) {
  const bool is_farewell = word.size() == kFarewellBytes && word[0] == kFarewellKind;
  if (!is_farewell && (word.size() != 1 || word[0] != message::kGiveUpKind)) return;
  note_leaving(other);
  Peer& peer = peers[other];
  peer.told = true;
  for (uint32_t lane = 0; is_farewell && lane < kLaneCount; ++lane) {
    const auto* const counts = reinterpret_cast<const unsigned char*>(word.data()) + 1;
    peer.sent_count[lane] = net::get<uint64_t>(counts + 8 * lane);
  }
}

// Explains failures, and ends the flows of peers that have left, as soon as the reason is known.
void Instance::tend() {
  const uint64_t now = monotonic_ns();
  for (uint32_t i = 0; i < rank_count; ++i) {
    Peer& peer = peers[i];
    if (peer.ended) continue;
    if (peer.state == Peer::State::kBroken) {
      look_at(i);
      if (peer.state == Peer::State::kBroken && now > peer.since_ns + kUnexplainedNs) end_flows(i);
      if (peer.ended) continue;
    }
    if (peer.state != Peer::State::kLeft || peer.ended) continue;
    if (!peer.told) look_at(i);
    if (peer.told && !is_waited_for(i)) peer.since_ns = now;
    if (has_all(i) || now > peer.since_ns + kFarewellNs) end_flows(i);
  }
}

bool Instance::has_all(uint32_t peer) const {
  if (!peers[peer].told) return false;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    const Flow& flow = recvs[peer * kLaneCount + lane];
    if (flow.failure().result == WEIR_OK && !flow.has_received(peers[peer].sent_count[lane])) {
      return false;
    }
  }
  return true;
}

bool Instance::is_waited_for(uint32_t peer) const {
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    if (recvs[peer * kLaneCount + lane].has_operations()) return true;
  }
  return false;
}

// Data that have arrived are still delivered.
void Instance::end_flows(uint32_t peer) {
  peers[peer].ended = true;
  --troubled_count;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    Flow& flow = recvs[peer * kLaneCount + lane];
    for (int i = 0; i < kDrainCountMax && flow.drive(); ++i) {
    }
  }
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    for (auto* flows : {&sends, &recvs}) {
      (*flows)[peer * kLaneCount + lane].fail(WEIR_ERROR_PEER_LOST, "");
    }
  }
}

bool Instance::is_unexplained(const Flow* flow) {
  const size_t other = index_of(flow) / kLaneCount;
  if (flow->failure().plugin == weir::ncclnet::kSuccess) return false;
  break_off(static_cast<uint32_t>(other));
  return peers[other].state == Peer::State::kBroken && !peers[other].ended;
}

weir_result_t Instance::tell(Flow* flow) {
  const size_t index = index_of(flow);
  const auto other = static_cast<uint32_t>(index / kLaneCount);
  const std::string lane = text_of(index % kLaneCount);
  const Failure& failure = flow->failure();
  if (failure.result != WEIR_ERROR_PEER_LOST) {
    return report.fail(failure.result, "from rank " + text_of(other) + " to rank " + text_of(rank) +
                                           ": " + failure.text + " (lane " + lane + ")");
  }
  look_at(other);
  const Peer& peer = peers[other];
  const std::string why = failure.text.empty() ? "" : " (" + failure.text + ")";
  const std::string how = peer.state == Peer::State::kLeft
                              ? " has closed the communicator"
                              : (peer.state == Peer::State::kLost
                                     ? " was lost" + why
                                     : " cannot be reached through " + plugin->description() + why);
  return report.fail(
      failure.result,
      "rank " + text_of(other) + how +
          (is_send(flow) ? ", while rank " + text_of(rank) + " sent to it"
                         : ", while rank " + text_of(rank) + " waited for a message") +
          " (lane " + lane + ")");
}

bool Instance::has_exchanged_with(uint32_t other) const {
  for (const auto* flows : {&sends, &recvs}) {
    for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
      const Flow& flow = (*flows)[other * kLaneCount + lane];
      if (flow.message_count() != 0 || flow.has_operations()) return true;
    }
  }
  return false;
}

std::string Instance::farewell_to(uint32_t other) const {
  std::string farewell(kFarewellBytes, kFarewellKind);
  auto* const counts = reinterpret_cast<unsigned char*>(farewell.data()) + 1;
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    net::put(counts + 8 * lane, sends[other * kLaneCount + lane].message_count());
  }
  return farewell;
}

// Other peers learn from the control network that this rank has left.
void Instance::say_farewells() const {
  std::vector<uint32_t> told;
  for (uint32_t i = 0; i < rank_count; ++i) {
    if (i == rank || !has_exchanged_with(i)) continue;
    control.say(i, farewell_to(i));
    told.push_back(i);
  }
  const uint64_t deadline_ns = monotonic_ns() + kFlushNs;
  for (const uint32_t peer : told) control.flush(peer, deadline_ns);
}

// Sends the peers what complete sends have left in frames, if the time allows.
void Instance::flush(uint64_t deadline_ns) {
  for (;;) {
    bool idle = true;
    for (Flow& flow : sends) {
      if (flow.failure().result != WEIR_OK || !flow.attached()) continue;
      (void)flow.drive();
      idle = idle && flow.idle();
    }
    if (idle || monotonic_ns() >= deadline_ns) return;
    sched_yield();
  }
}

void Instance::quiesce() {
  if (!joined) return;
  for (auto* flows : {&sends, &recvs}) {
    for (Flow& flow : *flows) flow.close();
  }
  for (Peer& peer : peers) peer.ended = true;
  troubled_count = 0;
  active = nullptr;
}

Instance::~Instance() {
  // Only the parent may end the connections of a forked child, and few plugins work in a child.
  if (owner != getpid()) return;
  const auto is_idle = [](const Flow& flow) { return !flow.has_operations(); };
  const bool idle = std::all_of(sends.begin(), sends.end(), is_idle) &&
                    std::all_of(recvs.begin(), recvs.end(), is_idle);
  if (joined && idle) {
    for (uint32_t i = 0; i < rank_count; ++i) look_at(i);
    flush(monotonic_ns() + kFlushNs);
  }
  if (joined) {
    say_farewells();
  } else if (!peers.empty()) {
    control.give_up(true);
  }
  for (auto* flows : {&sends, &recvs}) {
    for (Flow& flow : *flows) flow.close();
  }
  for (void* listener : listeners) {
    if (listener != nullptr) (void)plugin->close_listen(listener);
  }
  if (has_context) (void)plugin->finalize(context);
}

}  // namespace weir::plugins::ncclnet
