// SPDX-License-Identifier: Apache-2.0
#include "sched/oracle.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <random>
#include <set>
#include <tuple>

namespace weir::sched {
namespace {

struct Value {
  int64_t chunk = -1;  // -1: poison
  std::multiset<Rank> ranks;
  std::string text;
};

struct Lane {
  std::vector<uint32_t> ops;
  size_t next = 0;
};

class Oracle {
 public:
  Oracle(std::span<const Program> programs, const OracleOptions& options)
      : programs_(programs), options_(options), random_(options.seed), n_(programs[0].rank_count) {
    head_ = &programs[0];
    lanes_.resize(n_);
    entered_.assign(n_, false);
    left_.assign(n_, false);
    for (Rank rank = 0; rank < n_; ++rank) {
      lanes_[rank].resize(head_->shape.lane_count);
      for (uint32_t i = 0; i < programs[rank].ops.size(); ++i) {
        lanes_[rank][programs[rank].ops[i].lane].ops.push_back(i);
      }
    }
  }

  OracleResult run() {
    while (result_.error.empty() && advance()) {
    }
    if (result_.error.empty()) {
      for (Rank rank = 0; rank < n_; ++rank) {
        if (!left_[rank]) result_.error = "deadlock";
      }
    }
    if (result_.error.empty()) {
      for (const auto& [key, queue] : channels_) {
        if (!queue.empty()) result_.error = "a message is left over";
      }
    }
    if (result_.error.empty()) check_outputs();
    return result_;
  }

 private:
  using Address = std::tuple<Rank, int, uint64_t>;  // rank, memory, offset

  bool holds(Rank rank, Space space, uint32_t chunk) const {
    const uint32_t all = head_->shape.chunk_count;
    const bool is_root = rank == head_->root;
    const bool input = space == Space::kInput;
    switch (head_->collective) {
      case Collective::kAllReduce:
        return chunk < all;
      case Collective::kReduceScatter:
        return chunk < all && (input || chunk / (all / n_) == rank);
      case Collective::kAllGather:
        return chunk < all && (!input || chunk / (all / n_) == rank);
      case Collective::kAllToAll: {
        const uint32_t block = chunk / (all / n_ / n_);
        return chunk < all && (input ? block / n_ : block % n_) == rank;
      }
      case Collective::kBroadcast:
        return chunk < all && (!input || is_root);
      case Collective::kReduce:
        return chunk < all && (input || is_root);
      case Collective::kGather:
        return chunk < all && (input ? chunk / (all / n_) == rank : is_root);
      case Collective::kScatter:
        return chunk < all && (input ? is_root : chunk / (all / n_) == rank);
      default:
        return false;
    }
  }

  // Where the chunk lies in the user's memory, as weir.h lays it out.
  Address address(const Ref& ref, uint32_t index) const {
    const uint32_t chunk = ref.chunk + index;
    if (ref.space == Space::kScratch) return {ref.rank, 2, chunk};
    if (ref.space == Space::kStaging) return {ref.rank, 3, chunk};
    uint64_t offset = chunk;
    if (head_->collective == Collective::kAllToAll) {
      const uint32_t g = head_->shape.chunk_count / n_ / n_;
      const uint32_t block = chunk / g;
      offset = (ref.space == Space::kInput ? block % n_ : block / n_) * uint64_t{g} + chunk % g;
    }
    const bool is_shared = options_.access.in_place;
    return {ref.rank, ref.space == Space::kInput && !is_shared ? 0 : 1, offset};
  }

  bool fail(Rank rank, uint32_t op_index, const std::string& what) {
    if (result_.error.empty()) {
      result_.error = fmt::format("rank {} op {}: {}", rank, op_index, what);
    }
    return true;
  }

