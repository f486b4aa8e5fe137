// SPDX-License-Identifier: Apache-2.0
// Trouble: mismatched calls, deadlines, dead and stopped peers, abort, and what is said about them.
#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/comm/communicator.h"
#include "core/comm/rank_list.h"

namespace weir::comm {

using engine::Control;
using engine::RankState;

namespace {

constexpr uint64_t kLookNs = 10'000'000;
constexpr uint64_t kAbortPatienceNs = 20'000'000;
// A process that ends may have done its part on the device.
constexpr uint64_t kDevicePatienceNs = 200'000'000;

// What the first collective on device memory begins with (device_side.h).
std::string describe_meeting() {
  engine::Call call;
  call.collective = Collective::kAllGather;
  call.count = sizeof(MeetingRecord);
  return engine::describe(call);
}

}  // namespace

std::string Communicator::describe(const Request& request) const {
  switch (request.kind) {
    case RequestKind::kCollective:
      return fmt::format("{} (operation {} of '{}')", engine::describe(request.call),
                         request.started ? request.sequence : context_.sequence + 1, name_);
    case RequestKind::kSend:
      return fmt::format("send of {} bytes to rank {} on '{}'", request.bytes, request.peer, name_);
    case RequestKind::kRecv:
      return fmt::format("receive of {} bytes from rank {} on '{}'", request.bytes, request.peer,
                         name_);
    case RequestKind::kAllToAllV:
      return fmt::format("all_to_all_v on '{}'", name_);
    case RequestKind::kDevice:
      return request.device->is_all_to_all_v
                 ? fmt::format("all_to_all_v on memory of device {} on '{}'",
                               request.device->device, name_)
                 : fmt::format("{} on memory of device {} on '{}'", engine::describe(request.call),
                               request.device->device, name_);
  }
  return name_;
}

std::vector<Rank> Communicator::awaited(const Request& request) const {
  std::vector<Rank> ranks;
  collect_awaited(request, &ranks);
  return ranks;
}

void Communicator::collect_awaited(const Request& request, std::vector<Rank>* ranks) const {
  ranks->clear();
  switch (request.kind) {
    case RequestKind::kSend:
    case RequestKind::kRecv:
      if (!is_waiting(request)) ranks->push_back(request.peer);
      return;
    case RequestKind::kAllToAllV:
      if (is_waiting(request)) return;
      for (const Request& part : request.parts) {
        if (!part.done.load(std::memory_order_relaxed)) ranks->push_back(part.peer);
      }
      break;
    case RequestKind::kDevice:
      if (is_with_device(request)) {
        for (Rank p = 0; p < context_.rank_count; ++p) {
          if (p != context_.rank) ranks->push_back(p);
        }
        break;
      }
      [[fallthrough]];  // waits in the meeting
    case RequestKind::kCollective: {
      if (active_run_ != nullptr) {
        active_run_->collect_awaited(context_, ranks);
        break;
      }
      if (!context_.mapped()) break;
      // Not begun: somebody is too far behind, or has not called the operation whose windows are to
      // be agreed on.
      const uint64_t next = context_.sequence + 1;
      const uint64_t needed =
          next > engine::kOperationsAhead
              ? context_
                    .end_position[(next - engine::kOperationsAhead) % context_.end_position.size()]
              : 0;
      for (Rank p = 0; p < context_.rank_count; ++p) {
        if (p == context_.rank) continue;
        const Control& control = context_.control(p);
        const bool behind = control.done.position.load(std::memory_order_acquire) < needed;
        const bool silent =
            first_ != nullptr && first_->described &&
            control.descriptor[next % engine::kDescriptorCount].sequence.load() != next;
        if (behind || silent) ranks->push_back(p);
      }
      break;
    }
  }
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

void Communicator::collect_awaited_by_all(std::vector<Rank>* ranks) const {
  ranks->clear();
  if (first_ != nullptr) collect_awaited(*first_, ranks);
  if (device_waits()) collect_awaited(*device_->first, ranks);
  if (messages_.empty()) return;
  const auto sort = [&] {
    std::sort(ranks->begin(), ranks->end());
    ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
  };
  // However many messages there are, each rank stands there twice at most.
  const auto add = [&](Rank rank) {
    if (ranks->size() >= size_t{context_.rank_count} * 2) sort();
    ranks->push_back(rank);
  };
  for (const Request* message : messages_) {
    if (message->kind != RequestKind::kAllToAllV) add(message->peer);
    for (const Request& part : message->parts) {
      if (!part.done.load(std::memory_order_relaxed)) add(part.peer);
    }
  }
  sort();
}

Status Communicator::mismatch_report(const Request& request) {
  const uint64_t sequence = request.started ? request.sequence : context_.sequence + 1;
  // A peer publishes what it called right after its first data: give it a moment to get there.
  const uint64_t until = now_ns() + 20'000'000;
  std::map<std::string, std::vector<Rank>> calls;
  for (;;) {
    calls.clear();
    calls[engine::describe(request.call)].push_back(context_.rank);
    for (Rank p = 0; p < context_.rank_count; ++p) {
      if (p == context_.rank) continue;
      if (board_.is_open()) {
        const Standing& other = board_.peer(p).standing;
        if (board_.peer(p).known && other.sequence == sequence) {
          calls[engine::describe(other.what, other.count)].push_back(p);
        }
      }
      if (!context_.mapped()) continue;
      const engine::DescriptorLine& line =
          context_.control(p).descriptor[sequence % engine::kDescriptorCount];
      if (line.sequence.load(std::memory_order_acquire) != sequence) continue;
      calls[engine::describe(line.what.load(), line.count.load())].push_back(p);
    }
    const engine::LaneRun::Header& met = lane_run_.other_header();
    if (met.flag != 0) {
      std::string what = engine::describe(met.what, met.count);
      const uint64_t of = met.flag >> 32;
      if (of != (sequence & 0xffffffffu)) what += fmt::format(" (its operation {})", of);
      calls[what].push_back(lane_run_.other_rank());
    }
    if (calls.size() > 1 || now_ns() > until) break;
    if (board_.is_open()) board_.look(now_ns());
    cpu_relax();
  }
  std::string text =
      fmt::format("ranks of '{}' made different calls as operation {}:", name_, sequence);
  for (auto& [what, ranks] : calls) {
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    text += fmt::format(" {} called {};", describe_ranks(ranks), what);
  }
  text +=
      " every rank must call the same collectives in the same order, with the same count, type, "
      "operation and root";
  if (is_meeting(request) || calls.count(describe_meeting()) != 0) {
    text += fmt::format(
        ", on the same kind of memory: the first collective on device memory begins with {}",
        describe_meeting());
  }
  return Status(Code::kMismatch, text);
}

Status Communicator::timeout_report(const Request& request, const std::vector<Rank>& ranks) const {
  std::string whom = is_with_device(request)
                         ? "the other ranks, of which all that can be told seems well"
                     : is_waiting(request) ? "the stream, which has not come to it"
                                           : "no rank in particular";
  if (!ranks.empty()) {
    whom = describe_ranks(ranks);
    if (board_.is_open()) whom += silence_of(ranks);
    if (request.kind == RequestKind::kCollective && context_.mapped()) {
      const uint64_t sequence = request.started ? request.sequence : context_.sequence + 1;
      std::vector<Rank> absent;
      for (const Rank p : ranks) {
        if (p == context_.rank) continue;
        const auto& line = context_.control(p).descriptor[sequence % engine::kDescriptorCount];
        if (line.sequence.load(std::memory_order_acquire) != sequence) absent.push_back(p);
      }
      if (!absent.empty()) {
        whom = fmt::format("{}, which {} not called operation {}", describe_ranks(absent),
                           absent.size() == 1 ? "has" : "have", sequence);
        const Control& control = context_.control(absent[0]);
        uint64_t latest = 0;
        const engine::DescriptorLine* latest_line = nullptr;
        for (const engine::DescriptorLine& line : control.descriptor) {
          const uint64_t seen = line.sequence.load(std::memory_order_acquire);
          if (seen > latest && seen < sequence) {
            latest = seen;
            latest_line = &line;
          }
        }
        whom += latest_line == nullptr
                    ? std::string(" (nor any before)")
                    : fmt::format(
                          " (the latest call of rank {} is operation {}, {})", absent[0], latest,
                          engine::describe(latest_line->what.load(), latest_line->count.load()));
      } else {
        whom += ", which began the operation and stopped in it";
      }
    }
  }
  return Status(
      Code::kTimeout,
      fmt::format("{} did not finish within {} ms on rank {}: waiting for {}. Look at what "
                  "that rank does (stopped, stuck elsewhere, slower than the deadline?), or "
                  "raise WEIR_TIMEOUT_MS",
                  describe(request), timeout_ms_of(request), context_.rank, whom));
}

void Communicator::record_wait(Request& request, uint64_t now_ns) {
  if (request.waited_ns == 0) request.waited_ns = now_ns;
  if (!recorder_.looked(request.waited_ns, now_ns)) return;
  Wait wait;
  wait.since_ns = request.waited_ns;
  collect_awaited(request, &awaited_ranks_);
  wait.awaited = awaited_ranks_;
  if (request.kind == RequestKind::kCollective && first_ != nullptr) {
    // Whichever collective is waited for, the head of the queue is what holds it up.
    const Request& head = *first_;
    wait.kind = head.started ? RecordKind::kCollective : RecordKind::kQueued;
    wait.sequence = head.started ? head.sequence : context_.sequence + 1;
    wait.what = engine::pack_what(head.call);
    wait.count = head.call.count;
    if (active_run_ != nullptr) {
      const engine::RunPosition at = active_run_->position();
      wait.step = at.step;
      wait.step_count = at.step_count;
      wait.slice = at.slice;
      wait.slice_count = at.slice_count;
    }
    if (const engine::Plan* plan = head.started ? active_plan_ : nullptr) {
      wait.algorithm = plan->algorithm->name;
      wait.protocol = engine::name_of(plan->protocol);
    }
  } else {
    wait.kind = request.kind == RequestKind::kSend   ? RecordKind::kSend
                : request.kind == RequestKind::kRecv ? RecordKind::kRecv
                                                     : RecordKind::kAllToAllV;
    wait.sequence = request.record;
    wait.count = request.bytes;
    for (const Request& part : request.parts) wait.count += part.bytes;
  }
  recorder_.waits(wait, now_ns);
}

void Communicator::check_slowly(Request& request) {
  if (failed_code_.load(std::memory_order_relaxed) != 0) {
    tell_failure();
    fail_all(health());
    return;
  }
  if (aborted_.load(std::memory_order_acquire)) {
    fail(Status(Code::kAborted, fmt::format("communicator '{}' was aborted on this rank ({})",
                                            name_, context_.rank)));
    return;
  }
  const uint64_t now = now_ns();
  const uint64_t timeout_ns = static_cast<uint64_t>(timeout_ms_of(request)) * 1'000'000u;
  if (request.deadline_ns == 0) request.deadline_ns = now + timeout_ns;
  if (recorder_.on()) {
    if (request.kind != RequestKind::kDevice) record_wait(request, now);
    record_ways(now);
  }
  // However long this thread did not run.
  const uint64_t waited_ns = std::min(now - checked_ns_, kLookNs);
  const uint64_t began_ns = request.deadline_ns - timeout_ns;
  note_time(began_ns, now, timeout_ns);
  const bool late = now >= request.deadline_ns;
  if (late || now - last_look_ns_ > kLookNs) {
    look_at_peers(now);
    if (context_.mapped()) beat(now);
  }
  if (board_.is_open()) {
    const bool fresh = board_.shown_ns() < began_ns;  // it has not told of this operation yet
    const uint64_t due = fresh ? began_ns + kLookNs : board_.shown_ns() + board_.beat_interval_ns();
    if (now >= due) show_standing(true);
  }

  if (first_ != nullptr) {
    const Request& head = *first_;
    const uint64_t sequence = head.started ? head.sequence : context_.sequence + 1;
    const uint32_t mark = engine::fingerprint(head.call);
    for (Rank p = 0; p < context_.rank_count; ++p) {
      if (p == context_.rank || !called_otherwise(p, sequence, mark)) continue;
      fail(mismatch_report(head));
      return;
    }
  }
  if (adopt_failure()) return;
  if (look_for_lost(request, waited_ns, late)) return;
  std::vector<Rank> culprits;
  if (late && find_culprits(request, now, &culprits)) {
    fail(timeout_report(request, culprits), culprits);
  }
}

bool Communicator::look_for_lost(Request& request, uint64_t waited_ns, bool late) {
  std::vector<Rank> lost;
  std::vector<Rank> finished;  // gone after it had done all of this operation
  bool died = false;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p == context_.rank || !is_gone(p)) continue;
    const bool collective = request.kind == RequestKind::kCollective ||
                            (request.kind == RequestKind::kDevice && !is_with_device(request));
    const bool done =
        collective && first_ != nullptr && first_->started && has_finished(p, first_->sequence);
    // Over connections the goodbye may overtake what was sent before it.
    const bool may_arrive = !collective && board_.is_open() &&
                            std::find(ended_.begin(), ended_.end(), p) == ended_.end();
    // NCCL's communicator may have done its part for a rank that has gone since.
    const bool may_end = is_with_device(request) && !late;
    (done || may_arrive || may_end ? finished : lost).push_back(p);
  }
  for (const Rank p : ended_) {
    if (std::find(lost.begin(), lost.end(), p) == lost.end() &&
        std::find(finished.begin(), finished.end(), p) == finished.end()) {
      lost.push_back(p);
      died = true;
    }
  }
  if (lost.empty()) return false;
  // Only a rank that this request still needs is a loss; and what it left behind counts, so look
  // once more. Those whom a collective waits for may need a dead rank in their turn: they say so at
  // once, but for one that has not called yet; and they may have all they need of it.
  const std::vector<Rank> needed = awaited(request);
  const bool collective =
      request.kind == RequestKind::kCollective || request.kind == RequestKind::kDevice;
  const bool chained = collective && died;
  bool direct = false;
  std::vector<Rank> missing;
  for (const Rank p : lost) {
    const bool is_needed = std::find(needed.begin(), needed.end(), p) != needed.end();
    direct = direct || (is_needed && !is_with_device(request));
    if (chained || is_needed) missing.push_back(p);
  }
  if (missing.empty()) return false;
  if (++lost_looks_ < 2) {
    lost_wait_ns_ = 0;
    return true;
  }
  lost_wait_ns_ += waited_ns;
  const uint64_t patience_ns = is_with_device(request)
                                   ? std::min(kDevicePatienceNs, chain_patience_ns())
                                   : chain_patience_ns();
  if (!direct && !late && lost_wait_ns_ < patience_ns) return true;
  std::sort(missing.begin(), missing.end());
  fail(lost_report(request, missing), missing);
  return true;
}

