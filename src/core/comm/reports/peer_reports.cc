// SPDX-License-Identifier: Apache-2.0
#include "core/comm/reports/peer_reports.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>

#include "core/base/clock.h"
#include "core/base/rank_list.h"

namespace weir::comm {

using engine::Control;
using engine::RankState;

namespace {

// In shared memory a rank that waits shows it at every look, some of which a busy machine delays.
constexpr uint64_t kMappedBeatNs = 50'000'000;

std::string read_text(const char* shared, size_t bytes) {
  std::string text(shared, strnlen(shared, bytes));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
}

// Of a rank that has been asked to abort.
RankState stopped_state(const Failure& failure) {
  return failure.revokes() ? RankState::kRevoked : RankState::kAborted;
}

}  // namespace

void PeerReports::open(control::Network* network) {
  network_ = network;
  if (are_mapped()) {
    beats_.resize(state_.rank_count());
    state_.context.control(state_.rank())
        .health.state.store(static_cast<uint32_t>(RankState::kHealthy), std::memory_order_release);
  } else if (network_ != nullptr) {
    board_.open(network_, state_.rank(), state_.rank_count());
  }
}

// ---- What peers tell ----------------------------------------------------------------------------

void PeerReports::look(uint64_t now_ns) {
  looked_ns_ = now_ns;
  const engine::Context& context = state_.context;
  // Before the ranks' own reports are read: a process that ends in order has left its report by
  // then.
  ended_.clear();
  const bool reports_death = (context.transport->caps.bits & WEIR_CAP_PEER_FAILURE) != 0;
  for (Rank p = 0; p < context.rank_count; ++p) {
    if (p == context.rank) continue;
    const bool lost = network_ != nullptr && network_->life(p) == control::Life::kLost;
    if (lost || (reports_death &&
                 context.transport->peer_alive(context.instance, p) == WEIR_ERROR_PEER_LOST)) {
      ended_.push_back(p);
    }
  }
  if (on_board()) board_.look(now_ns);
  if (!are_mapped()) return;
  for (Rank p = 0; p < context.rank_count; ++p) {
    const uint32_t count = context.control(p).health.beat.load(std::memory_order_acquire);
    if (count == beats_[p].count) continue;
    beats_[p] = {count, now_ns};
  }
}

void PeerReports::look_at_board(uint64_t now_ns, uint64_t age_ns) {
  if (on_board() && now_ns - board_.looked_ns() > age_ns) board_.look(now_ns);
}

bool PeerReports::has_ended(Rank peer) const {
  return std::find(ended_.begin(), ended_.end(), peer) != ended_.end();
}

bool PeerReports::has_died(Rank peer) const {
  if (network_ == nullptr) return has_ended(peer);
  return network_->life(peer) == control::Life::kLost && !network_->is_cut_off(peer);
}

bool PeerReports::is_gone(Rank peer) const {
  if (are_mapped()) {
    return state_.context.control(peer).health.gone.load(std::memory_order_acquire) != 0;
  }
  const HealthReport* report = report_of(peer);
  return report != nullptr && report->gone;
}

std::vector<Rank> PeerReports::died_besides(Rank peer) const {
  std::vector<Rank> died;
  for (Rank p = 0; network_ != nullptr && p < state_.rank_count(); ++p) {
    if (p == peer || p == state_.rank() || is_gone(p)) continue;
    if (network_->life(p) == control::Life::kLost) died.push_back(p);
  }
  return died;
}

Status PeerReports::failure_of(Rank peer, std::vector<Rank>* blamed) const {
  RankState state = RankState::kHealthy;
  uint32_t code = 0;
  std::string text;
  if (are_mapped()) {
    const Control& control = state_.context.control(peer);
    state = static_cast<RankState>(control.health.state.load(std::memory_order_acquire));
    if (state == RankState::kFailed) {
      code = control.health.code.load(std::memory_order_relaxed);
      text = read_text(control.error_text, engine::kErrorTextBytes);
      for (uint32_t k = 0; k < std::min(control.blamed_count, engine::kBlamedRanksMax); ++k) {
        const Rank rank = control.blamed_ranks[k];
        if (rank < state_.rank_count()) blamed->push_back(rank);
      }
    }
  } else if (const HealthReport* report = report_of(peer)) {
    state = report->state;
    code = report->code;
    text = report->text;
    *blamed = report->blamed;
  }
  if (state == RankState::kAborted || state == RankState::kRevoked) {
    std::string aborted =
        fmt::format("rank {} {} communicator '{}'", peer,
                    state == RankState::kRevoked ? "revoked" : "aborted", state_.name);
    // The peer may have done so because a third rank died, without a failure of this communicator.
    const std::vector<Rank> died = died_besides(peer);
    if (!died.empty()) {
      aborted += "; " + describe_ranks(died) + " died";
      *blamed = died;
    }
    return Status(Code::kAborted, aborted);
  }
  if (state != RankState::kFailed) return Status();
  const bool known = code > 1 && code <= static_cast<uint32_t>(Code::kInternal);
  // A rank that passes on another's failure says so already.
  if (code != static_cast<uint32_t>(Code::kAborted) &&
      text.find("(reported by rank") == std::string::npos) {
    text += fmt::format(" (reported by rank {})", peer);
  }
  return Status(known ? static_cast<Code>(code) : Code::kInternal, text);
}

bool PeerReports::has_finished(Rank peer, uint64_t sequence) const {
  if (are_mapped()) {
    return state_.context.control(peer).done.position.load(std::memory_order_acquire) >=
           state_.context.end_position[sequence % engine::kEndPositions];
  }
  return on_board() && board_.peer(peer).report.finished >= sequence;
}

uint64_t PeerReports::latest_call_of(Rank peer) const {
  if (!are_mapped()) {
    const HealthReport* report = report_of(peer);
    return report == nullptr ? 0 : report->sequence;
  }
  uint64_t latest = 0;
  for (const engine::DescriptorLine& line : state_.context.control(peer).descriptor) {
    latest = std::max(latest, line.sequence.load(std::memory_order_acquire));
  }
  return latest;
}

bool PeerReports::called_otherwise(Rank peer, uint64_t sequence, uint32_t mark) const {
  if (are_mapped()) {
    return engine::called_otherwise(state_.context.control(peer), sequence, mark);
  }
  const HealthReport* report = report_of(peer);
  return report != nullptr && report->sequence == sequence && report->mark != mark;
}

void PeerReports::collect_awaited_by(Rank peer, std::vector<Rank>* ranks) const {
  ranks->clear();
  if (!are_mapped()) {
    if (const HealthReport* report = report_of(peer)) *ranks = report->waited;
    return;
  }
  const auto& awaited = state_.context.control(peer).health.awaited;
  for (Rank p = 0; p < std::min(state_.rank_count(), engine::kAwaitedRanksMax); ++p) {
    const uint64_t bits = awaited[p / 64].load(std::memory_order_relaxed);
    if ((bits >> p % 64 & 1) != 0) ranks->push_back(p);
  }
}

uint64_t PeerReports::heard_ns(Rank peer) const {
  if (are_mapped()) return beats_[peer].heard_ns;
  return on_board() ? board_.peer(peer).heard_ns : 0;
}

uint64_t PeerReports::unreached_ns(Rank peer) const {
  return on_board() ? board_.peer(peer).unreached_ns : 0;
}

const HealthReport* PeerReports::report_of(Rank peer) const {
  return on_board() && board_.peer(peer).known ? &board_.peer(peer).report : nullptr;
}

// ---- What this rank tells -----------------------------------------------------------------------

uint64_t PeerReports::show_interval_ns() const {
  return are_mapped() ? kMappedBeatNs : on_board() ? board_.beat_interval_ns() : 0;
}

void PeerReports::beat(uint64_t now_ns, const std::vector<Rank>& awaited) {
  beat_ns_ = now_ns;
  auto& health = state_.context.control(state_.rank()).health;
  std::array<uint64_t, engine::kAwaitedRanksMax / 64> bits{};
  for (const Rank p : awaited) {
    if (p < engine::kAwaitedRanksMax) bits[p / 64] |= uint64_t{1} << p % 64;
  }
  for (size_t i = 0; i < bits.size(); ++i) {
    health.awaited[i].store(bits[i], std::memory_order_relaxed);
  }
  health.beat.fetch_add(1, std::memory_order_release);
}

void PeerReports::end_beats() {
  beat_ns_ = 0;
  for (auto& bits : state_.context.control(state_.rank()).health.awaited) {
    bits.store(0, std::memory_order_relaxed);
  }
}

void PeerReports::show(uint64_t now_ns) {
  const Code code = state_.failure.code();
  HealthReport& report = board_.draft();
  report.state = RankState::kHealthy;
  if (code != Code::kOk) {
    // The first failure counts, also where an abort followed it.
    report.state = state_.failure.abort_asked() && code == Code::kAborted
                       ? stopped_state(state_.failure)
                       : RankState::kFailed;
    report.code = static_cast<uint8_t>(code);
    report.blamed = state_.failure.blamed();
    report.text = state_.failure.status().text();
  }
  board_.show(now_ns);
}

void PeerReports::show_failure(const Status& status, const std::vector<Rank>& blamed) {
  if (!are_mapped()) return;
  const std::lock_guard lock(show_lock_);
  Control& control = state_.context.control(state_.rank());
  if (control.health.state.load(std::memory_order_relaxed) !=
      static_cast<uint32_t>(RankState::kHealthy)) {
    return;
  }
  const size_t bytes = std::min<size_t>(status.text().size(), engine::kErrorTextBytes - 1);
  std::memcpy(control.error_text, status.text().data(), bytes);
  control.error_text[bytes] = '\0';
  control.blamed_count =
      static_cast<uint32_t>(std::min<size_t>(blamed.size(), engine::kBlamedRanksMax));
  std::copy_n(blamed.begin(), control.blamed_count, control.blamed_ranks);
  control.health.code.store(static_cast<uint32_t>(status.code()), std::memory_order_relaxed);
  const RankState state =
      state_.failure.abort_asked() ? stopped_state(state_.failure) : RankState::kFailed;
  control.health.state.store(static_cast<uint32_t>(state), std::memory_order_release);
  state_.context.wake_all();
}

void PeerReports::show_abort() {
  if (!are_mapped()) return;
  auto expected = static_cast<uint32_t>(RankState::kHealthy);
  state_.context.control(state_.rank())
      .health.state.compare_exchange_strong(expected,
                                            static_cast<uint32_t>(stopped_state(state_.failure)));
  state_.context.wake_all();
}

void PeerReports::show_gone() {
  if (are_mapped()) {
    state_.context.control(state_.rank()).health.gone.store(1, std::memory_order_release);
    state_.context.wake_all();
  }
  if (on_board()) board_.draft().gone = true;
}

}  // namespace weir::comm
