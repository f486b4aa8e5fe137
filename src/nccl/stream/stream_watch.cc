// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/stream_watch.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "core/base/clock.h"
#include "core/base/rank_list.h"
#include "core/engine/call.h"
#include "nccl/stream/neighbors.h"

namespace weir::nccl {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A call in which nothing moves for so long is looked into.
constexpr milliseconds kStuck{20};
constexpr milliseconds kCheckAgain{10};
// A rank that has gone may have done its part before; what it has left is taken in less than this.
constexpr milliseconds kGonePatience{500};
// In one look at a stream that is released.
constexpr int kReleasesMax = 200;
constexpr microseconds kReleasePause{20};

}  // namespace

StreamWatch::StreamWatch(const Operation& operation, std::shared_ptr<StreamMemory> memory,
                         std::shared_ptr<Staging> words, uint32_t number, bool in_graph)
    : comm_(operation.comm),
      memory_(std::move(memory)),
      record_(in_graph ? nullptr : operation.comm->devices().stream_record()),
      words_(std::move(words)),
      function_(operation.function),
      number_(number),
      in_graph_(in_graph),
      call_words_(words_of(operation)),
      timeout_ms_(operation.options.timeout_ms > 0 ? operation.options.timeout_ms
                                                   : operation.comm->weir()->comm->timeout_ms()) {}

bool StreamWatch::ended() const {
  const uint32_t now = std::atomic_ref(words_->mailboxes[0].done).load(std::memory_order_acquire);
  return !in_graph_ && static_cast<int32_t>(now - number_) >= 0;
}

bool StreamWatch::running() const {
  const Mailbox& words = words_->mailboxes[0];
  const auto read = [](const uint32_t& word) {
    return std::atomic_ref(const_cast<uint32_t&>(word)).load(std::memory_order_acquire);
  };
  return read(words.ready) == number_ && read(words.done) != number_;
}

void StreamWatch::note_begun(const CallWords& words) {
  if (call_ != 0) return;
  const uint64_t number = memory_->next_call();
  memory_->flags().note_call(memory_->rank(), number, words.what, words.count, words.fingerprint);
  if (record_ != nullptr) record_->begun(number, words);
  call_ = number;
}

void StreamWatch::note_ended() const {
  if (record_ != nullptr && call_ != 0) record_->ended(call_);
}

void StreamWatch::look() {
  if (may_run_ != nullptr && !let_go_ && !held()) {
    words_->mailboxes[1].answer();
    let_go_ = true;
  }
  if (!running()) {
    seen_ = false;
    return;
  }
  if (comm_->broken()) {
    if (record_ != nullptr) record_->failed(comm_->last_error());
    release();
    return;
  }
  const auto now = Clock::now();
  const uint64_t mark = memory_->progress_mark();
  if (!seen_ || mark != mark_) {
    if (std::exchange(waits_, false)) record_->waits_no_more();
    seen_ = true;
    mark_ = mark;
    since_ = now;
    since_ns_ = now_ns();
    next_check_ = now + kStuck;
    return;
  }
  if (now < next_check_) return;
  next_check_ = now + kCheckAgain;
  if (record_ != nullptr && call_ != 0) {
    record_wait();
    waits_ = true;
  }
  check_stuck(now);
}

void StreamWatch::record_wait() const {
  std::vector<Rank> awaited = late_ranks();
  if (awaited.empty()) awaited = memory_->silent_ranks(call_words_.fingerprint);
  record_->waits(call_, call_words_, since_ns_, awaited);
}

void StreamWatch::release() {
  memory_->spoil();
  for (int i = 0; i < kReleasesMax && running() && !lost(); ++i) {
    memory_->release(call_words_.fingerprint);
    std::this_thread::sleep_for(kReleasePause);
  }
}

void StreamWatch::check_stuck(Clock::time_point now) {
  // First, since each rank finds it by itself, and the first one tells the others.
  if (call_ != 0 && differs()) return;
  const ncclResult_t error = comm_->async_error();
  if (error != ncclSuccess && error != ncclInProgress) {
    comm_->stream_failed({error, comm_->last_error()});
    return;
  }
  const auto waited = now - since_;
  if (waited >= kGonePatience) {
    const std::vector<Rank> lost = comm_->weir()->comm->lost_ranks();
    if (!lost.empty()) {
      fail(ncclRemoteError,
           fmt::format("{} died or left before this rank had what it needs", describe_ranks(lost)));
      return;
    }
  }
  if (timeout_ms_ > 0 && waited >= milliseconds(timeout_ms_)) {
    const std::vector<Rank> late = late_ranks();
    const Neighbors* neighbors = comm_->devices().neighbors().get();
    fail(
        ncclRemoteError,
        fmt::format("nothing has moved for {} ms, the deadline{}{}", timeout_ms_,
                    late.empty() ? "" : fmt::format("; {} made no such call", describe_ranks(late)),
                    neighbors != nullptr ? neighbors->hint(memory_->driver(), comm_->rank()) : ""));
  }
}

// Ranks whose call of this number is another one.
bool StreamWatch::differs() {
  std::map<std::string, std::vector<Rank>> calls;
  const comm::StreamFlags& flags = memory_->flags();
  bool any = false;
  for (Rank rank = 0; rank < memory_->rank_count(); ++rank) {
    uint64_t what = 0;
    uint64_t count = 0;
    if (!flags.read_call(rank, call_, &what, &count)) continue;
    any = any || what != call_words_.what || count != call_words_.count;
    calls[engine::describe(what, count)].push_back(rank);
  }
  if (!any) return false;
  std::string text = "the ranks made different calls:";
  for (const auto& [what, ranks] : calls) {
    text += fmt::format(" {} called {};", describe_ranks(ranks), what);
  }
  fail(ncclInvalidUsage,
       text +
           " every rank must call the same collectives in the same order, with the same count, "
           "type, operation and root");
  return true;
}

std::vector<Rank> StreamWatch::late_ranks() const {
  if (call_ == 0) return {};
  std::vector<Rank> late;
  for (Rank rank = 0; rank < memory_->rank_count(); ++rank) {
    uint64_t what = 0;
    uint64_t count = 0;
    if (!memory_->flags().read_call(rank, call_, &what, &count)) late.push_back(rank);
  }
  return late;
}

void StreamWatch::fail(ncclResult_t code, const std::string& what) {
  comm_->give_up({code, fmt::format("{}, rank {} of {}: {}", function_, comm_->rank(),
                                    comm_->rank_count(), what)});
}

}  // namespace weir::nccl