void Communicator::fail(Status status, const std::vector<Rank>& blamed) {
  {
    std::lock_guard lock(error_lock_);
    if (failure_.ok()) {
      failure_ = status;
      error_text_ = status.text();
    } else {
      status = failure_;
    }
  }
  const bool first = failed_code_.exchange(static_cast<uint8_t>(status.code())) == 0;
  recorder_.failed(status);
  if (first && status.code() != Code::kAborted) {
    log_error(fmt::format("rank {}: {}", context_.rank, status.text()));
  }
  if (context_.mapped()) {
    Control& control = context_.control(context_.rank);
    if (control.health.state.load(std::memory_order_relaxed) ==
        static_cast<uint32_t>(RankState::kHealthy)) {
      const size_t bytes = std::min<size_t>(status.text().size(), engine::kErrorTextBytes - 1);
      std::memcpy(control.error_text, status.text().data(), bytes);
      control.error_text[bytes] = '\0';
      control.blamed_count =
          static_cast<uint32_t>(std::min<size_t>(blamed.size(), engine::kBlamedRanksMax));
      std::copy_n(blamed.begin(), control.blamed_count, control.blamed_ranks);
      control.health.code.store(static_cast<uint32_t>(status.code()), std::memory_order_relaxed);
      control.health.state.store(
          static_cast<uint32_t>(aborted_.load() ? RankState::kAborted : RankState::kFailed),
          std::memory_order_release);
      context_.wake_all();
    }
  }
  if (first) blamed_ = blamed;
  tell_failure();
  fail_all(status);
}

