// SPDX-License-Identifier: Apache-2.0
#include "unit/comm/start/simulated_start.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace weir::comm {
namespace {

// Before a rank that nobody could take comes again.
constexpr uint64_t kPauseNs = 500'000;

constexpr size_t kHeaderBytes = 16;  // of a frame

size_t bytes_of(const Node::Send& send) { return kHeaderBytes + send.payload.size(); }

std::string blob_of(Rank rank, size_t bytes) {
  std::string blob(bytes, static_cast<char>(rank * 7));
  std::memcpy(blob.data(), &rank, std::min(bytes, sizeof rank));
  return blob;
}

}  // namespace

SimulatedStart::SimulatedStart(const SimulatedNetwork& network)
    : network_(network),
      leaders_(network.rank_count / network.ranks_per_host + 1),
      random_(network.seed) {
  for (Rank rank = 0; rank < network.rank_count; ++rank) {
    const uint64_t start_ns = network.skew_ns == 0 ? 0 : random_() % network.skew_ns;
    ranks_.push_back(
        std::make_unique<One>(rank, network.rank_count, start_ns, start_ns + network.timeout_ns));
    const bool absent =
        std::find(network.absent.begin(), network.absent.end(), rank) != network.absent.end();
    if (!absent) push({start_ns, 0, Kind::kStart, rank, 0, {}});
  }
}

void SimulatedStart::push(Event event) {
  event.number = event_count_++;
  events_.push(std::move(event));
}

void SimulatedStart::note(const Event& event) {
  for (const uint64_t word :
       {event.time_ns, uint64_t{static_cast<uint8_t>(event.kind)}, uint64_t{event.rank},
        uint64_t{event.from}, event.frame.payload.size()}) {
    trace_ = (trace_ ^ word) * 0x100000001b3;
  }
}

void SimulatedStart::kill_at(Rank rank, uint64_t time_ns) {
  push({std::max(time_ns, now_ns_), 0, Kind::kKill, rank, rank, {}});
}

void SimulatedStart::run(const std::function<bool()>& done) {
  while (!done()) {
    if (events_.empty()) {
      if (!expire_one()) return;
      continue;
    }
    Event event = events_.top();
    events_.pop();
    now_ns_ = event.time_ns;
    note(event);
    happen(std::move(event));
  }
}

// Nothing will happen any more: the first deadline passes.
bool SimulatedStart::expire_one() {
  One* first = nullptr;
  for (const auto& one : ranks_) {
    if (!one->started || one->dead || !one->node.busy()) continue;
    if (first == nullptr || one->node.expiry_ns() < first->node.expiry_ns()) first = one.get();
  }
  if (first == nullptr) return false;
  now_ns_ = std::max(now_ns_, first->node.expiry_ns());
  first->node.expire(now_ns_, "");
  for (Rank rank = 0; rank < network_.rank_count; ++rank) {
    if (ranks_[rank].get() == first) send_all(rank);
  }
  return true;
}

void SimulatedStart::happen(Event event) {
  One& one = *ranks_[event.rank];
  switch (event.kind) {
    case Kind::kStart:
      start(event.rank);
      return;
    case Kind::kKill:
      kill(event.rank);
      return;
    case Kind::kTurn:
      take_turn(event.rank);
      return;
    default:
      break;
  }
  if (one.dead) return;
  const Rank rank = event.rank;
  one.inbox.push_back(std::move(event));
  if (one.turn_planned) return;
  one.turn_planned = true;
  push({std::max(now_ns_, one.free_at_ns), 0, Kind::kTurn, rank, rank, {}});
}

// A rank looks for the first of its host, and the first for the root.
void SimulatedStart::start(Rank rank) {
  One& one = *ranks_[rank];
  if (one.dead) return;
  one.started = true;
  if (rank == 0) {
    leaders_[0] = 0;
    one.node.be_root();
    return;
  }
  const Rank host = rank / network_.ranks_per_host;
  if (host != 0 && !leaders_[host]) leaders_[host] = rank;
  const Rank target = host == 0 || leaders_[host] == rank ? 0 : *leaders_[host];
  if (!ranks_[target]->started || ranks_[target]->dead) {
    push({now_ns_ + kPauseNs, 0, Kind::kStart, rank, rank, {}});
    return;
  }
  push({now_ns_ + 2 * network_.latency_ns, 0, Kind::kAsk, target, rank, {}});
}

void SimulatedStart::take_turn(Rank rank) {
  One& one = *ranks_[rank];
  one.turn_planned = false;
  if (one.dead) return;
  one.free_at_ns = std::max(one.free_at_ns, now_ns_);
  std::deque<Event> inbox;
  inbox.swap(one.inbox);
  while (!inbox.empty()) {
    // As over sockets: a node that is done with its round reads nothing before the next.
    if (!one.node.busy()) {
      one.inbox = std::move(inbox);
      break;
    }
    handle(one, inbox.front());
    inbox.pop_front();
  }
  std::erase_if(one.waiting, [&](const Event& asked) { return answer(one, asked); });
  one.node.end_turn(one.free_at_ns);
  send_all(rank);
  check_gathered(rank);
}

