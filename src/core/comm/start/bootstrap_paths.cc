// SPDX-License-Identifier: Apache-2.0
// Between hosts with several networks, where the path of a connection fails: the child connects to
// the parent's other addresses, and both go on over the link that comes of it.
#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/comm/start/bootstrap_tree.h"
#include "net/ip_socket.h"

namespace weir::comm {
namespace {

constexpr size_t kUnansweredMax = 16;
// A child that waits says so at this interval: where nothing is sent, no failure is seen.
constexpr uint64_t kHereNs = 200'000'000;
// The parent's host has not answered for so long, although something was sent again.
constexpr uint32_t kStalledMs = 500;
// Between two attempts, the first; each further one twice as long.
constexpr uint64_t kPathPauseNs = 500'000'000;
constexpr uint32_t kPathPauseDoublings = 4;
// How long a rank that is done stays for children whose host has not acknowledged what was sent.
constexpr uint64_t kLastNs = 3'000'000'000;
constexpr uint64_t kLastPauseNsMin = 10'000;
constexpr uint64_t kLastPauseNsMax = 5'000'000;

}  // namespace

void Tree::keep_unanswered(Parent* parent) {
  self_.unanswered_count += static_cast<uint32_t>(parent->unanswered.size());
  std::move(parent->unanswered.begin(), parent->unanswered.end(), std::back_inserter(unanswered_));
  parent->unanswered.clear();
  if (unanswered_.size() <= kUnansweredMax) return;
  unanswered_.erase(unanswered_.begin(), unanswered_.end() - kUnansweredMax);
}

void Tree::admit(Parent parent, const Decision& decision) {
  std::unique_ptr<control::Link> link = std::move(parent.link);
  std::unique_ptr<control::Link> again = decision.is_known ? std::move(link) : nullptr;
  connections_.emplace_back(Node::kUp, std::move(link), decision.parent, 0, decision.early_count);
  if (again && !connections_.back().go_on_over(std::move(again), decision.received_count)) {
    node_.receive_malformed(Node::kUp);
  }
  unanswered_.clear();
}

// A rank that was here before, whose link lost its path, or the answer to its proof.
bool Tree::take_up_again(Rank rank, uint32_t instance, Arrival* arrival) {
  std::erase_if(waiting_, [&](const Arrival& one) {
    const net::Handshake& handshake = one.link->handshake();
    return handshake.peer() == rank && handshake.subject()[2] == instance;
  });
  const auto child =
      std::find_if(connections_.begin(), connections_.end(), [&](const Connection& one) {
        return one.number() != Node::kUp && one.is_of(rank, instance);
      });
  if (child == connections_.end() || !child->is_open() || child->is_local()) return false;
  const std::string count = pack_count(child->received_count());
  arrival->link->queue(
      {control::Frame::Kind::kStart, static_cast<uint8_t>(Message::kAdmit), self_.rank, 0, count});
  (void)arrival->link->flush();
  child->go_on_over(std::move(arrival->link));
  return true;
}

// Null: the parent is on this host, or has ended.
Connection* Tree::remote_parent() {
  const auto up = std::find_if(connections_.begin(), connections_.end(),
                               [](const Connection& one) { return one.number() == Node::kUp; });
  return up == connections_.end() || !up->is_open() || up->is_local() ? nullptr : &*up;
}

// While this rank waits for its parent.
void Tree::watch_path(uint64_t now) {
  Connection* const up = remote_parent();
  const auto& addresses = (parent_at_ ? parent_at_->place : place_).addresses;
  if (up == nullptr || addresses.size() <= 1) return;
  net::acknowledge_at_once(up->link().fd());
  if (next_here_ns_ == UINT64_MAX) next_here_ns_ = now + kHereNs;
  if (now < next_here_ns_) return;
  next_here_ns_ = now + kHereNs;
  if (up->link().queued_bytes() == 0) {
    up->link().queue(
        {control::Frame::Kind::kStart, static_cast<uint8_t>(Message::kHere), 0, 0, {}});
    (void)up->link().flush();
  }
  if (!up->link().is_stalled(kStalledMs) || now < next_path_ns_) return;
  try_other_path();
  next_path_ns_ = now_ns() + (kPathPauseNs << std::min(path_count_++, kPathPauseDoublings));
}

void Tree::try_other_path() {
  JoiningRank self = self_;
  self.deadline_ns = node_.expiry_ns();
  self.unanswered_count = path_count_;
  const net::TlsContext* const tls = options_.tls ? tls_.get() : nullptr;
  Result<Parent> found = parent_at_ ? connect_to(self, *parent_at_, tls)
                                    : connect_to_place(self, place_, look_count_++, tls);
  // Whoever answers there need not be the parent, whose link is still there.
  if (!found.ok()) return;
  Parent parent = found.take();
  keep_unanswered(&parent);
  if (parent.link == nullptr) return;
  const Result<Decision> decided = await_decision(parent, answer_patience_ns(self, 2));
  if (!decided.ok()) return node_.fail(decided.status());
  const Decision& decision = decided.value();
  if (decision.kind == Decision::Kind::kNone) {
    parent.unanswered.push_back(std::move(parent.link));
    return keep_unanswered(&parent);
  }
  Connection* const up = remote_parent();
  if (decision.kind != Decision::Kind::kAdmitted || !decision.is_known || up == nullptr) return;
  if (!up->go_on_over(std::move(parent.link), decision.received_count)) {
    return node_.receive_malformed(Node::kUp);
  }
  (void)up->link().flush();
  unanswered_.clear();
}

// A child on another host has what was sent last, or has come for it over another path.
void Tree::await_children() {
  const uint64_t until_ns = now_ns() + kLastNs;
  for (uint64_t pause_ns = kLastPauseNsMin;; pause_ns = std::min(2 * pause_ns, kLastPauseNsMax)) {
    serve_acceptors();
    bool all_have_it = true;
    for (Connection& one : connections_) {
      const auto has_it = [&] { return !one.waits_for_child() && one.link().is_acknowledged(); };
      if (one.number() == Node::kUp || !one.is_open() || has_it()) continue;
      (void)one.link().flush();
      read(&one);
      all_have_it = all_have_it && (!one.is_open() || has_it());
    }
    if (all_have_it || now_ns() >= until_ns) return;
    std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
  }
}

}  // namespace weir::comm
