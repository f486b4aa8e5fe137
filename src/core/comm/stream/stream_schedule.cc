// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace weir::comm {

namespace {

using sched::Op;
using sched::OpCode;
using sched::Program;
using sched::Ref;
using sched::Space;
using Buffer = SchedulePlace::Buffer;

// What a chunk or slot of the schedule holds, and where.
struct Value {
  SchedulePlace place;
  uint32_t ranks = 1;  // that have contributed
};

struct Message {
  uint32_t number = 0;
  size_t step = 0;  // in which it is told
  std::vector<Value> values;
};

// One execution of all ranks.
class Execution {
 public:
  explicit Execution(std::vector<Program> programs) : programs_(std::move(programs)) {
    ranks_.resize(programs_.size());
    for (Rank rank = 0; rank < programs_.size(); ++rank) {
      OfRank& it = ranks_[rank];
      it.lanes.resize(programs_[rank].shape.lane_count);
      for (uint32_t i = 0; i < programs_[rank].ops.size(); ++i) {
        const Op& op = programs_[rank].ops[i];
        it.lanes[op.lane].push_back(i);
        if (op.code != OpCode::kSend || op.src.space != Space::kOutput) continue;
        for (uint32_t k = 0; k < op.count; ++k) it.sent_output.insert(op.src.chunk + k);
      }
    }
  }

  Status run() {
    for (bool any = true; any;) {
      any = false;
      for (Rank rank = 0; rank < ranks_.size(); ++rank) {
        ranks_[rank].steps.emplace_back();
        for (bool moved = true; moved;) {
          moved = false;
          for (std::deque<uint32_t>& lane : ranks_[rank].lanes) {
            while (!lane.empty() && advance(rank, programs_[rank].ops[lane.front()])) {
              lane.pop_front();
              moved = any = true;
            }
            WEIR_RETURN_IF_ERROR(status_);
          }
        }
      }
      ++step_;
    }
    for (OfRank& it : ranks_) {
      it.steps.pop_back();  // nothing moved in it
      const auto left = [](const auto& lane) { return !lane.empty(); };
      if (std::any_of(it.lanes.begin(), it.lanes.end(), left)) {
        return Status(Code::kInvalidArgument, "the programs wait for each other");
      }
    }
    return {};
  }

  std::vector<std::vector<ScheduleOp>> take_steps(Rank rank) {
    return std::move(ranks_[rank].steps);
  }
  uint32_t slot_count() const {
    uint32_t most = 0;
    for (const OfRank& it : ranks_) most = std::max(most, it.slots);
    return most;
  }
  std::vector<Rank> readers(Rank rank) const {
    return {ranks_[rank].readers.begin(), ranks_[rank].readers.end()};
  }
  std::vector<Rank> writers(Rank rank) const {
    return {ranks_[rank].writers.begin(), ranks_[rank].writers.end()};
  }

 private:
  struct OfRank {
    std::vector<std::deque<uint32_t>> lanes;  // operations that are left
    std::map<std::pair<Space, uint32_t>, Value> values;
    std::set<uint32_t> sent_output;  // chunks that are sent at some time
    std::map<uint32_t, uint32_t> signals;
    uint32_t slots = 0;
    uint32_t received = 0;
    std::set<Rank> readers, writers;
    std::vector<std::vector<ScheduleOp>> steps;
  };

  static Ref next(Ref ref, uint32_t by) {
    ref.chunk += by;
    return ref;
  }

  ScheduleOp& add(Rank rank, ScheduleOp::Kind kind) {
    ScheduleOp& op = ranks_[rank].steps.back().emplace_back();
    op.kind = kind;
    return op;
  }

  Value value_of(Rank rank, const Ref& ref) {
    const auto found = ranks_[rank].values.find({ref.space, ref.chunk});
    if (found != ranks_[rank].values.end()) return found->second;
    // A program that reads what nothing has written does not pass the verifier.
    const Buffer buffer = ref.space == Space::kInput ? Buffer::kInput : Buffer::kOutput;
    return {{buffer, rank, ref.chunk}, 1};
  }

  SchedulePlace new_slot(Rank rank) { return {Buffer::kSlot, rank, ranks_[rank].slots++}; }

  void copy(Rank rank, const SchedulePlace& to, const SchedulePlace& from, uint32_t chunk) {
    ScheduleOp& op = add(rank, ScheduleOp::Kind::kCopy);
    op.to = to;
    op.from = {from};
    op.chunk = chunk;
  }

  bool is_own_slot(Rank rank, const Value& value) const {
    return value.place.buffer == Buffer::kSlot && value.place.rank == rank;
  }

  // False: it must wait.
  bool advance(Rank rank, const Op& op) {
    switch (op.code) {
      case OpCode::kSend:
        return send(rank, op);
      case OpCode::kRecv:
        return receive(rank, op);
      case OpCode::kCopy:
      case OpCode::kReduce:
        if (op.dst.space == Space::kStaging || op.dst.rank != rank || op.tree) return refuse();
        return op.code == OpCode::kCopy ? move(rank, op) : reduce(rank, op);
      case OpCode::kSignal:
        if (op.peer != rank) return refuse();
        ++ranks_[rank].signals[op.signal];
        return true;
      case OpCode::kWait:
        if (op.peer != rank) return refuse();
        return ranks_[rank].signals[op.signal] >= op.value;
    }
    return refuse();
  }

  bool refuse() {
    status_ = Status(Code::kUnsupported, "the programs use memory of other ranks");
    return false;
  }

