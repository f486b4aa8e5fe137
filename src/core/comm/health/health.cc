// SPDX-License-Identifier: Apache-2.0
#include "core/comm/health/health.h"

#include <fmt/format.h>
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/comm/requests/request_text.h"

namespace weir::comm {

namespace {

constexpr uint64_t kLookNs = 10'000'000;
// A look costs time for each rank. Of more ranks than these the looks are rarer in proportion, so
// that looking takes the same share of the time; and a rank that passes on another's failure does
// not show it, since every rank reads the first one's.
constexpr Rank kManyRanks = 64;
// A process that ends may have done its part on the device.
constexpr uint64_t kDevicePatienceNs = 200'000'000;
// How long the end of a connection may precede the report of its reason. The connections of a
// process that dies are closed one after the other, and where others take the processor it pauses
// between two.
constexpr uint64_t kWordPatienceNs = 5'000'000'000;
constexpr uint64_t kCallPatienceNs = 20'000'000;
// For a thread that holds the lock and does not poll.
constexpr uint64_t kTellPatienceNs = 20'000'000;
constexpr timespec kBetweenLooks{0, 500'000};

bool contains(const std::vector<Rank>& ranks, Rank rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

}  // namespace

Health::Health(CommState& state, PeerReports& reports, OperationStatus& operations,
               Records& records,
               std::function<void(const Status&, const std::vector<Rank>&)> failed)
    : state_(state),
      reports_(reports),
      operations_(operations),
      records_(records),
      failed_(std::move(failed)),
      texts_(state, reports, operations, wait_time_),
      culprits_(state, reports) {}

// ---- Looking after a request --------------------------------------------------------------------

void Health::check(Request& request) {
  if (state_.failure.is_set()) {
    tell_failure();
    operations_.fail_all(state_.failure.status());
    return;
  }
  if (state_.failure.abort_asked()) {
    fail(aborted());
    return;
  }
  const uint64_t now = now_ns();
  const uint64_t timeout_ns = static_cast<uint64_t>(timeout_ms_of(request)) * 1'000'000u;
  if (request.deadline_ns == 0 || operations_.is_watched(request)) {
    request.deadline_ns = now + timeout_ns;
  }
  if (state_.recorder.on()) {
    if (!request.is_of_device_side()) record_wait(request, now);
    records_.look_at_ways(now);
  }
  if (request.kind == RequestKind::kOneSided) record_one_sided_wait(request, now);
  // However long this thread did not run.
  waited_ns_ += std::min(now - wait_time_.looked_ns(), kLookNs);
  const uint64_t began_ns = request.deadline_ns - timeout_ns;
  wait_time_.note(began_ns, now, timeout_ns);
  const bool late = now >= request.deadline_ns;
  const bool looks = late || now - reports_.looked_ns() > look_interval_ns();
  if (looks) {
    reports_.look(now);
    if (reports_.are_mapped()) beat(now);
  }
  if (reports_.on_board()) {
    const bool fresh = reports_.shown_ns() < began_ns;  // it has not told of this operation yet
    const uint64_t interval_ns = reports_.show_interval_ns();
    const uint64_t first_ns = is_many() ? interval_ns / 4 : kLookNs;
    if (now >= (fresh ? began_ns + first_ns : reports_.shown_ns() + interval_ns)) {
      show_on_board(true);
    }
  }
  if (!looks && is_many()) return;
  const uint64_t waited_ns = std::exchange(waited_ns_, 0);

  if (const Request* first = operations_.first_collective()) {
    const uint64_t sequence = first->started ? first->sequence : state_.context.sequence + 1;
    const uint32_t mark = mark_of(*first, sequence);
    for (Rank p = 0; p < state_.rank_count(); ++p) {
      if (p == state_.rank() || !reports_.called_otherwise(p, sequence, mark)) continue;
      fail(mismatch(*first));
      return;
    }
  }
  if (adopt_reported()) return;
  if (look_for_lost(request, waited_ns, late)) return;
  if (!late) return;
  Culprits::Late wait{{}, {}, wait_time_, timeout_ns};
  operations_.collect_awaited(request, &wait.awaited);
  collect_awaited(&wait.awaited_by_all);
  std::vector<Rank> culprits;
  if (!culprits_.find(wait, now, &culprits)) return;
  if (culprits.empty()) culprits = wait.awaited;
  fail(texts_.timeout(request, timeout_ms_of(request), culprits), culprits);
}

bool Health::is_many() const { return state_.rank_count() > kManyRanks; }

uint64_t Health::look_interval_ns() const {
  return is_many() ? kLookNs * state_.rank_count() / (kManyRanks / 2) : kLookNs;
}

int64_t Health::timeout_ms_of(const Request& request) const {
  return request.timeout_ms > 0 ? request.timeout_ms : state_.timeout_ms.load();
}

void Health::record_wait(Request& request, uint64_t now_ns) {
  if (request.waited_ns == 0) request.waited_ns = now_ns;
  if (!state_.recorder.looked(request.waited_ns, now_ns)) return;
  Wait wait = operations_.describe_wait(request);
  wait.since_ns = request.waited_ns;
  operations_.collect_awaited(request, &awaited_);
  wait.awaited = awaited_;
  state_.recorder.waits(wait, now_ns);
}

// Recorded by the communicator that owns the operation.
void Health::record_one_sided_wait(Request& request, uint64_t now_ns) {
  if (request.waited_ns == 0) request.waited_ns = now_ns;
  if (request.record == 0 || now_ns - request.waited_ns < Recorder::kLongWaitNs) return;
  const Wait wait = operations_.describe_wait(request);
  operations_.collect_awaited(request, &awaited_);
  records_.one_sided_waits(request.record, wait.kind, wait.count, request.waited_ns, awaited_);
}

// ---- Lost peers ---------------------------------------------------------------------------------

Health::Lost Health::find_lost(const Request& request, bool failed, bool late) const {
  const bool with_device = operations_.is_with_device(request);
  const bool collective = request.kind == RequestKind::kCollective ||
                          (request.kind == RequestKind::kDevice && !with_device);
  const Request* first = operations_.first_collective();
  Lost lost;
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p == state_.rank()) continue;
    const bool ended = reports_.has_ended(p);
    if (!reports_.is_gone(p)) {
      if (ended) lost.died.push_back(p);
      continue;
    }
    const bool done = collective && first != nullptr && first->started &&
                      reports_.has_finished(p, first->sequence);
    // Over connections the goodbye may overtake what was sent before it. Most transports then tell
    // the end of what comes from the rank; behind a hook, shared memory does not.
    const bool may_arrive = !failed && !late && !collective && reports_.on_board() && !ended &&
                            gone_wait_ns_ < word_patience_ns();
    // NCCL's communicator may have done its part for a rank that has gone since.
    const bool may_end = !failed && with_device && !late;
    if (!done && !may_arrive && !may_end) {
      lost.left.push_back(p);
    } else if (failed && ended) {
      lost.died.push_back(p);
    }
  }
  return lost;
}

bool Health::look_for_lost(const Request& request, uint64_t waited_ns, bool late) {
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p != state_.rank() && (reports_.has_ended(p) || reports_.is_gone(p))) operations_.excuse(p);
  }
  operations_.collect_awaited(request, &awaited_);
  const bool gone =
      std::any_of(awaited_.begin(), awaited_.end(), [&](Rank p) { return reports_.is_gone(p); });
  gone_wait_ns_ = gone ? gone_wait_ns_ + waited_ns : 0;
  const Lost lost = find_lost(request, false, late);
  if (lost.died.empty() && lost.left.empty()) return false;
  // Only a rank that this request still needs is a loss; data that it sent before still counts, so
  // poll once more. The ranks that a collective waits for may need a dead rank in their turn: they
  // report that at once, except one that has not called yet; and they may already have all that
  // they need of it.
  const bool with_device = operations_.is_with_device(request);
  const bool collective =
      request.kind == RequestKind::kCollective || request.kind == RequestKind::kDevice;
  const bool chained = collective && !lost.died.empty();
  bool direct = false;
  std::vector<Rank> missing;
  for (const std::vector<Rank>* ranks : {&lost.left, &lost.died}) {
    for (const Rank p : *ranks) {
      const bool is_needed = contains(awaited_, p);
      direct = direct || (is_needed && !with_device);
      if (chained || is_needed) missing.push_back(p);
    }
  }
  if (missing.empty()) return false;
  if (++lost_looks_ < 2) {
    lost_wait_ns_ = 0;
    return true;
  }
  lost_wait_ns_ += waited_ns;
  const uint64_t patience_ns =
      with_device ? std::min(kDevicePatienceNs, chain_patience_ns()) : chain_patience_ns();
  if (!direct && !late && lost_wait_ns_ < patience_ns) return true;
  std::sort(missing.begin(), missing.end());
  fail(texts_.lost(request, missing), missing);
  return true;
}

