// SPDX-License-Identifier: Apache-2.0
#include "core/sched/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/sched/print.h"

namespace weir::sched {

Executor::Executor(std::span<const Program> programs, const Layout& layout, uint32_t credit)
    : programs_(programs),
      layout_(layout),
      credit_(credit),
      rank_count_(programs[0].rank_count),
      lane_count_(programs[0].shape.lane_count),
      signal_count_(programs[0].shape.signal_count),
      threads_(size_t{rank_count_} * lane_count_),
      channels_(size_t{rank_count_} * rank_count_ * lane_count_),
      free_values_(33),
      counters_(size_t{rank_count_} * rank_count_ * signal_count_),
      signal_logs_(size_t{rank_count_} * signal_count_),
      values_(layout.place_count()),
      writer_thread_(layout.place_count(), kNone),
      writer_op_(layout.place_count(), kNone) {
  size_t op_count = 0;
  for (const Program& program : programs_) op_count += program.ops.size();
  lane_ops_.reserve(op_count);
  for (ThreadId id = 0; id < threads_.size(); ++id) {
    Thread& thread = threads_[id];
    const Program& program = programs_[rank_of(id)];
    thread.next = static_cast<uint32_t>(lane_ops_.size());
    for (uint32_t i = 0; i < program.ops.size(); ++i) {
      if (program.ops[i].lane == id % lane_count_) lane_ops_.push_back(i);
    }
    thread.end = static_cast<uint32_t>(lane_ops_.size());
  }
  if (credit_ == kKeepsNothing) readers_.resize(layout.place_count());
  if (needs_clocks()) {
    clocks_ = std::make_unique<HappensBefore>(static_cast<uint32_t>(threads_.size()),
                                              layout.place_count());
    user_access_epoch_.resize(size_t{rank_count_} * threads_.size());
    user_access_op_.resize(user_access_epoch_.size());
  }
  fill_inputs();
}

// With one lane per rank and no memory of peers in use, nothing can race.
bool Executor::needs_clocks() const {
  if (lane_count_ > 1 || programs_[0].collective == Collective::kBarrier) return true;
  for (const Program& program : programs_) {
    for (const Op& op : program.ops) {
      switch (op.code) {
        case OpCode::kSignal:
        case OpCode::kWait:
          return true;
        case OpCode::kCopy:
          if (op.src.rank != program.rank || op.dst.rank != program.rank) return true;
          break;
        case OpCode::kReduce:
          for (uint32_t i = 0; i < op.operand_count; ++i) {
            if (program.operands[op.first_operand + i].rank != program.rank) return true;
          }
          break;
        case OpCode::kSend:
        case OpCode::kRecv:
          break;
      }
    }
  }
  return false;
}

void Executor::note_moved_chunks(std::vector<std::vector<uint32_t>>* chunks) {
  moved_ = chunks;
  moved_->assign(rank_count_, {});
  first_moved_.assign(rank_count_, {});
  for (Rank rank = 0; rank < rank_count_; ++rank) {
    std::vector<uint32_t>& moved = (*moved_)[rank];
    for (const Op& op : programs_[rank].ops) {
      first_moved_[rank].push_back(moved.size());
      if (op.code == OpCode::kSignal || op.code == OpCode::kWait) continue;
      // A copy of user memory onto itself moves nothing, and its chunk is known by name.
      const Ref& named = op.code == OpCode::kCopy ? op.dst : Ref{.space = Space::kScratch};
      for (uint32_t i = 0; i < op.count; ++i) {
        moved.push_back(named.space == Space::kOutput ? named.chunk + i : Expression::kNothing);
      }
    }
  }
}

void Executor::fill_inputs() {
  const Program& program = programs_[0];
  if (program.shape.leaf_count > 0) return fill_nodes();
  const uint32_t chunk_count = program.shape.chunk_count;
  for (Rank rank = 0; rank < rank_count_; ++rank) {
    // Only an all_to_all grid is larger than what one rank may hold.
    const bool is_row = program.collective == Collective::kAllToAll;
    const uint32_t row = chunk_count / rank_count_;
    const uint32_t first = is_row ? rank * row : 0;
    const uint32_t last = is_row ? first + row : chunk_count;
    for (uint32_t chunk = first; chunk < last; ++chunk) {
      const Layout::Place place = layout_.find({chunk, rank, Space::kInput}, 1);
      if (place != Layout::kNowhere) values_[place] = leaf(rank, chunk);
    }
  }
}

void Executor::fill_nodes() {
  const Shape& shape = programs_[0].shape;
  for (Rank rank = 0; rank < rank_count_; ++rank) {
    uint8_t index = 0;
    for (const LeafNode& node : leaf_nodes_of(shape.leaf_count, rank_count_, rank)) {
      Expression value = node_expression(shape.leaf_count, node, 0);
      for (uint32_t chunk = 0; chunk < shape.chunk_count; ++chunk) {
        const Ref ref{.chunk = chunk, .rank = rank, .space = Space::kInput, .node = index};
        value.chunk = chunk;
        values_[layout_.find(ref, 1)] = value;
      }
      ++index;
    }
  }
}

void Executor::wake(ThreadId id) {
  Thread& thread = threads_[id];
  if (thread.queued) return;
  thread.queued = true;
  ready_.push_back(id);
}

Flaw Executor::run() {
  for (ThreadId id = static_cast<ThreadId>(threads_.size()); id-- > 0;) wake(id);
  while (!ready_.empty() && !flaw_.found()) {
    const ThreadId id = ready_.back();
    ready_.pop_back();
    threads_[id].queued = false;
    run_thread(id);
  }
  if (!flaw_.found()) {
    const bool all_ended = std::all_of(threads_.begin(), threads_.end(),
                                       [](const Thread& t) { return t.next == t.end; });
    if (!all_ended) flaw_ = deadlock();
  }
  if (!flaw_.found()) check_end();
  return flaw_;
}

void Executor::run_thread(ThreadId id) {
  Thread& thread = threads_[id];
  thread.blocked_channel = kNone;
  thread.blocked_peer = kNone;
  thread.blocked_place = Layout::kNowhere;
  while (thread.next != thread.end) {
    if (!step(id)) return;
    ++thread.next;
    thread.wait_cursor = 0;
    thread.part = 0;
  }
}

bool Executor::step(ThreadId id) {
  const Op& op = op_of(id);
  switch (op.code) {
    case OpCode::kSend:
      return do_send(id, op);
    case OpCode::kRecv:
      return do_recv(id, op);
    case OpCode::kCopy:
      return do_copy(id, op);
    case OpCode::kReduce:
      return do_reduce(id, op);
    case OpCode::kSignal:
      return do_signal(id, op);
    case OpCode::kWait:
      return do_wait(id, op);
  }
  return false;
}

bool Executor::do_send(ThreadId id, const Op& op) {
  const Rank rank = rank_of(id);
  const bool keeps = credit_ != kKeepsNothing;
  if (keeps && channel(rank, op.peer, op.lane).length >= credit_) {
    threads_[id].blocked_channel = channel_id(rank, op.peer, op.lane);
    return false;
  }
  const Layout::Place src = op.count > 0 ? layout_.find(op.src, op.count) : Layout::kNowhere;
  for (uint32_t i = 0; i < op.count; ++i) {
    if (!on_read(id, op.src, src + i, i)) return false;
    note_moved(id, i, values_[src + i].chunk);
  }
  if (keeps || op.count == 0) {
    push_message(id, op, src, op.count);
  } else {
    for (uint32_t i = 0; i < op.count; ++i) push_message(id, op, src + i, 1);
  }
  const ThreadId receiver = thread_of(op.peer, op.lane);
  if (threads_[receiver].blocked_channel == channel_id(rank, op.peer, op.lane)) wake(receiver);
  return true;
}

void Executor::push_message(ThreadId id, const Op& op, Layout::Place src, uint32_t count) {
  uint32_t index = free_messages_;
  if (index == kNone) {
    index = static_cast<uint32_t>(messages_.size());
    messages_.emplace_back();
  } else {
    free_messages_ = messages_[index].next;
  }
  Message& message = messages_[index];
  message.count = count;
  message.next = kNone;
  message.op_index = op_index_of(threads_[id]);
  message.src = src;
  if (count > 0) {
    const int size_class = std::bit_width(count - 1);
    std::vector<uint32_t>& free = free_values_[static_cast<size_t>(size_class)];
    if (free.empty()) {
      message.first_value = static_cast<uint32_t>(message_values_.size());
      message_values_.resize(message_values_.size() + (size_t{1} << size_class));
    } else {
      message.first_value = free.back();
      free.pop_back();
    }
    for (uint32_t i = 0; i < count; ++i) {
      message_values_[message.first_value + i] = values_[src + i];
      if (!readers_.empty()) ++readers_[src + i];
    }
  }
  if (clocks_) message.snapshot = clocks_->release(id);
  Channel& to = channel(rank_of(id), op.peer, op.lane);
  if (to.head == kNone) {
    to.head = index;
  } else {
    messages_[to.tail].next = index;
  }
  to.tail = index;
  ++to.length;
  ++message_count_;
}

// Removes the next message from the channel; kNone: there is none.
uint32_t Executor::take_message(ThreadId id, const Op& op) {
  const Rank rank = rank_of(id);
  Channel& from = channel(op.peer, rank, op.lane);
  if (from.length == 0) {
    threads_[id].blocked_channel = channel_id(op.peer, rank, op.lane);
    return kNone;
  }
  const uint32_t index = from.head;
  const Message& message = messages_[index];
  from.head = message.next;
  --from.length;
  const ThreadId sender = thread_of(op.peer, op.lane);
  if (threads_[sender].blocked_channel == channel_id(op.peer, rank, op.lane)) wake(sender);
  if (readers_.empty()) return index;
  for (uint32_t i = 0; i < message.count; ++i) --readers_[message.src + i];
  for (uint32_t lane = 0; lane < lane_count_; ++lane) {
    const ThreadId waiting = thread_of(op.peer, lane);
    if (threads_[waiting].blocked_place != Layout::kNowhere) wake(waiting);
  }
  return index;
}

void Executor::free_message(uint32_t index) {
  Message& message = messages_[index];
  if (message.count > 0) {
    const int size_class = std::bit_width(message.count - 1);
    free_values_[static_cast<size_t>(size_class)].push_back(message.first_value);
  }
  message.next = free_messages_;
  free_messages_ = index;
}

bool Executor::do_recv(ThreadId id, const Op& op) {
  if (credit_ == kKeepsNothing) return receive_by_parts(id, op);
  const uint32_t index = take_message(id, op);
  if (index == kNone) return false;
  const Message& message = messages_[index];
  if (message.count != op.count) {
    return fail(
        Flaw::Kind::kValue, id,
        fmt::format("receives {} chunks, but the message that comes, {}, has {}", op.count,
                    locate_thread(thread_of(op.peer, op.lane), message.op_index), message.count));
  }
  if (!fits(id, op, message)) return false;
  if (clocks_) {
    clocks_->acquire(id, message.snapshot);
    clocks_->drop(message.snapshot);
  }
  if (op.count > 0) {
    const Layout::Place dst = layout_.find(op.dst, op.count);
    for (uint32_t i = 0; i < op.count; ++i) {
      const Expression& value = message_values_[message.first_value + i];
      note_moved(id, i, value.chunk);
      if (!on_write(id, op.dst, dst + i, i, value)) return false;
    }
  }
  free_message(index);
  return true;
}

// With leaves, results have another type than partial results.
bool Executor::fits(ThreadId id, const Op& op, const Message& message) {
  if (programs_[0].shape.leaf_count == 0 || op.count == 0) return true;
  const Op& send = programs_[op.peer].ops[message.op_index];
  if ((send.src.space == Space::kOutput) == (op.dst.space == Space::kOutput)) return true;
  return fail(Flaw::Kind::kValue, id,
              fmt::format("receives a {} result, which {} has sent, as a {} one",
                          send.src.space == Space::kOutput ? "rounded" : "partial",
                          locate_thread(thread_of(op.peer, op.lane), message.op_index),
                          op.dst.space == Space::kOutput ? "rounded" : "partial"));
}

bool Executor::receive_by_parts(ThreadId id, const Op& op) {
  Thread& thread = threads_[id];
  const uint32_t part_count = std::max(1u, op.count);
  for (; thread.part < part_count; ++thread.part) {
    if (thread.aside == kNone) thread.aside = take_message(id, op);
    if (thread.aside == kNone) return false;
    const Message& message = messages_[thread.aside];
    const Layout::Place dst =
        op.count > 0 ? layout_.find(op.dst, op.count) + thread.part : Layout::kNowhere;
    if (op.count > 0 && !may_overwrite(id, dst, 1)) return false;
    if (clocks_) {
      clocks_->acquire(id, message.snapshot);
      clocks_->drop(message.snapshot);
    }
    if (op.count > 0 &&
        !on_write(id, op.dst, dst, thread.part, message_values_[message.first_value])) {
      return false;
    }
    free_message(thread.aside);
    thread.aside = kNone;
  }
  return true;
}

bool Executor::may_overwrite(ThreadId id, Layout::Place place, uint32_t count) {
  if (readers_.empty()) return true;
  for (uint32_t i = 0; i < count; ++i) {
    if (readers_[place + i] == 0) continue;
    threads_[id].blocked_place = place + i;
    return false;
  }
  return true;
}

bool Executor::do_copy(ThreadId id, const Op& op) {
  const Layout::Place src = layout_.find(op.src, op.count);
  const Layout::Place dst = layout_.find(op.dst, op.count);
  if (src == dst) return true;
  if (!may_overwrite(id, dst, op.count)) return false;
  for (uint32_t i = 0; i < op.count; ++i) {
    if (!on_read(id, op.src, src + i, i)) return false;
    note_moved(id, i, values_[src + i].chunk);
    if (!on_write(id, op.dst, dst + i, i, values_[src + i])) return false;
  }
  return true;
}

bool Executor::do_reduce(ThreadId id, const Op& op) {
  if (op.tree) return do_reduce_tree(id, op);
  const Program& program = programs_[rank_of(id)];
  const Layout::Place dst = layout_.find(op.dst, op.count);
  if (!may_overwrite(id, dst, op.count)) return false;
  for (uint32_t i = 0; i < op.count; ++i) {
    FoldBuilder fold;
    for (uint32_t k = 0; k < op.operand_count; ++k) {
      const Ref& operand = program.operands[op.first_operand + k];
      const Layout::Place place = layout_.find(operand, op.count) + i;
      if (!on_read(id, operand, place, i)) return false;
      const Expression& value = values_[place];
      if (k > 0 && value.chunk != fold.result().chunk) {
        return fail(Flaw::Kind::kValue, id,
                    fmt::format("operand {} holds chunk {} and those before it chunk {}", k,
                                value.chunk, fold.result().chunk));
      }
      fold.add(value);
    }
    note_moved(id, i, fold.result().chunk);
    if (!on_write(id, op.dst, dst + i, i, fold.result())) return false;
  }
  return true;
}

bool Executor::do_reduce_tree(ThreadId id, const Op& op) {
  const Program& program = programs_[rank_of(id)];
  const Layout::Place dst = layout_.find(op.dst, op.count);
  if (!may_overwrite(id, dst, op.count)) return false;
  for (uint32_t i = 0; i < op.count; ++i) {
    TreeBuilder tree;
    for (uint32_t k = 0; k < op.operand_count; ++k) {
      const Ref& operand = program.operands[op.first_operand + k];
      const Layout::Place place = layout_.find(operand, op.count) + i;
      if (!on_read(id, operand, place, i)) return false;
      const Expression& value = values_[place];
      if (k > 0 && value.chunk != tree.result().chunk) {
        return fail(Flaw::Kind::kValue, id,
                    fmt::format("operand {} holds chunk {} and those before it chunk {}", k,
                                value.chunk, tree.result().chunk));
      }
      tree.add(value, operand.folds);
    }
    const bool is_result = op.dst.space == Space::kOutput;
    const Expression value = is_result ? rounded(tree.result()) : tree.result();
    note_moved(id, i, value.chunk);
    if (!on_write(id, op.dst, dst + i, i, value)) return false;
  }
  return true;
}

bool Executor::do_signal(ThreadId id, const Op& op) {
  const Rank rank = rank_of(id);
  SignalLog& log = signal_logs_[size_t{rank} * signal_count_ + op.signal];
  if (log.lane != kNone && log.lane != op.lane) {
    return fail(Flaw::Kind::kRace, id,
                fmt::format("signal {} is also given by lane {}: which of the two a peer has seen "
                            "cannot be known; use one index per lane",
                            op.signal, log.lane));
  }
  log.lane = op.lane;
  log.given.push_back({op.peer, clocks_->release(id)});
  if (op.peer != kAllRanks) {
    ++counters_[counter_index(rank, op.peer, op.signal)];
    wake_waiting_for_signal(op.peer, rank);
    return true;
  }
  for (Rank peer = 0; peer < rank_count_; ++peer) {
    ++counters_[counter_index(rank, peer, op.signal)];
    wake_waiting_for_signal(peer, rank);
  }
  return true;
}

void Executor::wake_waiting_for_signal(Rank receiver, Rank sender) {
  for (uint32_t lane = 0; lane < lane_count_; ++lane) {
    const ThreadId waiting = thread_of(receiver, lane);
    if (threads_[waiting].blocked_peer == sender) wake(waiting);
  }
}

bool Executor::do_wait(ThreadId id, const Op& op) {
  if (op.peer != kAllRanks) return see_signal(id, op, op.peer);
  Thread& thread = threads_[id];
  for (; thread.wait_cursor < rank_count_; ++thread.wait_cursor) {
    if (thread.wait_cursor == rank_of(id)) continue;
    if (!see_signal(id, op, thread.wait_cursor)) return false;
  }
  return true;
}

bool Executor::see_signal(ThreadId id, const Op& op, Rank peer) {
  const Rank rank = rank_of(id);
  if (counters_[counter_index(peer, rank, op.signal)] < op.value) {
    threads_[id].blocked_peer = peer;
    return false;
  }
  uint32_t seen = 0;
  for (const GivenSignal& given : signal_logs_[size_t{peer} * signal_count_ + op.signal].given) {
    if (given.target != kAllRanks && given.target != rank) continue;
    if (++seen == op.value) {
      clocks_->acquire(id, given.snapshot);
      break;
    }
  }
  return true;
}

bool Executor::touch_user_memory(ThreadId id, const Ref& ref) {
  const Rank rank = rank_of(id);
  if (ref.rank == rank || ref.space > Space::kOutput) return true;
  bool has_started = false;
  for (uint32_t lane = 0; lane < lane_count_; ++lane) {
    has_started = has_started || clocks_->knows(id, thread_of(ref.rank, lane), 1);
  }
  if (!has_started) {
    return fail(Flaw::Kind::kRace, id,
                fmt::format("touches the user's memory of rank {} before a signal of rank {} says "
                            "that it has entered the call",
                            ref.rank, ref.rank));
  }
  const size_t index = size_t{ref.rank} * threads_.size() + id;
  user_access_epoch_[index] = clocks_->now(id);
  user_access_op_[index] = op_index_of(threads_[id]);
  return true;
}

bool Executor::on_read(ThreadId id, const Ref& ref, Layout::Place place, uint32_t index) {
  if (clocks_) {
    const auto conflict = clocks_->read(id, place, op_index_of(threads_[id]));
    if (conflict.found) return fail_race(id, ref, index, false, conflict);
    if (!touch_user_memory(id, ref)) return false;
  }
  if (!values_[place].holds_nothing()) return true;
  return fail(Flaw::Kind::kValue, id,
              fmt::format("reads {}[{}] of rank {}, which {}", name_of(ref.space),
                          ref.chunk + index, ref.rank,
                          ref.rank == rank_of(id)
                              ? "nothing has been written to"
                              : "nothing before it is known to have written: a wait is missing"));
}

bool Executor::on_write(ThreadId id, const Ref& ref, Layout::Place place, uint32_t index,
                        const Expression& value) {
  const uint32_t op_index = op_index_of(threads_[id]);
  if (clocks_) {
    const auto conflict = clocks_->write(id, place, op_index);
    if (conflict.found) return fail_race(id, ref, index, true, conflict);
    if (!touch_user_memory(id, ref)) return false;
  }
  if (ref.space == Space::kOutput && value.chunk != ref.chunk + index) {
    return fail(Flaw::Kind::kValue, id,
                fmt::format("writes chunk {} to {}[{}]", value.chunk, name_of(ref.space),
                            ref.chunk + index));
  }
  values_[place] = value;
  writer_thread_[place] = id;
  writer_op_[place] = op_index;
  return true;
}

}  // namespace weir::sched