void SimulatedStart::handle(One& one, Event& event) {
  switch (event.kind) {
    case Kind::kAsk:
      one.free_at_ns += network_.handshake_ns;
      if (event.rank == 0) ++handshakes_of_root_;
      if (!answer(one, event)) one.waiting.push_back(event);
      break;
    case Kind::kAdmit: {
      one.peers[Node::kUp] = event.from;
      one.links[event.from] = Node::kUp;
      one.node.set_parent(event.from, event.from + 1);
      if (!Node::fits_below_root(network_.rank_count)) one.node.tell_address({});
      break;
    }
    case Kind::kFrame: {
      one.free_at_ns += network_.frame_ns + bytes_of(event.frame);
      const auto link = one.links.find(event.from);
      if (link != one.links.end()) {
        one.node.receive(link->second, event.frame.frame(), one.free_at_ns);
      }
      break;
    }
    case Kind::kClosed: {
      const auto link = one.links.find(event.from);
      if (link != one.links.end()) one.node.closed(link->second);
      break;
    }
    default:
      break;
  }
}

bool SimulatedStart::answer(One& parent, const Event& event) {
  const Rank joining = event.from;
  const uint64_t back_ns = parent.free_at_ns + network_.latency_ns;
  if (parent.node.has_room()) {
    const Node::Link link = static_cast<Node::Link>(parent.peers.size()) + 1;
    parent.peers[link] = joining;
    parent.links[joining] = link;
    connections_max_ = std::max(connections_max_, parent.peers.size());
    parent.node.add_child(link,
                          {joining, network_.rank_count, network_.timeout_ns / 1000, joining + 1},
                          parent.free_at_ns);
    push({back_ns, 0, Kind::kAdmit, joining, event.rank, {}});
  } else if (const auto to = parent.node.redirect()) {
    push({back_ns + 2 * network_.latency_ns, 0, Kind::kAsk, to->rank, joining, {}});
  } else {
    return false;
  }
  return true;
}

void SimulatedStart::send_all(Rank rank) {
  One& one = *ranks_[rank];
  one.free_at_ns = std::max(one.free_at_ns, now_ns_);
  for (Node::Send& send : one.node.take_sends()) {
    const auto peer = one.peers.find(send.link);
    if (peer == one.peers.end()) continue;
    one.free_at_ns += network_.frame_ns + bytes_of(send);
    push({one.free_at_ns + network_.latency_ns, 0, Kind::kFrame, peer->second, rank,
          std::move(send)});
  }
}

void SimulatedStart::kill(Rank rank) {
  One& one = *ranks_[rank];
  one.dead = true;
  for (const auto& [link, peer] : one.peers) {
    push({now_ns_ + network_.latency_ns, 0, Kind::kClosed, peer, rank, {}});
  }
}

bool SimulatedStart::is_settled(Rank rank) const {
  const One& one = *ranks_[rank];
  return one.dead || (one.started && !one.node.busy()) ||
         std::find(network_.absent.begin(), network_.absent.end(), rank) != network_.absent.end();
}

uint64_t SimulatedStart::join() {
  const uint64_t begin_ns = now_ns_;
  // Asked seldom: it looks at all ranks.
  uint64_t calls = 0;
  run([&] {
    if (++calls % network_.rank_count != 0 && !events_.empty()) return false;
    for (Rank rank = 0; rank < network_.rank_count; ++rank) {
      if (!is_settled(rank)) return false;
    }
    return true;
  });
  return now_ns_ - begin_ns;
}

uint64_t SimulatedStart::all_gather(size_t blob_bytes) {
  const uint64_t begin_ns = now_ns_;
  blob_bytes_ = blob_bytes;
  gathered_count_ = 0;
  for (Rank rank = 0; rank < network_.rank_count; ++rank) {
    One& one = *ranks_[rank];
    if (one.dead) continue;
    one.gathered = false;
    one.free_at_ns = now_ns_;
    one.node.start_round(blob_of(rank, blob_bytes), now_ns_, now_ns_ + network_.timeout_ns);
    one.node.end_turn(now_ns_);
    send_all(rank);
    if (!one.inbox.empty() && !one.turn_planned) {
      one.turn_planned = true;
      push({now_ns_, 0, Kind::kTurn, rank, rank, {}});
    }
  }
  uint64_t calls = 0;
  run([&] {
    if (gathered_count_ == network_.rank_count) return true;
    if (++calls % network_.rank_count != 0 && !events_.empty()) return false;
    for (Rank rank = 0; rank < network_.rank_count; ++rank) {
      if (!is_settled(rank)) return false;
    }
    return true;
  });
  return now_ns_ - begin_ns;
}

void SimulatedStart::check_gathered(Rank rank) {
  One& one = *ranks_[rank];
  if (blob_bytes_ == 0 || one.gathered || one.node.busy() || !one.node.status().ok()) return;
  const std::vector<std::string> blobs = one.node.take_blobs();
  ASSERT_EQ(blobs.size(), network_.rank_count);
  for (Rank from = 0; from < network_.rank_count; ++from) {
    ASSERT_EQ(blobs[from], blob_of(from, blob_bytes_)) << "of " << from << " at " << rank;
  }
  one.gathered = true;
  ++gathered_count_;
}

size_t SimulatedStart::depth_max() const {
  size_t deepest = 0;
  for (Rank rank = 0; rank < network_.rank_count; ++rank) {
    size_t depth = 0;
    for (Rank at = rank; at != 0; ++depth) {
      const auto parent = ranks_[at]->peers.find(Node::kUp);
      if (parent == ranks_[at]->peers.end() || depth > network_.rank_count) return SIZE_MAX;
      at = parent->second;
    }
    deepest = std::max(deepest, depth);
  }
  return deepest;
}

}  // namespace weir::comm