// A rank that needs it reports so, where ranks have reports. Those that have not called yet will do
// so, and this rank cannot go on without them either.
uint64_t Health::chain_patience_ns() const {
  if (!reports_.are_told()) return 0;
  return static_cast<uint64_t>(state_.timeout_ms.load()) * 500'000u;
}

uint32_t Health::mark_of(const Request& request, uint64_t sequence) const {
  return state_.context.call_mark(engine::fingerprint(request.call, state_.rank_count()), sequence);
}

// The peers need this rank's call for their texts, and an operation that fails does not publish it.
Status Health::mismatch(const Request& request) {
  engine::Context& context = state_.context;
  if (context.mapped() && request.started) {
    context.describe_call(engine::pack_what(request.call), request.call.count);
  }
  return texts_.mismatch(request);
}

uint64_t Health::word_patience_ns() const {
  return std::min(kWordPatienceNs, static_cast<uint64_t>(state_.timeout_ms.load()) * 500'000u);
}

bool Health::adopt_reported() {
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p == state_.rank()) continue;
    std::vector<Rank> blamed;
    const Status failure = reports_.failure_of(p, &blamed);
    if (failure.ok()) continue;
    // What the rank sent before still counts, so poll once more.
    if (++report_looks_ < 2) return true;
    told_ = told_ || is_many();
    fail(failure, blamed);
    return true;
  }
  return false;
}

