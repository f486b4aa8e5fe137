// SPDX-License-Identifier: Apache-2.0
// Trouble: mismatched calls, deadlines, dead and stopped peers, abort, and what is said about them.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/comm/communicator.h"
#include "core/comm/rank_list.h"

namespace weir::comm {

using engine::Control;
using engine::RankState;

namespace {

constexpr uint64_t kAliveCheckNs = 10'000'000;

std::string read_text(const char* shared, size_t bytes) {
  std::string text(shared, strnlen(shared, bytes));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return text;
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
      ranks->push_back(request.peer);
      return;
    case RequestKind::kAllToAllV:
      for (const Request& part : request.parts) {
        if (!part.done.load(std::memory_order_relaxed)) ranks->push_back(part.peer);
      }
      break;
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

Status Communicator::mismatch_report(const Request& request) const {
  const uint64_t sequence = request.started ? request.sequence : context_.sequence + 1;
  // A peer publishes what it called right after its first data: give it a moment to get there.
  const uint64_t until = now_ns() + 20'000'000;
  std::map<std::string, std::vector<Rank>> calls;
  for (;;) {
    calls.clear();
    calls[engine::describe(request.call)].push_back(context_.rank);
    for (Rank p = 0; p < context_.rank_count; ++p) {
      if (p == context_.rank) continue;
      const engine::DescriptorLine& line =
          context_.control(p).descriptor[sequence % engine::kDescriptorCount];
      if (line.sequence.load(std::memory_order_acquire) != sequence) continue;
      calls[engine::describe(line.what.load(), line.count.load())].push_back(p);
    }
    if (calls.size() > 1 || now_ns() > until) break;
    cpu_relax();
  }
  std::string text =
      fmt::format("ranks of '{}' made different calls as operation {}:", name_, sequence);
  for (auto& [what, ranks] : calls) {
    std::sort(ranks.begin(), ranks.end());
    text += fmt::format(" {} called {};", describe_ranks(ranks), what);
  }
  text +=
      " every rank must call the same collectives in the same order, with the same count, type, "
      "operation and root";
  return Status(Code::kMismatch, text);
}

Status Communicator::timeout_report(const Request& request) const {
  const std::vector<Rank> ranks = awaited(request);
  std::string whom = "no rank in particular";
  if (!ranks.empty()) {
    whom = describe_ranks(ranks);
    if (request.kind == RequestKind::kCollective && context_.mapped()) {
      const uint64_t sequence = request.started ? request.sequence : context_.sequence + 1;
      std::vector<Rank> absent;
      for (Rank p = 0; p < context_.rank_count; ++p) {
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
                  describe(request), timeout_ms_.load(), context_.rank, whom));
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
    fail_all(health());
    return;
  }
  if (aborted_.load(std::memory_order_acquire)) {
    fail(Status(Code::kAborted, fmt::format("communicator '{}' was aborted on this rank ({})",
                                            name_, context_.rank)));
    return;
  }
  const uint64_t now = now_ns();
  const uint64_t timeout_ns = static_cast<uint64_t>(timeout_ms_.load()) * 1'000'000u;
  if (request.deadline_ns == 0) request.deadline_ns = now + timeout_ns;
  if (recorder_.on()) record_wait(request, now);
  if (now >= request.deadline_ns) {
    fail(timeout_report(request), awaited(request));
    return;
  }

  // Before the ranks' own words are read: a process that ends in order has left its word by then.
  const bool reports_death = (context_.transport->caps.bits & WEIR_CAP_PEER_FAILURE) != 0;
  if (reports_death && now - last_alive_check_ns_ > kAliveCheckNs) {
    last_alive_check_ns_ = now;
    ended_.clear();
    for (Rank p = 0; p < context_.rank_count; ++p) {
      if (p != context_.rank &&
          context_.transport->peer_alive(context_.instance, p) == WEIR_ERROR_PEER_LOST) {
        ended_.push_back(p);
      }
    }
  }

  std::vector<Rank> lost;
  std::vector<Rank> finished;  // gone after it had done all of this operation
  std::string how;
  if (context_.mapped() && first_ != nullptr) {
    const Request& head = *first_;
    const uint64_t sequence = head.started ? head.sequence : context_.sequence + 1;
    const uint32_t mark = engine::fingerprint(head.call);
    for (Rank p = 0; p < context_.rank_count; ++p) {
      if (p == context_.rank) continue;
      if (engine::called_otherwise(context_.control(p), sequence, mark)) {
        fail(mismatch_report(head));
        return;
      }
    }
  }
  if (context_.mapped()) {
    for (Rank p = 0; p < context_.rank_count; ++p) {
      if (p == context_.rank) continue;
      const Control& control = context_.control(p);
      const auto state =
          static_cast<RankState>(control.health.state.load(std::memory_order_acquire));
      if (state == RankState::kFailed) {
        const uint32_t code = control.health.code.load(std::memory_order_relaxed);
        const std::string text = read_text(control.error_text, engine::kErrorTextBytes);
        fail(Status(code > 1 && code <= static_cast<uint32_t>(Code::kInternal)
                        ? static_cast<Code>(code)
                        : Code::kInternal,
                    fmt::format("{} (reported by rank {})", text, p)));
        return;
      }
      if (state == RankState::kAborted) {
        fail(Status(Code::kAborted, fmt::format("rank {} aborted communicator '{}'", p, name_)));
        return;
      }
      if (state == RankState::kGone) {
        const bool done = request.kind == RequestKind::kCollective && first_ != nullptr &&
                          first_->started &&
                          control.done.position.load(std::memory_order_acquire) >=
                              context_.end_position[first_->sequence % engine::kEndPositions];
        (done ? finished : lost).push_back(p);
        if (!done) how = "destroyed the communicator";
      }
    }
  }
  for (const Rank p : ended_) {
    if (std::find(lost.begin(), lost.end(), p) == lost.end() &&
        std::find(finished.begin(), finished.end(), p) == finished.end()) {
      lost.push_back(p);
      how = "died";
    }
  }
  if (lost.empty()) return;
  // Only a rank that this request still needs is a loss; and what it left behind counts, so look
  // once more.
  std::vector<Rank> needed = awaited(request);
  const bool chained = request.kind == RequestKind::kCollective;
  std::vector<Rank> missing;
  for (const Rank p : lost) {
    const bool direct = std::find(needed.begin(), needed.end(), p) != needed.end();
    if (direct || (chained && how == "died")) missing.push_back(p);
  }
  if (missing.empty()) return;
  if (++lost_looks_ < 2) return;
  fail(Status(
      Code::kPeerLost,
      fmt::format("{} {} while rank {} waited for {} in {}; exclude {} with weir_comm_shrink "
                  "to go on",
                  describe_ranks(missing), how, context_.rank, missing.size() == 1 ? "it" : "them",
                  describe(request), missing.size() == 1 ? "it" : "them")));
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
          static_cast<uint32_t>(status.code() == Code::kAborted ? RankState::kAborted
                                                                : RankState::kFailed),
          std::memory_order_release);
      context_.wake_all();
    }
  }
  fail_all(status);
}