  bool usable(Rank self, uint32_t op_index, const Ref& ref, uint32_t index) {
    const bool is_user = ref.space == Space::kInput || ref.space == Space::kOutput;
    if (is_user && !holds(ref.rank, ref.space, ref.chunk + index)) {
      return !fail(self, op_index, "no such chunk");
    }
    if (is_user && (!entered_[ref.rank] || left_[ref.rank])) {
      return !fail(self, op_index, "touches memory of a rank outside the call");
    }
    return true;
  }

  Value read(Rank self, uint32_t op_index, const Ref& ref, uint32_t index) {
    if (!usable(self, op_index, ref, index)) return {};
    const auto found = memory_.find(address(ref, index));
    if (found == memory_.end() || found->second.chunk < 0) {
      fail(self, op_index, "reads what was not written");
      return {};
    }
    return found->second;
  }

  void write(Rank self, uint32_t op_index, const Ref& ref, uint32_t index, const Value& value) {
    if (usable(self, op_index, ref, index)) memory_[address(ref, index)] = value;
  }

  // Takes one random step that is possible; false when there is none.
  bool advance() {
    std::vector<std::pair<Rank, uint32_t>> choices;
    for (Rank rank = 0; rank < n_; ++rank) {
      if (left_[rank]) continue;
      for (uint32_t lane = 0; lane < lanes_[rank].size(); ++lane) choices.emplace_back(rank, lane);
    }
    std::shuffle(choices.begin(), choices.end(), random_);
    for (const auto& [rank, lane] : choices) {
      if (!entered_[rank]) {
        enter(rank);
        return true;
      }
      if (lanes_[rank][lane].next < lanes_[rank][lane].ops.size() && step(rank, lane)) return true;
    }
    return false;
  }

  void enter(Rank rank) {
    entered_[rank] = true;
    for (uint32_t chunk = 0; chunk < head_->shape.chunk_count; ++chunk) {
      if (!holds(rank, Space::kInput, chunk)) continue;
      memory_[address({chunk, rank, Space::kInput}, 0)] = {chunk, {rank}, std::to_string(rank)};
    }
    maybe_leave(rank);
  }

  void maybe_leave(Rank rank) {
    for (const Lane& lane : lanes_[rank]) {
      if (lane.next < lane.ops.size()) return;
    }
    if (head_->collective == Collective::kBarrier &&
        std::find(entered_.begin(), entered_.end(), false) != entered_.end()) {
      fail(rank, 0, "leaves the barrier too early");
    }
    for (uint32_t chunk = 0; chunk < head_->shape.chunk_count; ++chunk) {
      if (!holds(rank, Space::kOutput, chunk)) continue;
      outputs_[{rank, chunk}] = memory_[address({chunk, rank, Space::kOutput}, 0)];
    }
    left_[rank] = true;
    for (auto& [where, value] : memory_) {
      if (std::get<0>(where) == rank && std::get<1>(where) < 2) value = {};
    }
  }

  Value fold(Rank rank, uint32_t op_index, const Op& op, uint32_t index) {
    Value result;
    const Program& program = programs_[rank];
    for (uint32_t k = 0; k < op.operand_count; ++k) {
      const Ref& ref = program.operands[op.first_operand + k];
      const Value value = read(rank, op_index, ref, index);
      if (k == 0) {
        result = value;
        continue;
      }
      if (value.chunk != result.chunk) fail(rank, op_index, "mixes chunks");
      result.ranks.insert(value.ranks.begin(), value.ranks.end());
      result.text += "+" + value.text;
    }
    if (op.operand_count > 1) result.text = "(" + result.text + ")";
    return result;
  }

