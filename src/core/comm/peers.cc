// SPDX-License-Identifier: Apache-2.0
// What the peers of a communicator tell of themselves, in mapped memory or on the board, and what
// follows from it.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "core/base/clock.h"
#include "core/comm/communicator.h"
#include "core/comm/rank_list.h"

namespace weir::comm {

using engine::Control;
using engine::RankState;

namespace {

// How long the end of a connection may come before the word of why. The connections of a process
// that dies are closed one after the other, and where others take the processor it stands still
// between two.
constexpr uint64_t kWordPatienceNs = 5'000'000'000;
constexpr timespec kBetweenLooks{0, 500'000};
// In shared memory a rank that waits shows it at every look, some of which a busy machine delays.
constexpr uint64_t kMappedBeatNs = 50'000'000;

std::string read_text(const char* shared, size_t bytes) {
  std::string text(shared, strnlen(shared, bytes));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

bool contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

void Communicator::look_at_peers(uint64_t now) {
  last_look_ns_ = now;
  // Before the ranks' own words are read: a process that ends in order has left its word by then.
  ended_.clear();
  const bool reports_death = (context_.transport->caps.bits & WEIR_CAP_PEER_FAILURE) != 0;
  for (Rank p = 0; p < context_.rank_count && reports_death; ++p) {
    if (p != context_.rank &&
        context_.transport->peer_alive(context_.instance, p) == WEIR_ERROR_PEER_LOST) {
      ended_.push_back(p);
    }
  }
  if (board_.is_open()) board_.look(now);
  if (!context_.mapped()) return;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    const uint32_t count = context_.control(p).health.beat.load(std::memory_order_acquire);
    if (count == beats_[p].count) continue;
    beats_[p] = {count, now};
  }
}

void Communicator::beat(uint64_t now) {
  beat_ns_ = now;
  collect_awaited_by_all(&awaited_ranks_);
  auto& health = context_.control(context_.rank).health;
  std::array<uint64_t, engine::kAwaitedRanksMax / 64> bits{};
  for (const Rank p : awaited_ranks_) {
    if (p < engine::kAwaitedRanksMax) bits[p / 64] |= uint64_t{1} << p % 64;
  }
  for (size_t i = 0; i < bits.size(); ++i) {
    health.awaited[i].store(bits[i], std::memory_order_relaxed);
  }
  health.beat.fetch_add(1, std::memory_order_release);
}

void Communicator::end_beats() {
  beat_ns_ = 0;
  for (auto& bits : context_.control(context_.rank).health.awaited) {
    bits.store(0, std::memory_order_relaxed);
  }
}

void Communicator::collect_awaited_by(Rank peer, std::vector<Rank>* ranks) const {
  ranks->clear();
  if (!context_.mapped()) {
    if (board_.peer(peer).known) *ranks = board_.peer(peer).standing.waited;
    return;
  }
  const auto& awaited = context_.control(peer).health.awaited;
  for (Rank p = 0; p < std::min(context_.rank_count, engine::kAwaitedRanksMax); ++p) {
    const uint64_t bits = awaited[p / 64].load(std::memory_order_relaxed);
    if ((bits >> p % 64 & 1) != 0) ranks->push_back(p);
  }
}

uint64_t Communicator::beat_interval_ns() const {
  return context_.mapped() ? kMappedBeatNs : board_.is_open() ? board_.beat_interval_ns() : 0;
}

Status Communicator::failure_of(Rank peer, std::vector<Rank>* blamed) const {
  RankState state = RankState::kHealthy;
  uint32_t code = 0;
  std::string text;
  if (context_.mapped()) {
    const Control& control = context_.control(peer);
    state = static_cast<RankState>(control.health.state.load(std::memory_order_acquire));
    if (state == RankState::kFailed) {
      code = control.health.code.load(std::memory_order_relaxed);
      text = read_text(control.error_text, engine::kErrorTextBytes);
      for (uint32_t k = 0; k < std::min(control.blamed_count, engine::kBlamedRanksMax); ++k) {
        const Rank rank = control.blamed_ranks[k];
        if (rank < context_.rank_count) blamed->push_back(rank);
      }
    }
  } else if (board_.is_open()) {
    const Standing& standing = board_.peer(peer).standing;
    state = standing.state;
    code = standing.code;
    text = standing.text;
    *blamed = standing.blamed;
  }
  if (state == RankState::kAborted) {
    return Status(Code::kAborted, fmt::format("rank {} aborted communicator '{}'", peer, name_));
  }
  if (state != RankState::kFailed) return Status();
  const bool known = code > 1 && code <= static_cast<uint32_t>(Code::kInternal);
  // Who passes on what another has told says so already.
  if (code != static_cast<uint32_t>(Code::kAborted) &&
      text.find("(reported by rank") == std::string::npos) {
    text += fmt::format(" (reported by rank {})", peer);
  }
  return Status(known ? static_cast<Code>(code) : Code::kInternal, text);
}

bool Communicator::adopt_failure() {
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p == context_.rank) continue;
    std::vector<Rank> blamed;
    const Status failure = failure_of(p, &blamed);
    if (failure.ok()) continue;
    fail(failure, blamed);
    return true;
  }
  return false;
}

bool Communicator::is_gone(Rank peer) const {
  if (context_.mapped()) {
    return context_.control(peer).health.gone.load(std::memory_order_acquire) != 0;
  }
  return board_.is_open() && board_.peer(peer).known && board_.peer(peer).standing.gone;
}

bool Communicator::has_finished(Rank peer, uint64_t sequence) const {
  if (context_.mapped()) {
    return context_.control(peer).done.position.load(std::memory_order_acquire) >=
           context_.end_position[sequence % engine::kEndPositions];
  }
  return board_.is_open() && board_.peer(peer).standing.finished >= sequence;
}

bool Communicator::called_otherwise(Rank peer, uint64_t sequence, uint32_t fingerprint) const {
  if (context_.mapped()) {
    return engine::called_otherwise(context_.control(peer), sequence, fingerprint);
  }
  if (!board_.is_open() || !board_.peer(peer).known) return false;
  const Standing& standing = board_.peer(peer).standing;
  return standing.sequence == sequence && standing.fingerprint != fingerprint;
}

void Communicator::show_standing(bool waits) {
  if (!board_.is_open()) return;
  const uint8_t code = failed_code_.load();
  const bool failed = code != 0;
  // The first failure counts, also where an abort followed it.
  const bool aborted = aborted_.load() && code == static_cast<uint8_t>(Code::kAborted);
  const RankState state = !failed   ? RankState::kHealthy
                          : aborted ? RankState::kAborted
                                    : RankState::kFailed;
  const engine::LaneRun::Header& call = lane_run_.header();
  Standing& standing = board_.draft();
  standing.state = state;
  standing.sequence = context_.sequence;
  standing.fingerprint = static_cast<uint32_t>(call.flag);
  standing.what = call.what;
  standing.count = call.count;
  standing.finished = active_run_ != nullptr ? context_.sequence - 1 : context_.sequence;
  standing.waits = waits;
  standing.waited.clear();
  // A warm call must not allocate, however long it takes.
  if (waits) collect_awaited_by_all(&standing.waited);
  if (failed) {
    standing.code = code;
    standing.blamed = blamed_;
    standing.text = health().text();
  }
  board_.show(now_ns());
}

void Communicator::attend() {
  if (has_device_.load(std::memory_order_acquire)) watch_device();
  const uint64_t interval_ns = beat_interval_ns();
  if (interval_ns == 0 || failed_code_.load(std::memory_order_relaxed) != 0) return;
  if (!lock_.try_lock()) return;
  std::lock_guard lock(lock_, std::adopt_lock);
  const uint64_t now = now_ns();
  if (now - (context_.mapped() ? beat_ns_ : board_.shown_ns()) < interval_ns) return;
  if (first_ == nullptr && messages_.empty() && waiting_.empty() && !device_waits()) return;
  if (context_.mapped()) {
    beat(now);
  } else {
    show_standing(true);
  }
}

void Communicator::tell_failure() {
  if (told_ || !board_.is_open()) return;
  told_ = true;
  show_standing(false);
}

std::string Communicator::describe_lost(const std::vector<Rank>& lost) const {
  std::vector<Rank> dead;
  std::vector<Rank> gone;
  for (const Rank p : lost) (is_gone(p) ? gone : dead).push_back(p);
  std::string text = dead.empty() ? "" : describe_ranks(dead) + " died";
  if (!gone.empty()) {
    text += fmt::format("{}{} destroyed the communicator", text.empty() ? "" : " and ",
                        describe_ranks(gone));
  }
  return text;
}

Status Communicator::lost_report(const Request& request, const std::vector<Rank>& lost) const {
  const char* them = lost.size() == 1 ? "it" : "them";
  const std::vector<Rank> needed = awaited(request);
  const bool direct = needed.empty() || std::any_of(lost.begin(), lost.end(), [&](Rank rank) {
                        return contains(needed, rank);
                      });
  return Status(Code::kPeerLost,
                fmt::format("{} while rank {} waited for {} in {}; exclude {} with "
                            "weir_comm_shrink to go on",
                            describe_lost(lost), context_.rank,
                            direct ? them : describe_ranks(needed), describe(request), them));
}

// Whoever needs it tells so, unless there are no words. Those who have not called yet will, and without
// them there is no going on either.
uint64_t Communicator::chain_patience_ns() const {
  if (!board_.is_open() && !context_.mapped()) return 0;
  return static_cast<uint64_t>(timeout_ms_.load()) * 500'000u;
}

Status Communicator::why_failed(Status status, const Request& request, std::vector<Rank>* blamed) {
  const bool loss = status.code() == Code::kPeerLost;
  if (!loss && status.code() != Code::kMismatch) return status;
  if (!board_.is_open() && !context_.mapped()) {
    // Without words of the others, what the transport sees is all that there is.
    look_at_peers(now_ns());
    if (!loss || ended_.empty()) return status;
    *blamed = ended_;
    return lost_report(request, ended_);
  }
  // So that a peer with another call sees ours while we look for its.
  if (!loss) show_standing(true);
  const uint64_t begin = now_ns();
  const uint64_t patience =
      loss ? std::min(kWordPatienceNs, static_cast<uint64_t>(timeout_ms_.load()) * 500'000u)
           : uint64_t{20'000'000};
  do {
    look_at_peers(now_ns());
    for (Rank p = 0; p < context_.rank_count; ++p) {
      if (p == context_.rank) continue;
      blamed->clear();
      Status told = failure_of(p, blamed);
      if (!told.ok()) return told;
      if (!loss && first_ == &request &&
          called_otherwise(p, request.sequence, engine::fingerprint(request.call))) {
        return mismatch_report(request);
      }
    }
    // Others may have gone, too, which is nothing to a message between two.
    const bool collective = request.kind == RequestKind::kCollective;
    const std::vector<Rank> needed = awaited(request);
    std::vector<Rank> dead;
    std::vector<Rank> gone;
    for (Rank p = 0; p < context_.rank_count && loss; ++p) {
      if (p == context_.rank || (!collective && !contains(needed, p))) continue;
      if (contains(ended_, p)) dead.push_back(p);
      const bool done = collective && request.started && has_finished(p, request.sequence);
      if (is_gone(p) && !done) gone.push_back(p);
    }
    if (!dead.empty()) {
      *blamed = dead;
      return lost_report(request, dead);
    }
    if (!gone.empty()) {
      *blamed = gone;
      return lost_report(request, gone);
    }
    nanosleep(&kBetweenLooks, nullptr);
  } while (now_ns() - begin < patience && !aborted_.load(std::memory_order_relaxed));
  blamed->clear();
  return status;
}

bool Communicator::find_culprits(const Request& request, uint64_t now,
                                 std::vector<Rank>* culprits) const {
  *culprits = awaited(request);
  const uint64_t beat_ns = beat_interval_ns();
  if (beat_ns == 0) return true;
  const uint64_t timeout_ns = static_cast<uint64_t>(timeout_ms_of(request)) * 1'000'000u;

  // Those whom we wait for, those whom they wait for, and so on.
  std::set<Rank> chain(culprits->begin(), culprits->end());
  std::vector<Rank> theirs;
  for (std::vector<Rank> left = *culprits; !left.empty();) {
    const Rank p = left.back();
    left.pop_back();
    // Somebody in the chain may wait for another of this rank's operations.
    if (p == context_.rank) {
      collect_awaited_by_all(&theirs);
    } else {
      collect_awaited_by(p, &theirs);
    }
    for (const Rank next : theirs) {
      if (chain.insert(next).second) left.push_back(next);
    }
  }
  chain.erase(context_.rank);
  if (context_.mapped()) {
    // There every look of a rank that waits is seen: who is the only one without any is it.
    std::vector<Rank> unheard;
    for (const Rank p : chain) {
      if (beats_[p].heard_ns < wait_began_ns_) unheard.push_back(p);
    }
    if (unheard.size() == 1) {
      *culprits = unheard;
      return true;
    }
  }
  const uint64_t while_ns = std::max(timeout_ns / 4, 5 * beat_ns / 2);
  std::set<Rank> quiet;     // not heard of for a while: a stalled machine may be why
  uint32_t long_quiet = 0;  // for nearly all the time
  bool all_unreached = true;
  for (const Rank p : chain) {
    if (silent_ns(p, now) < while_ns) continue;
    quiet.insert(p);
    if (silent_ns(p, now) >= std::max(timeout_ns / 4 * 3, 3 * beat_ns)) ++long_quiet;
    all_unreached = all_unreached && is_unreached(p, now, while_ns);
  }
  // One that has been silent all the time is it, and so are those behind a cut link. Otherwise more
  // is known a little later.
  const bool clear =
      !quiet.empty() && long_quiet == quiet.size() && (quiet.size() == 1 || all_unreached);
  if (!clear && now < request.deadline_ns + timeout_ns / 2 + stalled_ns_) return false;
  if (quiet.empty()) {
    // All of them live. Who waits for nobody else is what holds up the others.
    std::vector<Rank> slow;
    for (const Rank p : chain) {
      collect_awaited_by(p, &theirs);
      if (std::all_of(theirs.begin(), theirs.end(), [p](Rank next) { return next == p; })) {
        slow.push_back(p);
      }
    }
    if (!slow.empty()) *culprits = slow;
    return true;
  }
  // Who cannot be reached is lost to this operation, too, whoever waits for it.
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p != context_.rank && is_unreached(p, now, while_ns)) quiet.insert(p);
  }
  culprits->assign(quiet.begin(), quiet.end());
  return true;
}