  bool send(Rank rank, const Op& op) {
    Message message;
    message.step = step_;
    for (uint32_t k = 0; k < op.count; ++k) {
      const Ref src = next(op.src, k);
      Value value = value_of(rank, src);
      if (!is_own_slot(rank, value)) {
        const SchedulePlace slot = new_slot(rank);
        copy(rank, slot, value.place, chunk_of(value));
        lengths_[{rank, slot.index}] = chunk_of(value);
        value.place = slot;
        // What has a name in Output or Input stays there, too.
        ranks_[rank].values[{src.space, src.chunk}] = value;
      }
      message.values.push_back(value);
    }
    OfRank& reader = ranks_[op.peer];
    message.number = reader.received++;
    if (reader.received > StreamSchedule::kMessagesMax) {
      status_ = Status(Code::kUnsupported, fmt::format("a rank gets more than {} messages",
                                                       StreamSchedule::kMessagesMax));
      return false;
    }
    reader.writers.insert(rank);
    ranks_[rank].readers.insert(op.peer);
    ScheduleOp& tell = add(rank, ScheduleOp::Kind::kTell);
    tell.reader = op.peer;
    tell.message = message.number;
    channels_[{rank, op.peer, op.lane}].push_back(std::move(message));
    return true;
  }

  bool receive(Rank rank, const Op& op) {
    auto& channel = channels_[{op.peer, rank, op.lane}];
    if (channel.empty() || channel.front().step >= step_) return false;
    const Message message = std::move(channel.front());
    channel.pop_front();
    ScheduleOp& wait = add(rank, ScheduleOp::Kind::kWait);
    wait.reader = rank;
    wait.message = message.number;
    for (uint32_t k = 0; k < op.count; ++k) {
      const Ref dst = next(op.dst, k);
      Value value = message.values[k];
      if (dst.space == Space::kOutput) {
        const SchedulePlace to{Buffer::kOutput, rank, dst.chunk};
        copy(rank, to, value.place, dst.chunk);
        value.place = to;
      }
      ranks_[rank].values[{dst.space, dst.chunk}] = value;
    }
    return true;
  }

  bool move(Rank rank, const Op& op) {
    if (op.src.rank != rank || op.src.space == Space::kStaging) return refuse();
    for (uint32_t k = 0; k < op.count; ++k) {
      const Ref dst = next(op.dst, k);
      Value value = value_of(rank, next(op.src, k));
      if (dst.space == Space::kOutput) {
        copy(rank, {Buffer::kOutput, rank, dst.chunk}, value.place, dst.chunk);
        if (!is_own_slot(rank, value)) value.place = {Buffer::kOutput, rank, dst.chunk};
      } else if (!is_own_slot(rank, value)) {
        const SchedulePlace slot = new_slot(rank);
        copy(rank, slot, value.place, chunk_of(value));
        lengths_[{rank, slot.index}] = chunk_of(value);
        value.place = slot;
      }
      ranks_[rank].values[{dst.space, dst.chunk}] = value;
    }
    return true;
  }

  bool reduce(Rank rank, const Op& op) {
    const Program& program = programs_[rank];
    for (uint32_t k = 0; k < op.count; ++k) {
      const Ref dst = next(op.dst, k);
      ScheduleOp folded;
      folded.kind = ScheduleOp::Kind::kReduce;
      uint32_t contributions = 0;
      for (uint32_t i = 0; i < op.operand_count; ++i) {
        const Ref operand = next(program.operands[op.first_operand + i], k);
        if (operand.rank != rank || operand.space == Space::kStaging) return refuse();
        const Value value = value_of(rank, operand);
        contributions += value.ranks;
        folded.from.push_back(value.place);
        folded.chunk = chunk_of(value);
      }
      folded.complete = contributions == programs_.size();
      const bool is_output = dst.space == Space::kOutput;
      Value value{{Buffer::kOutput, rank, dst.chunk}, contributions};
      folded.to = value.place;
      if (!is_output || ranks_[rank].sent_output.contains(dst.chunk)) {
        value.place = new_slot(rank);
        lengths_[{rank, value.place.index}] = folded.chunk;
        folded.keeps = is_output;
        folded.kept = value.place.index;
        if (!is_output) folded.to = value.place;
      }
      ranks_[rank].steps.back().push_back(std::move(folded));
      ranks_[rank].values[{dst.space, dst.chunk}] = value;
    }
    return true;
  }

  // A chunk that is as long as the value.
  uint32_t chunk_of(const Value& value) const {
    const SchedulePlace& at = value.place;
    return at.buffer == Buffer::kSlot ? lengths_.at({at.rank, at.index}) : at.index;
  }

  std::vector<Program> programs_;
  std::vector<OfRank> ranks_;
  std::map<std::tuple<Rank, Rank, uint8_t>, std::deque<Message>> channels_;
  std::map<std::pair<Rank, uint32_t>, uint32_t> lengths_;  // of slots: a chunk that is as long
  size_t step_ = 0;
  Status status_;
};

}  // namespace

Result<StreamSchedule> StreamSchedule::compile(const algo::Algorithm& algorithm,
                                               const algo::Problem& problem, Rank rank) {
  StreamSchedule made;
  made.name_ = algorithm.name;
  made.collective_ = problem.collective;
  made.rank_ = rank;
  made.rank_count_ = problem.rank_count;
  std::vector<Program> programs;
  for (Rank r = 0; r < problem.rank_count; ++r) {
    programs.push_back(algo::compile(algorithm, problem, r));
  }
  made.chunk_count_ = programs[0].shape.chunk_count;
  Execution execution(std::move(programs));
  const Status status = execution.run();
  if (!status.ok())
    return Status(status.code(), fmt::format("{}: {}", algorithm.name, status.text()));
  made.steps_ = execution.take_steps(rank);
  made.slot_count_ = execution.slot_count();
  made.readers_ = execution.readers(rank);
  made.writers_ = execution.writers(rank);
  return made;
}

}  // namespace weir::comm
