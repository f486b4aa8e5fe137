// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/clock.h"
#include "core/comm/state/failure.h"

namespace weir::comm {

namespace {

using std::chrono::milliseconds;

// A call in which nothing moves for so long is looked into.
constexpr milliseconds kStuck{20};
constexpr milliseconds kCheckAgain{10};
// A rank that has gone may have done its part before; what it has left is taken in less than this.
constexpr milliseconds kGonePatience{500};
// CUDA is asked whether it has the context where nothing has moved for so long, and again later.
constexpr milliseconds kFirstQuestion{1000};
constexpr milliseconds kNextQuestion{5000};

}  // namespace

// Who has seen it may clear the words for other calls before the thread that watches has seen it.
bool StreamWatch::ended() const {
  if (call_.in_graph) return false;
  if (ended_.load(std::memory_order_acquire)) return true;
  if (static_cast<int32_t>(load_word(call_.words.calls().done) - call_.number) < 0 &&
      !has_moved_all()) {
    return false;
  }
  ended_.store(true, std::memory_order_release);
  return true;
}

bool StreamWatch::running() const {
  if (ended_.load(std::memory_order_acquire)) return false;
  const Mailbox& words = call_.words.calls();
  return load_word(words.ready) == call_.number && load_word(words.done) != call_.number &&
         !has_moved_all();
}

void StreamWatch::look() {
  if (may_run_ != nullptr && !let_go_ && !held()) {
    call_.words.gate().answer();
    let_go_ = true;
  }
  const auto now = Clock::now();
  if (finds_loss(now)) return;
  if (!running()) {
    end_wait();
    seen_ = false;
    return;
  }
  if (call_.owner->is_broken()) {
    if (record() != nullptr) record()->failed(call_.owner->last_error());
    memory().spoil();
    release();
    return;
  }
  note_running();
  const uint64_t mark = progress_mark();
  if (!seen_ || mark != mark_) {
    if (std::exchange(waits_, false)) record()->waits_no_more();
    end_wait();
    seen_ = true;
    next_question_ = now + kFirstQuestion;
    mark_ = mark;
    since_ = now;
    since_ns_ = now_ns();
    next_check_ = now + kStuck;
    return;
  }
  if (now < next_check_) return;
  next_check_ = now + kCheckAgain;
  if (record() != nullptr) {
    record_wait(since_ns_);
    waits_ = true;
  }
  check_stuck(now);
}

// A launch of a graph that has not come is not looked for.
bool StreamWatch::finds_loss(Clock::time_point now) {
  ContextCheck& check = memory().context_check();
  if (!check.is_lost()) {
    if (next_question_ == Clock::time_point()) next_question_ = now + kFirstQuestion;
    if (now < next_question_ || (call_.in_graph && !running())) return false;
    next_question_ = now + kNextQuestion;
    check.look_in_background();
    return false;
  }
  if (lost()) return true;
  if (!call_.owner->is_broken()) fail(Code::kSystem, check.reason());
  lose();
  return true;
}

void StreamWatch::check_stuck(Clock::time_point now) {
  // First, since each rank finds it by itself, and the first one tells the others.
  if (finds_fault()) return;
  const auto waited = now - since_;
  if (call_.owner->hears_of_error(call_.function)) return;
  std::vector<Rank> gone;
  if (waited >= kGonePatience) gone = needed_of(call_.owner->gone_ranks());
  if (!gone.empty()) {
    fail(Code::kPeerLost,
         fmt::format("{} before this rank had what it needs", call_.owner->describe_lost(gone)),
         gone);
    return;
  }
  call_.owner->note_stuck(this, awaited());
  shows_wait_ = true;
  if (call_.timeout_ms <= 0) return;
  wait_time_.note(since_ns_, now_ns(), timeout_ns());
  if (waited >= milliseconds(call_.timeout_ms)) meet_deadline();
}

// A rank that has not come to this call may wait in an earlier one.
void StreamWatch::meet_deadline() {
  const std::vector<Rank> late = late_ranks();
  const std::vector<Rank> waited_for = awaited();
  std::vector<Rank> all;
  std::set_union(late.begin(), late.end(), waited_for.begin(), waited_for.end(),
                 std::back_inserter(all));
  std::vector<Rank> culprits;
  if (!call_.owner->find_culprits(all, wait_time_, timeout_ns(), &culprits)) return;
  if (culprits.empty()) culprits = late;
  fail(Code::kTimeout,
       fmt::format("nothing has moved for {} ms, the deadline{}{}. {}", call_.timeout_ms,
                   late_text(culprits), call_.owner->queue_hint(), kAtDeadline),
       culprits);
}

void StreamWatch::end_wait() {
  if (std::exchange(shows_wait_, false)) call_.owner->note_stuck(this, {});
}

void StreamWatch::fail(Code code, const std::string& what, const std::vector<Rank>& blamed) const {
  call_.owner->give_up(Status(code, fmt::format("{}, rank {} of {}: {}", call_.function,
                                                memory().rank(), memory().rank_count(), what)),
                       blamed);
}

}  // namespace weir::comm
