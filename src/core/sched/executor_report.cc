// SPDX-License-Identifier: Apache-2.0
// What an execution found: flaws and their texts, the cycle of a deadlock, and the checks at the
// end.
#include <fmt/format.h>

#include <algorithm>

#include "core/sched/executor.h"
#include "core/sched/print.h"

namespace weir::sched {

std::string Executor::locate_thread(ThreadId id, uint32_t op_index) const {
  return locate(programs_[rank_of(id)], op_index);
}

std::string Executor::last_writer(Layout::Place place) const {
  if (writer_op_[place] == kNone) return "never written";
  return fmt::format("last written by {}", locate_thread(writer_thread_[place], writer_op_[place]));
}

bool Executor::fail(Flaw::Kind kind, ThreadId id, const std::string& text) {
  const uint32_t op_index = op_index_of(threads_[id]);
  flaw_ = {kind, rank_of(id), op_index, fmt::format("{}: {}", locate_thread(id, op_index), text)};
  return false;
}

bool Executor::fail_race(ThreadId id, const Ref& ref, uint32_t index, bool is_write,
                         const HappensBefore::Conflict& conflict) {
  return fail(Flaw::Kind::kRace, id,
              fmt::format("{} {}[{}] of rank {}, unordered with the {} by {}",
                          is_write ? "writes" : "reads", name_of(ref.space), ref.chunk + index,
                          ref.rank, conflict.was_write ? "write" : "read",
                          locate_thread(conflict.thread, conflict.op_index)));
}

// The thread that a blocked thread waits for, and the reason if the wait is in vain because that
// thread has ended.
Executor::ThreadId Executor::waits_for(ThreadId id, std::string* reason) const {
  const Op& op = op_of(id);
  const Thread& thread = threads_[id];
  if (thread.blocked_place != Layout::kNowhere) return holds_place(id, reason);
  switch (op.code) {
    case OpCode::kSend:
      *reason = fmt::format("rank {} to receive an earlier message (credit {})", op.peer, credit_);
      return thread_of(op.peer, op.lane);
    case OpCode::kRecv:
      *reason = fmt::format("rank {} to send", op.peer);
      return thread_of(op.peer, op.lane);
    default: {
      const Rank peer = thread.blocked_peer;
      *reason = fmt::format("rank {} to signal #{}", peer, op.signal);
      // The lane that has yet to give this signal, if there is one.
      for (uint32_t lane = 0; lane < lane_count_; ++lane) {
        const ThreadId other = thread_of(peer, lane);
        for (uint32_t i = threads_[other].next; i < threads_[other].end; ++i) {
          const Op& later = programs_[peer].ops[lane_ops_[i]];
          if (later.code == OpCode::kSignal && later.signal == op.signal &&
              (later.peer == kAllRanks || later.peer == rank_of(id))) {
            return other;
          }
        }
      }
      return kNone;
    }
  }
}

// The same for a thread whose operation overwrites memory from which a message is still to be sent.
Executor::ThreadId Executor::holds_place(ThreadId id, std::string* reason) const {
  const Rank rank = rank_of(id);
  for (Rank peer = 0; peer < rank_count_; ++peer) {
    for (uint32_t lane = 0; lane < lane_count_; ++lane) {
      for (uint32_t i = channels_[channel_id(rank, peer, lane)].head; i != kNone;
           i = messages_[i].next) {
        const Message& message = messages_[i];
        if (threads_[id].blocked_place - message.src >= message.count) continue;
        *reason = fmt::format("rank {} to receive what {} sends from there", peer,
                              locate_thread(thread_of(rank, lane), message.op_index));
        return thread_of(peer, lane);
      }
    }
  }
  return kNone;
}

Flaw Executor::deadlock() const {
  ThreadId id = 0;
  while (threads_[id].next == threads_[id].end) ++id;
  // Follow the waits until a thread repeats; threads that lead to the cycle are not part of it.
  std::vector<ThreadId> path;
  std::vector<std::string> reasons;
  while (std::find(path.begin(), path.end(), id) == path.end()) {
    path.push_back(id);
    const ThreadId next = waits_for(id, &reasons.emplace_back());
    if (next == kNone || threads_[next].next == threads_[next].end) {
      const Flaw::Kind kind = Flaw::Kind::kDeadlock;
      return {
          kind, rank_of(id), op_index_of(threads_[id]),
          fmt::format("{} waits for {}, which never happens: that program has no such operation "
                      "left",
                      locate_thread(id, op_index_of(threads_[id])), reasons.back())};
    }
    id = next;
  }
  const auto start = std::find(path.begin(), path.end(), id) - path.begin();
  const size_t length = path.size() - static_cast<size_t>(start);
  std::string text = credit_ == kKeepsNothing
                         ? fmt::format("a cycle of {} waits where no message is kept: ", length)
                         : fmt::format("a cycle of {} waits at credit {}: ", length, credit_);
  constexpr size_t kShownMax = 8;
  for (size_t i = 0; i < length && i < kShownMax; ++i) {
    const ThreadId waiting = path[static_cast<size_t>(start) + i];
    text += fmt::format("{}{} waits for {}", i == 0 ? "" : "; ",
                        locate_thread(waiting, op_index_of(threads_[waiting])),
                        reasons[static_cast<size_t>(start) + i]);
  }
  if (length > kShownMax) text += fmt::format("; and {} more", length - kShownMax);
  return {Flaw::Kind::kDeadlock, rank_of(id), op_index_of(threads_[id]), text};
}

void Executor::check_end() {
  for (size_t i = 0; i < channels_.size(); ++i) {
    if (channels_[i].length == 0) continue;
    const uint32_t lane = static_cast<uint32_t>(i % lane_count_);
    const Rank receiver = static_cast<Rank>(i / lane_count_ % rank_count_);
    const Rank sender = static_cast<Rank>(i / lane_count_ / rank_count_);
    const uint32_t op_index = messages_[channels_[i].head].op_index;
    flaw_ = {Flaw::Kind::kDeadlock, sender, op_index,
             fmt::format("{}: rank {} never receives this message",
                         locate_thread(thread_of(sender, lane), op_index), receiver)};
    return;
  }
  if (clocks_) {
    check_users_memory_released();
    if (!flaw_.found() && programs_[0].collective == Collective::kBarrier) check_barrier();
  }
}

void Executor::check_users_memory_released() {
  for (Rank owner = 0; owner < rank_count_; ++owner) {
    for (ThreadId id = 0; id < threads_.size(); ++id) {
      const size_t index = size_t{owner} * threads_.size() + id;
      const uint32_t epoch = user_access_epoch_[index];
      if (epoch == 0) continue;
      bool is_known = false;
      for (uint32_t lane = 0; lane < lane_count_; ++lane) {
        is_known = is_known || clocks_->knows(thread_of(owner, lane), id, epoch);
      }
      if (is_known) continue;
      flaw_ = {Flaw::Kind::kRace, rank_of(id), user_access_op_[index],
               fmt::format("{}: rank {} may return to its user while this operation still touches "
                           "its memory: it waits for no later signal of rank {}",
                           locate_thread(id, user_access_op_[index]), owner, rank_of(id))};
      return;
    }
  }
}

void Executor::check_barrier() {
  for (Rank rank = 0; rank < rank_count_; ++rank) {
    for (Rank other = 0; other < rank_count_; ++other) {
      bool is_known = false;
      for (uint32_t i = 0; i < lane_count_ * lane_count_; ++i) {
        is_known = is_known || clocks_->knows(thread_of(rank, i / lane_count_),
                                              thread_of(other, i % lane_count_), 1);
      }
      if (is_known) continue;
      flaw_ = {Flaw::Kind::kValue, rank, Flaw::kNoOp,
               fmt::format("rank {} leaves the barrier without knowing that rank {} has come", rank,
                           other)};
      return;
    }
  }
}

}  // namespace weir::sched