void Communicator::fail_with(Communicator& other) {
  const Status failure = other.health();
  if (failure.ok() || !health().ok()) return;
  std::vector<Rank> blamed;
  {
    std::lock_guard lock(other.lock_);
    blamed = other.blamed_;
  }
  std::lock_guard lock(lock_);
  fail(failure.with_context(fmt::format("for '{}'", name_)), blamed);
}

std::vector<Rank> Communicator::lost_ranks() {
  std::lock_guard lock(lock_);
  look_at_peers(now_ns());
  std::set<Rank> lost(ended_.begin(), ended_.end());
  lost.insert(blamed_.begin(), blamed_.end());
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p == context_.rank) continue;
    if (is_gone(p)) lost.insert(p);
    std::vector<Rank> blamed;
    if (!failure_of(p, &blamed).ok()) lost.insert(blamed.begin(), blamed.end());
  }
  return {lost.begin(), lost.end()};
}

void Communicator::fail_all(const Status& status) {
  active_run_ = nullptr;
  // Whoever hears of the failure may free its buffers.
  if (failed_code_.load() != 0 || first_ != nullptr || !messages_.empty()) context_.quiesce();
  while (first_ != nullptr) {
    Request* request = first_;
    first_ = request->next;
    complete(*request, status);
  }
  for (Request* request : messages_) complete(*request, status);
  messages_.clear();
  for (Request* request : waiting_) complete(*request, status);
  waiting_.clear();
  if (device_ != nullptr) fail_device(status);
}