Status Health::why_failed(const Status& status, const Request& request, std::vector<Rank>* blamed) {
  const bool loss = status.code() == Code::kPeerLost;
  if (!loss && status.code() != Code::kMismatch) return status;
  if (!reports_.are_told()) {
    // Without reports of the others, the transport is the only source.
    reports_.look(now_ns());
    if (!loss || reports_.ended().empty()) return status;
    *blamed = reports_.ended();
    return texts_.lost(request, *blamed);
  }
  // So that a peer with another call sees this rank's call while this rank looks for the peer's.
  if (!loss) show_on_board(true);
  const uint64_t begin = now_ns();
  const uint64_t patience = loss ? word_patience_ns() : kCallPatienceNs;
  do {
    reports_.look(now_ns());
    for (Rank p = 0; p < state_.rank_count(); ++p) {
      if (p == state_.rank()) continue;
      blamed->clear();
      Status told = reports_.failure_of(p, blamed);
      if (!told.ok()) return told;
      if (!loss && operations_.first_collective() == &request &&
          reports_.called_otherwise(p, request.sequence, mark_of(request, request.sequence))) {
        return mismatch(request);
      }
    }
    if (loss) {
      // Other ranks may have left, too, which does not matter to a message between two.
      Lost lost = find_lost(request, true, true);
      if (request.kind != RequestKind::kCollective) {
        std::vector<Rank> needed;
        operations_.collect_awaited(request, &needed);
        for (std::vector<Rank>* ranks : {&lost.died, &lost.left}) {
          std::erase_if(*ranks, [&](Rank p) { return !contains(needed, p); });
        }
      }
      *blamed = lost.died.empty() ? lost.left : lost.died;
      if (!blamed->empty()) return texts_.lost(request, *blamed);
    }
    nanosleep(&kBetweenLooks, nullptr);
  } while (now_ns() - begin < patience && !state_.failure.abort_asked());
  blamed->clear();
  return status;
}

// ---- The end of the communicator ----------------------------------------------------------------

void Health::fail(const OperationFailure& failure) {
  Request of_peer;  // used if no operation of this rank is concerned
  of_peer.kind = RequestKind::kOneSided;
  of_peer.peer = failure.peer;
  const Request& request = failure.request != nullptr ? *failure.request : of_peer;
  if (failure.status.code() == Code::kMismatch && failure.status.text().empty()) {
    return fail(mismatch(request));
  }
  std::vector<Rank> blamed;
  const Status reason = why_failed(failure.status, request, &blamed);
  fail(reason, blamed);
}