bool Communicator::is_unreached(Rank peer, uint64_t now, uint64_t while_ns) const {
  if (!board_.is_open()) return false;
  const uint64_t since_ns = board_.peer(peer).unreached_ns;
  return since_ns != 0 && now >= since_ns + stalled_ns_ + while_ns;
}

int64_t Communicator::timeout_ms_of(const Request& request) const {
  return request.timeout_ms > 0 ? request.timeout_ms : timeout_ms_.load();
}

void Communicator::note_time(uint64_t began_ns, uint64_t now, uint64_t timeout_ns) {
  if (wait_began_ns_ != began_ns) {
    wait_began_ns_ = began_ns;
    stalled_ns_ = 0;
    checked_ns_ = now;
  }
  const uint64_t gap_ns = now - checked_ns_;
  const uint64_t usual_ns = timeout_ns / 4;
  if (gap_ns > usual_ns) stalled_ns_ += gap_ns - usual_ns;
  checked_ns_ = now;
}

uint64_t Communicator::silent_ns(Rank peer, uint64_t now) const {
  const uint64_t heard_ns = context_.mapped() ? beats_[peer].heard_ns : board_.peer(peer).heard_ns;
  const uint64_t since_ns = std::max(heard_ns, wait_began_ns_) + stalled_ns_;
  return now > since_ns ? now - since_ns : 0;
}

std::string Communicator::silence_of(const std::vector<Rank>& ranks) const {
  const Board::Peer& peer = board_.peer(ranks[0]);
  const uint64_t silent = silent_ns(ranks[0], now_ns());
  std::string text;
  if (silent > 3 * board_.beat_interval_ns()) {
    text = fmt::format(", silent for {} ms", silent / 1'000'000);
  }
  if (!peer.known) return text;
  const Standing& standing = peer.standing;
  if (standing.sequence == 0) return text;
  return text + fmt::format(" (the latest call that rank {} told of is operation {}, {})", ranks[0],
                            standing.sequence, engine::describe(standing.what, standing.count));
}

}  // namespace weir::comm