void Communicator::abort() {
  aborted_.store(true, std::memory_order_release);
  const Status status(Code::kAborted, fmt::format("communicator '{}' was aborted on this rank ({})",
                                                  name_, context_.rank));
  {
    std::lock_guard lock(error_lock_);
    if (failure_.ok()) {
      failure_ = status;
      error_text_ = status.text();
    }
  }
  uint8_t healthy = 0;
  failed_code_.compare_exchange_strong(healthy, static_cast<uint8_t>(Code::kAborted));
  recorder_.aborted();
  if (context_.mapped()) {
    auto expected = static_cast<uint32_t>(RankState::kHealthy);
    context_.control(context_.rank)
        .health.state.compare_exchange_strong(expected, static_cast<uint32_t>(RankState::kAborted));
    context_.wake_all();
  }
  const bool on_device = has_device_.load(std::memory_order_acquire);
  if (!board_.is_open() && !on_device) return;
  // A thread that waits holds the lock for the time of a poll, and tells the peers itself when it
  // has seen the abort; so nothing is missed when there is no time to wait for it.
  const uint64_t until = now_ns() + kAbortPatienceNs;
  while (now_ns() < until) {
    if (lock_.try_lock()) {
      std::lock_guard lock(lock_, std::adopt_lock);
      tell_failure();
      if (on_device) fail_device(status);
      return;
    }
    sched_yield();
  }
}