std::vector<Rank> Communicator::lost_ranks() {
  std::lock_guard lock(lock_);
  std::set<Rank> lost;
  const bool reports_death = (context_.transport->caps.bits & WEIR_CAP_PEER_FAILURE) != 0;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p != context_.rank && reports_death &&
        context_.transport->peer_alive(context_.instance, p) == WEIR_ERROR_PEER_LOST) {
      lost.insert(p);
    }
    if (!context_.mapped()) continue;
    const Control& control = context_.control(p);
    const auto state = static_cast<RankState>(control.health.state.load(std::memory_order_acquire));
    if (p != context_.rank && state == RankState::kGone) lost.insert(p);
    if (state != RankState::kFailed) continue;
    for (uint32_t k = 0; k < std::min(control.blamed_count, engine::kBlamedRanksMax); ++k) {
      const Rank blamed = control.blamed_ranks[k];
      if (blamed < context_.rank_count) lost.insert(blamed);
    }
  }
  return {lost.begin(), lost.end()};
}

void Communicator::fail_all(const Status& status) {
  active_run_ = nullptr;
  while (first_ != nullptr) {
    Request* request = first_;
    first_ = request->next;
    complete(*request, status);
  }
  for (Request* request : messages_) complete(*request, status);
  messages_.clear();
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
}

Status Communicator::health() const {
  if (failed_code_.load(std::memory_order_acquire) == 0) return Status();
  std::lock_guard lock(error_lock_);
  return failure_;
}

Status Communicator::async_error() const {
  Status status = health();
  if (!status.ok() || !context_.mapped()) return status;
  for (Rank p = 0; p < context_.rank_count; ++p) {
    if (p == context_.rank) continue;
    const Control& control = context_.control(p);
    const auto state = static_cast<RankState>(control.health.state.load(std::memory_order_acquire));
    if (state != RankState::kFailed && state != RankState::kAborted) continue;
    const uint32_t code = control.health.code.load(std::memory_order_relaxed);
    const bool known = code > 1 && code <= static_cast<uint32_t>(Code::kInternal);
    return Status(state == RankState::kAborted ? Code::kAborted
                  : known                      ? static_cast<Code>(code)
                                               : Code::kInternal,
                  fmt::format("{} (reported by rank {})",
                              read_text(control.error_text, engine::kErrorTextBytes), p));
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
