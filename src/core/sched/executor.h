// SPDX-License-Identifier: Apache-2.0
// Executor: one symbolic execution of all ranks' programs, with a given credit or over a transport
// that keeps no message for its receiver. It is the core of verify.h, which checks the result. Used
// by one thread. Programs must have passed validate.h.
//
// Where nothing is kept, a lane continues after a send at once, but the memory of the send is not
// written before the message has been received; a receive puts its message aside and then waits for
// the sends that read its own memory. Each message holds one chunk. engine::LaneRun does the same
// over a transport that keeps nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/sched/expression.h"
#include "core/sched/happens_before.h"
#include "core/sched/layout.h"
#include "core/sched/program.h"
#include "core/sched/validate.h"

namespace weir::sched {

class Executor {
 public:
  static constexpr uint32_t kKeepsNothing = 0;  // as a credit

  // The arguments must outlive the executor.
  Executor(std::span<const Program> programs, const Layout& layout, uint32_t credit);

  // Before `run`, which then sets (*chunks)[rank] to that program's moved_chunks.
  void note_moved_chunks(std::vector<std::vector<uint32_t>>* chunks);

  // Runs to the end or to the first flaw.
  Flaw run();

  const Expression& at(Layout::Place place) const { return values_[place]; }
  // "last written by rank 1 op 4 (…)", or "never written".
  std::string last_writer(Layout::Place place) const;
  uint64_t message_count() const { return message_count_; }

 private:
  using ThreadId = uint32_t;
  static constexpr uint32_t kNone = 0xffffffffu;

  // One lane of one rank.
  struct Thread {
    uint32_t next = 0;  // index into lane_ops_
    uint32_t end = 0;
    uint32_t wait_cursor = 0;  // first peer not yet seen by a wait for all
    uint32_t blocked_channel = kNone;
    uint32_t blocked_peer = kNone;                   // whose signal a wait lacks
    Layout::Place blocked_place = Layout::kNowhere;  // that a message is still to be sent from
    uint32_t part = 0;                               // of a receive: messages taken so far
    uint32_t aside = kNone;                          // message that this receive has taken
    bool queued = false;
  };
  struct Channel {
    uint32_t head = kNone;  // message
    uint32_t tail = kNone;
    uint32_t length = 0;
  };
  struct Message {
    uint32_t first_value = 0;  // in message_values_
    uint32_t count = 0;
    uint32_t next = kNone;
    HappensBefore::Snapshot snapshot = 0;
    uint32_t op_index = 0;
    Layout::Place src = Layout::kNowhere;  // where nothing is kept: read until it is received
  };
  // A signal that was given, for the clock it carries.
  struct GivenSignal {
    uint32_t target;  // rank or kAllRanks
    HappensBefore::Snapshot snapshot;
  };
  struct SignalLog {
    uint32_t lane = kNone;
    std::vector<GivenSignal> given;
  };

  Rank rank_of(ThreadId thread) const { return thread / lane_count_; }
  ThreadId thread_of(Rank rank, uint32_t lane) const { return rank * lane_count_ + lane; }
  uint32_t op_index_of(const Thread& thread) const { return lane_ops_[thread.next]; }
  const Op& op_of(ThreadId id) const {
    return programs_[rank_of(id)].ops[lane_ops_[threads_[id].next]];
  }
  Channel& channel(Rank sender, Rank receiver, uint32_t lane) {
    return channels_[(size_t{sender} * rank_count_ + receiver) * lane_count_ + lane];
  }
  uint32_t channel_id(Rank sender, Rank receiver, uint32_t lane) const {
    return (sender * rank_count_ + receiver) * lane_count_ + lane;
  }
  size_t counter_index(Rank sender, Rank receiver, uint32_t signal) const {
    return (size_t{sender} * rank_count_ + receiver) * signal_count_ + signal;
  }

  bool needs_clocks() const;
  void fill_inputs();
  void fill_nodes();
  void wake(ThreadId id);
  void wake_waiting_for_signal(Rank receiver, Rank sender);
  void run_thread(ThreadId id);
  // Executes the next operation; false when it must wait (or a flaw was found).
  bool step(ThreadId id);
  bool do_send(ThreadId id, const Op& op);
  void push_message(ThreadId id, const Op& op, Layout::Place src, uint32_t count);
  bool do_recv(ThreadId id, const Op& op);
  uint32_t take_message(ThreadId id, const Op& op);
  void free_message(uint32_t index);
  bool receive_by_parts(ThreadId id, const Op& op);
  bool fits(ThreadId id, const Op& op, const Message& message);
  // Whether all messages that read these places have been received.
  bool may_overwrite(ThreadId id, Layout::Place place, uint32_t count);
  bool do_copy(ThreadId id, const Op& op);
  bool do_reduce(ThreadId id, const Op& op);
  bool do_reduce_tree(ThreadId id, const Op& op);
  bool do_signal(ThreadId id, const Op& op);
  bool do_wait(ThreadId id, const Op& op);
  bool see_signal(ThreadId id, const Op& op, Rank peer);
  bool touch_user_memory(ThreadId id, const Ref& ref);
  // Check the access and, for reads, that the place was written; false after a flaw.
  bool on_read(ThreadId id, const Ref& ref, Layout::Place place, uint32_t index);
  bool on_write(ThreadId id, const Ref& ref, Layout::Place place, uint32_t index,
                const Expression& value);
  void note_moved(ThreadId id, uint32_t index, uint32_t chunk) {
    if (moved_ == nullptr) return;
    const Rank rank = rank_of(id);
    (*moved_)[rank][first_moved_[rank][op_index_of(threads_[id])] + index] = chunk;
  }
  bool fail(Flaw::Kind kind, ThreadId id, const std::string& text);
  bool fail_race(ThreadId id, const Ref& ref, uint32_t index, bool is_write,
                 const HappensBefore::Conflict& conflict);
  std::string locate_thread(ThreadId id, uint32_t op_index) const;
  Flaw deadlock() const;
  ThreadId waits_for(ThreadId id, std::string* reason) const;
  ThreadId holds_place(ThreadId id, std::string* reason) const;
  void check_end();
  void check_users_memory_released();
  void check_barrier();

  std::span<const Program> programs_;
  const Layout& layout_;
  uint32_t credit_;
  Rank rank_count_;
  uint32_t lane_count_;
  uint32_t signal_count_;

  std::vector<uint32_t> lane_ops_;  // op indices, thread by thread
  std::vector<Thread> threads_;
  std::vector<ThreadId> ready_;
  std::vector<Channel> channels_;
  std::vector<Message> messages_;
  uint32_t free_messages_ = kNone;
  std::vector<Expression> message_values_;
  std::vector<std::vector<uint32_t>> free_values_;  // by log2 of capacity
  std::vector<uint32_t> counters_;
  std::vector<SignalLog> signal_logs_;  // by (sender, signal)
  std::vector<Expression> values_;
  std::vector<uint32_t> writer_thread_;
  std::vector<uint32_t> writer_op_;
  std::vector<uint32_t> readers_;  // by place, where nothing is kept: messages not yet received
  std::unique_ptr<HappensBefore> clocks_;
  std::vector<uint32_t> user_access_epoch_;  // by (owner, thread), of accesses by other ranks
  std::vector<uint32_t> user_access_op_;
  uint64_t message_count_ = 0;
  std::vector<std::vector<uint32_t>>* moved_ = nullptr;
  std::vector<std::vector<size_t>> first_moved_;  // by rank and operation, into *moved_
  Flaw flaw_;
};

}  // namespace weir::sched
