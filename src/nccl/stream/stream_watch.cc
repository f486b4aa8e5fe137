// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/stream_watch.h"

#include <fmt/format.h>

#include <utility>

#include "api/handles.h"
#include "core/base/clock.h"
#include "core/base/rank_list.h"
#include "nccl/stream/neighbors.h"

namespace weir::nccl {

namespace {

using std::chrono::milliseconds;

// A call in which nothing moves for so long is looked into.
constexpr milliseconds kStuck{20};
constexpr milliseconds kCheckAgain{10};
// A rank that has gone may have done its part before; what it has left is taken in less than this.
constexpr milliseconds kGonePatience{500};

}  // namespace

StreamWatch::StreamWatch(const Operation& operation, std::shared_ptr<StreamMemory> memory,
                         Words words, uint32_t number, bool in_graph)
    : comm_(operation.comm),
      memory_(std::move(memory)),
      record_(in_graph ? nullptr : operation.comm->devices().stream_record()),
      in_graph_(in_graph),
      words_(std::move(words)),
      function_(operation.function),
      number_(number),
      timeout_ms_(operation.options.timeout_ms > 0 ? operation.options.timeout_ms
                                                   : operation.comm->weir()->comm->timeout_ms()) {}

bool StreamWatch::ended() const {
  return !in_graph_ && static_cast<int32_t>(load_word(words_.calls().done) - number_) >= 0;
}

bool StreamWatch::running() const {
  const Mailbox& words = words_.calls();
  return load_word(words.ready) == number_ && load_word(words.done) != number_;
}

void StreamWatch::look() {
  if (may_run_ != nullptr && !let_go_ && !held()) {
    words_.gate().answer();
    let_go_ = true;
  }
  if (!running()) {
    seen_ = false;
    return;
  }
  if (comm_->broken()) {
    if (record_ != nullptr) record_->failed(comm_->last_error());
    memory_->spoil();
    release();
    return;
  }
  const auto now = Clock::now();
  const uint64_t mark = progress_mark();
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
  if (record_ != nullptr) {
    record_wait(since_ns_);
    waits_ = true;
  }
  check_stuck(now);
}

void StreamWatch::check_stuck(Clock::time_point now) {
  // First, since each rank finds it by itself, and the first one tells the others.
  if (finds_fault()) return;
  const ncclResult_t error = comm_->async_error();
  if (error != ncclSuccess && error != ncclInProgress) {
    comm_->stream_failed({error, comm_->last_error()});
    return;
  }
  const auto waited = now - since_;
  if (waited >= kGonePatience) {
    const std::vector<Rank> lost = needed_of(comm_->weir()->comm->lost_ranks());
    if (!lost.empty()) {
      fail(ncclRemoteError,
           fmt::format("{} died or left before this rank had what it needs", describe_ranks(lost)));
      return;
    }
  }
  if (timeout_ms_ > 0 && waited >= milliseconds(timeout_ms_)) {
    const Neighbors* neighbors = comm_->devices().neighbors().get();
    fail(
        ncclRemoteError,
        fmt::format("nothing has moved for {} ms, the deadline{}{}", timeout_ms_, late_text(),
                    neighbors != nullptr ? neighbors->hint(memory_->driver(), comm_->rank()) : ""));
  }
}

std::string StreamWatch::at_rank() const {
  return fmt::format("{}, rank {} of {}: ", function_, comm_->rank(), comm_->rank_count());
}

void StreamWatch::fail(ncclResult_t code, const std::string& what) const {
  comm_->give_up({code, at_rank() + what});
}

}  // namespace weir::nccl