void Health::fail(Status status, const std::vector<Rank>& blamed) {
  const bool first = state_.failure.set(status, blamed);
  if (!first) status = state_.failure.status();
  // First, since what is written to a file or a terminal may wait for it.
  reports_.show_failure(status, blamed);
  tell_failure();
  state_.recorder.failed(status);
  if (first && status.code() != Code::kAborted) {
    log_error(fmt::format("rank {}: {}", state_.rank(), status.text()));
  }
  operations_.fail_all(status);
  if (first) failed_(status, blamed);
}

void Health::adopt(const Status& status, const std::vector<Rank>& blamed) {
  if (!state_.failure.set(status, blamed)) return;
  reports_.show_failure(status, blamed);
  if (reports_.on_board()) tell_adopted();
  state_.recorder.failed(status);
}

// A thread that waits holds the lock for the time of a poll, and tells the peers itself when it has
// seen the failure; so nothing is missed when there is no time to wait for it.
void Health::tell_adopted() {
  for (const uint64_t until = now_ns() + kTellPatienceNs; now_ns() < until; sched_yield()) {
    const std::unique_lock lock(state_.lock, std::try_to_lock);
    if (lock.owns_lock()) return tell_failure();
  }
}

Status Health::aborted() const {
  return Status(Code::kAborted,
                fmt::format("communicator '{}' was {} on this rank ({})", state_.name,
                            state_.failure.revokes() ? "revoked" : "aborted", state_.rank()));
}

void Health::abort(bool revokes) {
  if (revokes) {
    state_.failure.ask_revoke();
  } else {
    state_.failure.ask_abort();
  }
  state_.failure.set(aborted());
  state_.recorder.aborted();
  reports_.show_abort();
}

// ---- What the peers are told --------------------------------------------------------------------

void Health::tell_failure() {
  if (told_ || !reports_.on_board()) return;
  told_ = true;
  show_on_board(false);
}

void Health::show_on_board(bool waits) {
  if (!reports_.on_board()) return;
  const engine::LaneRun::Header& call = operations_.own_header();
  HealthReport& report = reports_.draft();
  report.sequence = state_.context.sequence;
  report.mark = static_cast<uint32_t>(call.flag);
  report.what = call.what;
  report.count = call.count;
  report.finished = operations_.finished_sequence();
  report.waits = waits;
  report.waited.clear();
  if (waits) collect_awaited(&report.waited);
  reports_.show(now_ns());
}

void Health::beat(uint64_t now_ns) {
  collect_awaited(&awaited_);
  reports_.beat(now_ns, awaited_);
}

void Health::collect_awaited(std::vector<Rank>* ranks) const {
  // A warm call must not allocate, however long it takes.
  operations_.collect_awaited_by_all(ranks);
  if (elsewhere_.empty()) return;
  for (const Elsewhere& it : elsewhere_) {
    ranks->insert(ranks->end(), it.awaited.begin(), it.awaited.end());
  }
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

bool Health::has_waited_long(const Request& request) const {
  const uint64_t timeout_ns = static_cast<uint64_t>(timeout_ms_of(request)) * 1'000'000u;
  return request.deadline_ns != 0 && now_ns() > request.deadline_ns - timeout_ns + kLookNs;
}

void Health::note_elsewhere(const void* where, const std::vector<Rank>& awaited) {
  const auto known = std::find_if(elsewhere_.begin(), elsewhere_.end(),
                                  [&](const Elsewhere& it) { return it.where == where; });
  const bool is_known = known != elsewhere_.end();
  const bool is_new = is_known ? awaited != known->awaited : !awaited.empty();
  if (is_new && !is_known) {
    elsewhere_.push_back({where, awaited});
  } else if (is_new && awaited.empty()) {
    elsewhere_.erase(known);
  } else if (is_new) {
    known->awaited = awaited;
  }
  if (state_.failure.is_set()) return;
  if (elsewhere_.empty()) {
    if (!is_new || operations_.any()) return;
    reports_.end_wait();
    show_on_board(false);
    return;
  }
  const uint64_t now = now_ns();
  if (is_new || now - reports_.shown_ns() >= reports_.show_interval_ns()) show_wait(now);
}

void Health::show_wait(uint64_t now_ns) {
  if (reports_.are_mapped()) {
    beat(now_ns);
  } else {
    show_on_board(true);
  }
}

void Health::show_life() {
  const uint64_t interval_ns = reports_.show_interval_ns();
  if (interval_ns == 0 || state_.failure.is_set()) return;
  const uint64_t now = now_ns();
  if (now - reports_.shown_ns() >= interval_ns && operations_.any()) show_wait(now);
}

void Health::say_goodbye() {
  reports_.show_gone();
  show_on_board(false);
}

// ---- What the peers tell ------------------------------------------------------------------------

Status Health::reported_failure() {
  std::unique_lock lock(state_.lock, std::defer_lock);
  if (reports_.on_board()) {
    if (!lock.try_lock()) return Status();
    reports_.look_at_board(now_ns(), kLookNs);
  } else if (!reports_.are_mapped()) {
    return Status();
  }
  std::vector<Rank> blamed;
  return failure_of_peers(&blamed);
}

Status Health::failure_of_peers(std::vector<Rank>* blamed) const {
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p == state_.rank()) continue;
    Status reported = reports_.failure_of(p, blamed);
    if (!reported.ok()) return reported;
  }
  return Status();
}