  // False when the operation must wait.
  bool step(Rank rank, uint32_t lane_index) {
    Lane& lane = lanes_[rank][lane_index];
    const uint32_t op_index = lane.ops[lane.next];
    const Op& op = programs_[rank].ops[op_index];
    switch (op.code) {
      case OpCode::kSend: {
        auto& queue = channels_[{rank, op.peer, op.lane}];
        if (queue.size() >= options_.credit) return false;
        std::vector<Value> message;
        for (uint32_t i = 0; i < op.count; ++i) message.push_back(read(rank, op_index, op.src, i));
        queue.push_back(std::move(message));
        break;
      }
      case OpCode::kRecv: {
        auto& queue = channels_[{op.peer, rank, op.lane}];
        if (queue.empty()) return false;
        const std::vector<Value> message = std::move(queue.front());
        queue.pop_front();
        if (message.size() != op.count) return fail(rank, op_index, "length of message");
        for (uint32_t i = 0; i < op.count; ++i) write(rank, op_index, op.dst, i, message[i]);
        break;
      }
      case OpCode::kCopy:
        for (uint32_t i = 0; i < op.count; ++i) {
          if (address(op.dst, i) == address(op.src, i)) continue;
          write(rank, op_index, op.dst, i, read(rank, op_index, op.src, i));
        }
        break;
      case OpCode::kReduce:
        for (uint32_t i = 0; i < op.count; ++i) {
          write(rank, op_index, op.dst, i, fold(rank, op_index, op, i));
        }
        break;
      case OpCode::kSignal:
        for (Rank peer = 0; peer < n_; ++peer) {
          if (op.peer == kAllRanks || op.peer == peer) ++counters_[{rank, peer, op.signal}];
        }
        break;
      case OpCode::kWait:
        for (Rank peer = 0; peer < n_; ++peer) {
          const bool is_asked = op.peer == kAllRanks ? peer != rank : op.peer == peer;
          if (is_asked && counters_[{peer, rank, op.signal}] < op.value) return false;
        }
        break;
    }
    ++lane.next;
    if (result_.error.empty()) maybe_leave(rank);
    return true;
  }

  void check_outputs() {
    std::multiset<Rank> everyone;
    for (Rank rank = 0; rank < n_; ++rank) everyone.insert(rank);
    const uint32_t all = head_->shape.chunk_count;
    std::map<uint32_t, std::string> text_of_chunk;
    for (const auto& [where, value] : outputs_) {
      const auto& [rank, chunk] = where;
      std::multiset<Rank> expected;
      switch (head_->collective) {
        case Collective::kAllReduce:
        case Collective::kReduceScatter:
        case Collective::kReduce:
          expected = everyone;
          break;
        case Collective::kAllGather:
        case Collective::kGather:
          expected = {chunk / (all / n_)};
          break;
        case Collective::kAllToAll:
          expected = {chunk / (all / n_ / n_) / n_};
          break;
        default:
          expected = {head_->root};
          break;
      }
      if (value.chunk != int64_t{chunk} || value.ranks != expected) {
        result_.error = fmt::format("rank {}: chunk {} holds {}", rank, chunk, value.text);
        return;
      }
      const auto [first, is_new] = text_of_chunk.emplace(chunk, value.text);
      if (!is_new && first->second != value.text) {
        result_.error = fmt::format("chunk {} is both {} and {}", chunk, first->second, value.text);
        return;
      }
      result_.outputs[where] = value.text;
    }
  }

  std::span<const Program> programs_;
  OracleOptions options_;
  std::mt19937_64 random_;
  Rank n_;
  const Program* head_ = nullptr;
  std::vector<std::vector<Lane>> lanes_;
  std::vector<bool> entered_;
  std::vector<bool> left_;
  std::map<Address, Value> memory_;
  std::map<std::tuple<Rank, Rank, uint32_t>, std::deque<std::vector<Value>>> channels_;
  std::map<std::tuple<Rank, Rank, uint32_t>, uint64_t> counters_;
  std::map<std::pair<Rank, uint32_t>, Value> outputs_;
  OracleResult result_;
};

}  // namespace

OracleResult run_oracle(std::span<const Program> programs, const OracleOptions& options) {
  return Oracle(programs, options).run();
}

}  // namespace weir::sched