Status Communicator::health() const {
  if (failed_code_.load(std::memory_order_acquire) == 0) return Status();
  std::lock_guard lock(error_lock_);
  return failure_;
}

Status Communicator::async_error() {
  Status status = health();
  if (!status.ok()) return status;
  std::unique_lock lock(lock_, std::defer_lock);
  if (board_.is_open()) {
    if (!lock.try_lock()) return status;
    const uint64_t now = now_ns();
    if (now - board_.looked_ns() > kLookNs) board_.look(now);
  } else if (!context_.mapped()) {
    return status;
  }
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p == context_.rank) continue;
    std::vector<Rank> blamed;
    Status reported = failure_of(p, &blamed);
    if (!reported.ok()) return reported;
  }
  return status;
}

std::string Communicator::last_error() const {
  std::lock_guard lock(error_lock_);
  return error_text_;
}

void Communicator::note_error(const Status& status) {
  std::lock_guard lock(error_lock_);
  error_text_ = status.text();
}

SleepPlace Communicator::sleep_place(const Request& request) {
  std::lock_guard lock(lock_);
  if (!context_.mapped() || request.kind != RequestKind::kCollective) return {};
  collect_awaited(request, &awaited_ranks_);
  if (awaited_ranks_.empty()) return {};
  auto& wakeup = context_.control(awaited_ranks_.front()).wakeup;
  return {&wakeup.sleepers, &wakeup.wake};
}

Result<int> Communicator::create_scale(DataType type, const void* scalar) {
  std::lock_guard lock(lock_);
  size_t index = 0;
  while (index < scales_.size() && scales_[index].used) ++index;
  if (index >= kScalesMax) {
    return Status(
        Code::kNoMemory,
        fmt::format("a communicator has {} pre-multiplied sums at most; destroy some", kScalesMax));
  }
  if (index == scales_.size()) scales_.emplace_back();
  Scale& scale = scales_[index];
  scale.used = true;
  scale.type = type;
  std::memcpy(scale.value, scalar, element_bytes(type));
  return kFirstScale + static_cast<int>(index);
}

Status Communicator::destroy_scale(int op) {
  std::lock_guard lock(lock_);
  const auto index = static_cast<size_t>(op - kFirstScale);
  if (op < kFirstScale || index >= scales_.size() || !scales_[index].used) {
    return invalid_argument(
        fmt::format("reduction {} was not made on '{}', or is destroyed", op, name_));
  }
  scales_[index].used = false;
  return Status();
}

Result<Communicator::Scale> Communicator::scale(int op) {
  std::lock_guard lock(lock_);
  const auto index = static_cast<size_t>(op - kFirstScale);
  if (op < kFirstScale || index >= scales_.size() || !scales_[index].used) {
    return invalid_argument(
        fmt::format("reduction {} was not made on '{}', or is destroyed", op, name_));
  }
  return scales_[index];
}

}  // namespace weir::comm