void Health::fail_as_reported() {
  if (reports_.on_board()) reports_.look_at_board(now_ns(), kLookNs);
  if (!reports_.are_told()) return;
  std::vector<Rank> blamed;
  if (const Status reported = failure_of_peers(&blamed); !reported.ok()) fail(reported, blamed);
}

void Health::collect_lost(std::set<Rank>* lost) {
  const std::lock_guard lock(state_.lock);
  reports_.look(now_ns());
  const std::vector<Rank> own = state_.failure.blamed();
  lost->insert(reports_.ended().begin(), reports_.ended().end());
  lost->insert(own.begin(), own.end());
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p == state_.rank()) continue;
    if (reports_.is_gone(p)) lost->insert(p);
    std::vector<Rank> blamed;
    if (!reports_.failure_of(p, &blamed).ok()) lost->insert(blamed.begin(), blamed.end());
  }
}

std::vector<Rank> Health::gone_ranks() {
  const std::lock_guard lock(state_.lock);
  reports_.look(now_ns());
  std::vector<Rank> blamed;
  if (!failure_of_peers(&blamed).ok()) return {};
  std::vector<Rank> gone;
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p != state_.rank() && (reports_.has_ended(p) || reports_.is_gone(p))) gone.push_back(p);
  }
  return gone;
}

void Health::note_stuck(const void* call, const std::vector<Rank>& awaited) {
  const std::lock_guard lock(state_.lock);
  const uint64_t now = now_ns();
  if (!awaited.empty() && now - reports_.looked_ns() > look_interval_ns()) reports_.look(now);
  note_elsewhere(call, awaited);
}

bool Health::find_culprits(const std::vector<Rank>& awaited, const WaitTime& time,
                           uint64_t timeout_ns, std::vector<Rank>* culprits) {
  const std::lock_guard lock(state_.lock);
  const uint64_t now = now_ns();
  reports_.look(now);
  Culprits::Late late{awaited, {}, time, timeout_ns, true};
  collect_awaited(&late.awaited_by_all);
  if (!culprits_.find(late, now, culprits)) return false;
  // A peer that has failed meanwhile waits for none, and tells why.
  std::vector<Rank> blamed;
  return failure_of_peers(&blamed).ok();
}

Status Health::check_survivors(const std::set<Rank>& out, const char* call, const char* remedy) {
  const std::lock_guard lock(state_.lock);
  reports_.look(now_ns());
  std::vector<Rank> lost;
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p == state_.rank() || out.count(p) != 0) continue;
    if (reports_.has_ended(p) || reports_.is_gone(p)) lost.push_back(p);
  }
  if (lost.empty()) return Status();
  return Status(Code::kPeerLost, fmt::format("{} before all ranks had called {}; {}",
                                             texts_.describe_lost(lost), call, remedy));
}

}  // namespace weir::comm
