// SPDX-License-Identifier: Apache-2.0
// The conversion that msccl.h describes: lanes, then one execution of all gpus, whose order becomes
// that of the programs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "core/algo/imported.h"
#include "core/algo/msccl_algo.h"
#include "core/algo/msccl_memory.h"
#include "core/sched/validate.h"

namespace weir::algo {
namespace {

using sched::Op;
using sched::OpCode;
using sched::Program;
using sched::Ref;
using sched::Space;

// Lanes of the built-in transports: tcp, ucx, shm.
constexpr std::array<uint32_t, 3> kLaneLimits = {4, 7, 15};
constexpr uint64_t kTriesMax = 64'000'000;
// A connection of MSCCL holds eight messages: one in its lane, and these.
constexpr size_t kAheadMax = 7;
constexpr uint32_t kNoRank = 0xffffffffu;

struct BlockId {
  Rank gpu = 0;
  uint32_t block = 0;
};

std::string locate(const MscclAlgo& algo, BlockId id, uint32_t step) {
  const MscclBlock& block = algo.gpus[id.gpu].blocks[id.block];
  const bool is_step = step < block.steps.size();
  return fmt::format("{}:{}: gpu {} block {}{}", algo.name,
                     is_step ? block.steps[step].line : block.line, id.gpu, block.id,
                     is_step ? fmt::format(" step {}", step) : "");
}

// The lane of every block: those that exchange messages share one.
class Lanes {
 public:
  static Result<Lanes> of(const MscclAlgo& algo, uint32_t limit) {
    Lanes lanes;
    uint32_t count = 0;
    for (const MscclGpu& gpu : algo.gpus) {
      lanes.first_.push_back(count);
      count += static_cast<uint32_t>(gpu.blocks.size());
    }
    std::vector<uint32_t> parent(count);
    std::iota(parent.begin(), parent.end(), 0u);
    const auto root = [&parent](uint32_t i) {
      while (parent[i] != i) i = parent[i] = parent[parent[i]];
      return i;
    };
    // (sender, receiver, channel): the block that has it at either end.
    std::map<std::tuple<Rank, Rank, int32_t>, std::array<std::optional<uint32_t>, 2>> ends;
    for (Rank rank = 0; rank < algo.gpus.size(); ++rank) {
      const MscclGpu& gpu = algo.gpus[rank];
      for (uint32_t b = 0; b < gpu.blocks.size(); ++b) {
        const MscclBlock& block = gpu.blocks[b];
        for (const bool receives : {false, true}) {
          const bool used =
              std::any_of(block.steps.begin(), block.steps.end(), [&](const MscclStep& step) {
                return receives ? msccl_receives(step.type) : msccl_sends(step.type);
              });
          if (!used) continue;
          const auto peer = static_cast<Rank>(receives ? block.recv : block.send);
          if (peer == rank) {
            return invalid_argument(locate(algo, {rank, b}, kNoRank) +
                                    ": exchanges messages with its own gpu");
          }
          auto& end = ends[{receives ? peer : rank, receives ? rank : peer, block.channel}];
          if (end[receives]) {
            return invalid_argument(fmt::format(
                "{}: a second block that {} gpu {} on channel {}", locate(algo, {rank, b}, kNoRank),
                receives ? "receives from" : "sends to", peer, block.channel));
          }
          end[receives] = lanes.first_[rank] + b;
        }
      }
    }
    for (const auto& [key, end] : ends) {
      if (end[0] && end[1]) parent[root(*end[0])] = root(*end[1]);
    }
    lanes.spread(algo, limit, count, root);
    return lanes;
  }

  uint32_t lane(BlockId id) const { return lane_[first_[id.gpu] + id.block]; }
  uint32_t count() const { return count_; }

 private:
  // Gives every group of blocks the lane in which its gpus have the fewest steps yet.
  template <typename Root>
  void spread(const MscclAlgo& algo, uint32_t limit, uint32_t block_count, Root&& root) {
    std::map<uint32_t, std::vector<BlockId>> groups;
    for (Rank rank = 0; rank < algo.gpus.size(); ++rank) {
      for (uint32_t b = 0; b < algo.gpus[rank].blocks.size(); ++b) {
        if (algo.gpus[rank].blocks[b].steps.empty()) continue;
        groups[root(first_[rank] + b)].push_back({rank, b});
      }
    }
    lane_.assign(block_count, 0);
    std::vector<uint64_t> load(size_t{limit} * algo.gpus.size(), 0);
    for (const auto& [unused, blocks] : groups) {
      uint32_t best = 0;
      uint64_t least = ~uint64_t{0};
      for (uint32_t lane = 0; lane < limit; ++lane) {
        uint64_t sum = 0;
        for (const BlockId& id : blocks) sum += load[size_t{id.gpu} * limit + lane];
        if (sum >= least) continue;
        least = sum;
        best = lane;
      }
      count_ = std::max(count_, best + 1);
      for (const BlockId& id : blocks) {
        lane_[first_[id.gpu] + id.block] = best;
        load[size_t{id.gpu} * limit + best] += algo.gpus[id.gpu].blocks[id.block].steps.size();
      }
    }
  }

  std::vector<uint32_t> first_;  // by gpu, into lane_
  std::vector<uint32_t> lane_;
  uint32_t count_ = 1;
};

struct How {
  // A block sends only when no other block of its lane has fallen behind it.
  bool patient = false;
  // Where no block can go on, messages are received into slots before their steps.
  bool ahead = false;
};

// One execution.
class Execution {
 public:
  Execution(const MscclAlgo& algo, const MscclMemory& memory, const Lanes& lanes, const How& how)
      : algo_(algo), memory_(memory), lanes_(lanes), how_(how) {
    uint32_t slots = memory.scratch_slots();
    for (const MscclGpu& gpu : algo.gpus) {
      uint32_t next = memory.scratch_slots();
      auto& blocks = blocks_.emplace_back(gpu.blocks.size());
      for (uint32_t b = 0; b < gpu.blocks.size(); ++b) {
        blocks[b].slot = next;
        uint32_t longest = 0;
        for (const MscclStep& step : gpu.blocks[b].steps) {
          const bool folds = msccl_receives(step.type) && msccl_reads_src(step.type);
          const bool gathers = memory.is_scattered() && step.count > 1;
          if (folds || gathers) longest = std::max(longest, step.count);
        }
        next = std::min(next + longest, kImportedScratchSlotCountMax + 1);
      }
      slots = std::max(slots, next);
      next_slot_.push_back(next);
    }
    shape_.chunk_count = memory.chunk_count();
    shape_.scratch_slots = slots;
    shape_.lane_count = lanes.count();
    const auto n = static_cast<Rank>(algo.gpus.size());
    text_.set.programs.resize(n);
    text_.origins.resize(n);
    signals_.assign(n, std::vector<uint32_t>(lanes.count(), 0));
    seen_.assign(n, std::vector<uint32_t>(size_t{lanes.count()} * lanes.count(), 0));
    lowest_.assign(n, std::vector<Rank>(2 * size_t{memory.area()} + slots, kNoRank));
    for (Rank rank = 0; rank < n; ++rank) {
      const auto [first, count] = memory.input_of(rank);
      for (uint32_t k = 0; k < count; ++k) {
        lowest({first + k, rank, Space::kInput}) = rank;
      }
      note_signalling(rank);
    }
  }

  // kUnsupported: with these lanes the blocks wait for each other.
  Result<ProgramText> run() {
    WEIR_RETURN_IF_ERROR(check_slots());
    for (Rank rank = 0; rank < algo_.gpus.size(); ++rank) WEIR_RETURN_IF_ERROR(begin(rank));
    bool moved = true;
    uint64_t tries = 0;
    while (moved) {
      moved = false;
      for (Rank rank = 0; rank < algo_.gpus.size(); ++rank) {
        for (uint32_t b = 0; b < blocks_[rank].size(); ++b) {
          if (blocks_[rank][b].step == algo_.gpus[rank].blocks[b].steps.size()) continue;
          tries += 1 + algo_.gpus[rank].blocks[b].steps[blocks_[rank][b].step].count;
          tries += how_.patient ? blocks_[rank].size() : 0;
          if (tries > kTriesMax) {
            return invalid_argument(algo_.name + ": too many steps to find an order for them");
          }
          moved = advance({rank, b}) || moved;
          if (!status_.ok()) return status_;
        }
      }
      if (moved || !how_.ahead) continue;
      moved = receive_ahead();
      WEIR_RETURN_IF_ERROR(check_slots());
    }
    for (Rank rank = 0; rank < algo_.gpus.size(); ++rank) {
      for (uint32_t b = 0; b < blocks_[rank].size(); ++b) {
        if (blocks_[rank][b].step == algo_.gpus[rank].blocks[b].steps.size()) continue;
        return Status(Code::kUnsupported, locate(algo_, {rank, b}, blocks_[rank][b].step) +
                                              ": waits for ever, because its message never comes, "
                                              "is never taken, or steps wait for each other");
      }
      end(rank);
    }
    for (Rank rank = 0; rank < algo_.gpus.size(); ++rank) {
      Program& program = text_.set.programs[rank];
      program.collective = algo_.collective;
      program.rank = rank;
      program.rank_count = static_cast<Rank>(algo_.gpus.size());
      program.shape = shape_;
    }
    text_.set.access.in_place = algo_.in_place;
    return std::move(text_);
  }

 private:
  using Refs = std::vector<Ref>;  // of one chunk each

  // One that is sent and whose step of the receiver is still to come.
  struct Message {
    uint32_t block = 0;  // of the receiver
    BlockId sender;
    uint32_t sender_step = 0;
    std::vector<Rank> lowest;
    Refs slots;  // received ahead: where it is
  };
  struct Block {
    uint32_t step = 0;
    bool received = false;  // the step's message, which is still to be sent on
    uint32_t slot = 0;      // for messages that are folded or spread
    std::deque<Message> ahead;
  };

  Status check_slots() const {
    if (shape_.scratch_slots <= kImportedScratchSlotCountMax) return {};
    return invalid_argument(
        fmt::format("{}: more than {} scratch slots", algo_.name, kImportedScratchSlotCountMax));
  }

  // The lowest rank that has contributed to what a chunk or slot holds.
  Rank& lowest(const Ref& ref) {
    const size_t area = memory_.area();
    const size_t index = ref.space == Space::kScratch  ? 2 * area + ref.chunk
                         : ref.space == Space::kOutput ? area + memory_.index_in_area(ref)
                                                       : memory_.index_in_area(ref);
    return lowest_[ref.rank][index];
  }

  static Refs consecutive(const Ref& first, uint32_t count) {
    Refs refs(count, first);
    for (uint32_t k = 0; k < count; ++k) refs[k].chunk += k;
    return refs;
  }
  // Whether the `run`-th after the k-th is as far from it in memory.
  static bool follows(const Refs& refs, uint32_t k, uint32_t run) {
    return refs[k + run].space == refs[k].space && refs[k + run].chunk == refs[k].chunk + run;
  }
  static bool is_run(const Refs& refs) {
    for (uint32_t k = 1; k < refs.size(); ++k) {
      if (!follows(refs, 0, k)) return false;
    }
    return true;
  }

  // Steps that a block of another lane waits for.
  void note_signalling(Rank rank) {
    const MscclGpu& gpu = algo_.gpus[rank];
    for (uint32_t b = 0; b < gpu.blocks.size(); ++b) {
      for (const MscclStep& step : gpu.blocks[b].steps) {
        if (step.depends_block < 0) continue;
        const auto on = static_cast<uint32_t>(step.depends_block);
        if (lanes_.lane({rank, on}) == lanes_.lane({rank, b})) continue;
        signal_of_[{rank, on, step.depends_step}] = 0;
      }
    }
  }

  Op& add(Rank rank, uint32_t lane, OpCode code, const std::string& origin) {
    Op& op = text_.set.programs[rank].ops.emplace_back();
    op.code = code;
    op.lane = static_cast<uint8_t>(lane);
    text_.origins[rank].push_back(origin);
    return op;
  }

  uint32_t give_signal(Rank rank, uint32_t lane) {
    Op& op = add(rank, lane, OpCode::kSignal, "");
    op.peer = rank;
    op.signal = static_cast<uint8_t>(lane);
    shape_.signal_count = lanes_.count();
    return ++signals_[rank][lane];
  }

  void await_signal(Rank rank, uint32_t lane, uint32_t of_lane, uint32_t value) {
    uint32_t& seen = seen_[rank][size_t{lane} * lanes_.count() + of_lane];
    if (seen >= value) return;
    seen = value;
    Op& op = add(rank, lane, OpCode::kWait, "");
    op.peer = rank;
    op.signal = static_cast<uint8_t>(of_lane);
    op.value = value;
  }

  void copy(Rank rank, uint32_t lane, const Refs& dst, const Refs& src, const std::string& origin) {
    for (uint32_t k = 0; k < dst.size();) {
      Op& op = add(rank, lane, OpCode::kCopy, origin);
      op.dst = dst[k];
      op.src = src[k];
      while (k + op.count < dst.size() && follows(dst, k, op.count) && follows(src, k, op.count)) {
        ++op.count;
      }
      k += op.count;
    }
    for (uint32_t k = 0; k < dst.size(); ++k) lowest(dst[k]) = lowest(src[k]);
  }

  // What precedes all steps of a gpu.
  Status begin(Rank rank) {
    const MscclGpu& gpu = algo_.gpus[rank];
    bool any = false;
    const auto [first, count] = memory_.input_of(rank);
    if (memory_.copies_input()) {
      copy(rank, 0, consecutive(memory_.stead_of_input(rank, 0), count),
           consecutive({first, rank, Space::kInput}, count), "");
      any = true;
    }
    for (const MscclCopy& one : gpu.copies) {
      const auto src = memory_.find(gpu, rank, {'i', one.input});
      const auto dst = memory_.find(gpu, rank, {'o', one.output});
      if (!src || !dst) {
        return invalid_argument(fmt::format(
            "{}:{}: gpu {} copies i[{}] to o[{}], but has {} and {} chunks", algo_.name, one.line,
            rank, one.input, one.output, memory_.chunks_in(gpu, 'i'), memory_.chunks_in(gpu, 'o')));
      }
      if (src->space == dst->space && src->chunk == dst->chunk) continue;
      copy(rank, 0, {*dst}, {*src}, fmt::format("<copy>, line {}", one.line));
      any = true;
    }
    if (!any || lanes_.count() == 1) return {};
    const uint32_t value = give_signal(rank, 0);
    for (uint32_t lane = 1; lane < lanes_.count(); ++lane) await_signal(rank, lane, 0, value);
    return {};
  }

  void end(Rank rank) {
    if (!memory_.copies_output()) return;
    for (uint32_t lane = 1; lane < lanes_.count(); ++lane) {
      await_signal(rank, 0, lane, give_signal(rank, lane));
    }
    Refs dst, src;
    for (uint32_t offset = 0; offset < memory_.output_chunks(); ++offset) {
      dst.push_back(memory_.output(rank, offset));
      src.push_back(memory_.stead_of_output(rank, offset));
    }
    copy(rank, 0, dst, src, "");
  }

  // The chunks of a step at `place`. Empty, with an error, when they do not exist.
  Refs find(BlockId id, const MscclStep& step, const MscclPlace& place) {
    const MscclGpu& gpu = algo_.gpus[id.gpu];
    Refs refs;
    for (uint32_t k = 0; k < step.count; ++k) {
      const auto found = memory_.find(gpu, id.gpu, {place.buffer, place.offset + k});
      if (!found) {
        status_ = invalid_argument(
            fmt::format("{}: {} chunks from {}[{}] are out of range: the gpu has {} there",
                        locate(algo_, id, blocks_[id.gpu][id.block].step), step.count, place.buffer,
                        place.offset, memory_.chunks_in(gpu, place.buffer)));
        return {};
      }
      refs.push_back(*found);
    }
    return refs;
  }

  std::deque<Message>& channel(Rank sender, Rank receiver, uint32_t lane) {
    return channels_[{sender, receiver, lane}];
  }

  // dst = the fold of two, the one with the lower lowest contributor first.
  void fold(Rank rank, uint32_t lane, const Refs& dst, const Refs& a, const Refs& b,
            const std::string& origin) {
    const auto swapped = [&](uint32_t i) { return lowest(b[i]) < lowest(a[i]); };
    for (uint32_t k = 0; k < dst.size();) {
      uint32_t run = 1;
      while (k + run < dst.size() && follows(dst, k, run) && follows(a, k, run) &&
             follows(b, k, run) && swapped(k + run) == swapped(k)) {
        ++run;
      }
      Program& program = text_.set.programs[rank];
      Op& op = add(rank, lane, OpCode::kReduce, origin);
      op.dst = dst[k];
      op.count = run;
      op.first_operand = static_cast<uint32_t>(program.operands.size());
      op.operand_count = 2;
      program.operands.push_back(swapped(k) ? b[k] : a[k]);
      program.operands.push_back(swapped(k) ? a[k] : b[k]);
      k += run;
    }
    for (uint32_t k = 0; k < dst.size(); ++k) {
      lowest(dst[k]) = std::min(lowest(a[k]), lowest(b[k]));
    }
  }

  bool is_ready(Rank gpu, const MscclStep& step) const {
    return step.depends_block < 0 ||
           blocks_[gpu][static_cast<size_t>(step.depends_block)].step > step.depends_step;
  }

  // Whether another block of the lane has a step before this one's that waits for no block.
  bool leaves_one_behind(BlockId id) const {
    const MscclGpu& gpu = algo_.gpus[id.gpu];
    for (uint32_t b = 0; b < gpu.blocks.size(); ++b) {
      const Block& other = blocks_[id.gpu][b];
      if (other.step >= blocks_[id.gpu][id.block].step) continue;
      if (other.step == gpu.blocks[b].steps.size()) continue;
      if (lanes_.lane({id.gpu, b}) != lanes_.lane(id)) continue;
      if (is_ready(id.gpu, gpu.blocks[b].steps[other.step])) return true;
    }
    return false;
  }

  // Performs a block's step, or the half of it that receives; false when it must wait.
  bool advance(BlockId id) {
    const MscclBlock& block = algo_.gpus[id.gpu].blocks[id.block];
    Block& at = blocks_[id.gpu][id.block];
    const MscclStep& step = block.steps[at.step];
    const uint32_t lane = lanes_.lane(id);
    if (!is_ready(id.gpu, step)) return false;
    Refs src, dst;
    if (msccl_reads_src(step.type)) src = find(id, step, step.src);
    if (msccl_writes_dst(step.type)) dst = find(id, step, step.dst);
    if (!status_.ok()) return false;
    // A fused step sends on what it has stored, or folded in its slot.
    if (step.type == MscclType::kRrs) {
      dst = consecutive({at.slot, id.gpu, Space::kScratch}, step.count);
    }
    const bool receives = msccl_receives(step.type) && !at.received;
    const bool sends = msccl_sends(step.type) && !receives;
    if (receives && !can_receive(id, step)) return false;
    if (sends && (!channel(id.gpu, static_cast<Rank>(block.send), lane).empty() ||
                  (how_.patient && leaves_one_behind(id)))) {
      return false;
    }

    if (!at.received && step.depends_block >= 0) {
      const auto on = static_cast<uint32_t>(step.depends_block);
      const uint32_t other = lanes_.lane({id.gpu, on});
      if (other != lane) {
        await_signal(id.gpu, lane, other, signal_of_.at({id.gpu, on, step.depends_step}));
      }
    }
    const std::string origin =
        fmt::format("block {} step {}, line {}", block.id, at.step, step.line);
    if (receives) {
      receive(id, step, dst, src, origin);
      at.received = true;
      if (msccl_sends(step.type)) return true;
    } else if (sends) {
      send(id, step.type == MscclType::kSend ? src : dst, origin);
    } else if (step.type == MscclType::kCopy) {
      copy(id.gpu, lane, dst, src, origin);
    } else if (step.type == MscclType::kReduce) {
      fold(id.gpu, lane, dst, dst, src, origin);
    }
    at.received = false;
    const auto signal = signal_of_.find({id.gpu, id.block, at.step});
    if (signal != signal_of_.end()) signal->second = give_signal(id.gpu, lane);
    ++at.step;
    return true;
  }

  // The message that a block's step receives, or null: it has not come.
  const Message* next_message(BlockId id) {
    const Block& at = blocks_[id.gpu][id.block];
    if (!at.ahead.empty()) return &at.ahead.front();
    const MscclBlock& block = algo_.gpus[id.gpu].blocks[id.block];
    const auto& queue = channel(static_cast<Rank>(block.recv), id.gpu, lanes_.lane(id));
    return queue.empty() || queue.front().block != id.block ? nullptr : &queue.front();
  }

  bool can_receive(BlockId id, const MscclStep& step) {
    const Message* message = next_message(id);
    if (message == nullptr) return false;
    if (message->lowest.size() != step.count) {
      status_ = invalid_argument(fmt::format(
          "{}: receives {} chunks, but {} sends {}",
          locate(algo_, id, blocks_[id.gpu][id.block].step), step.count,
          locate(algo_, message->sender, message->sender_step), message->lowest.size()));
      return false;
    }
    return true;
  }

  // The first message of a channel, into `to`.
  Message take(Rank sender, Rank receiver, uint32_t lane, const Refs& to,
               const std::string& origin) {
    auto& queue = channel(sender, receiver, lane);
    Message message = std::move(queue.front());
    queue.pop_front();
    Op& op = add(receiver, lane, OpCode::kRecv, origin);
    op.peer = sender;
    op.dst = to[0];
    op.count = static_cast<uint32_t>(to.size());
    for (uint32_t k = 0; k < to.size(); ++k) lowest(to[k]) = message.lowest[k];
    return message;
  }

  void receive(BlockId id, const MscclStep& step, const Refs& dst, const Refs& src,
               const std::string& origin) {
    Block& at = blocks_[id.gpu][id.block];
    const uint32_t lane = lanes_.lane(id);
    const bool folds = msccl_reads_src(step.type);
    Refs from = consecutive({at.slot, id.gpu, Space::kScratch}, step.count);
    if (!at.ahead.empty()) {
      from = std::move(at.ahead.front().slots);
      at.ahead.pop_front();
    } else {
      if (!folds && is_run(dst)) from = dst;
      take(static_cast<Rank>(algo_.gpus[id.gpu].blocks[id.block].recv), id.gpu, lane, from, origin);
    }
    if (folds) {
      fold(id.gpu, lane, dst, src, from, origin);
    } else if (from[0].space != dst[0].space || from[0].chunk != dst[0].chunk) {
      copy(id.gpu, lane, dst, from, origin);
    }
  }

  // Where blocks wait for each other because lanes are full: takes the first message of each lane
  // whose block has room for it. False if there is none.
  bool receive_ahead() {
    bool moved = false;
    for (auto& [key, queue] : channels_) {
      const auto [sender, receiver, lane] = key;
      if (queue.empty() || queue.front().block == kNoRank) continue;
      const BlockId id{receiver, queue.front().block};
      Block& at = blocks_[id.gpu][id.block];
      if (at.ahead.size() == kAheadMax) continue;
      const auto count = static_cast<uint32_t>(queue.front().lowest.size());
      const Refs slots = consecutive({next_slot_[receiver], receiver, Space::kScratch}, count);
      next_slot_[receiver] =
          std::min(next_slot_[receiver] + count, kImportedScratchSlotCountMax + 1);
      shape_.scratch_slots = std::max(shape_.scratch_slots, next_slot_[receiver]);
      auto& known = lowest_[receiver];
      known.resize(std::max(known.size(), 2 * size_t{memory_.area()} + slots.back().chunk + 1),
                   kNoRank);
      at.ahead.push_back(take(sender, receiver, lane, slots,
                              fmt::format("block {}, a message before its step",
                                          algo_.gpus[id.gpu].blocks[id.block].id)));
      at.ahead.back().slots = slots;
      moved = true;
    }
    return moved;
  }

  void send(BlockId id, const Refs& src, const std::string& origin) {
    const MscclBlock& block = algo_.gpus[id.gpu].blocks[id.block];
    const uint32_t lane = lanes_.lane(id);
    const auto peer = static_cast<Rank>(block.send);
    Refs from = src;
    if (!is_run(src)) {
      from = consecutive({blocks_[id.gpu][id.block].slot, id.gpu, Space::kScratch},
                         static_cast<uint32_t>(src.size()));
      copy(id.gpu, lane, from, src, origin);
    }
    Op& op = add(id.gpu, lane, OpCode::kSend, origin);
    op.peer = peer;
    op.src = from[0];
    op.count = static_cast<uint32_t>(from.size());
    Message message;
    message.block = receiver_of(id, peer, block.channel);
    message.sender = id;
    message.sender_step = blocks_[id.gpu][id.block].step;
    for (const Ref& ref : from) {
      message.lowest.push_back(lowest(ref));
    }
    channel(id.gpu, peer, lane).push_back(std::move(message));
  }

  // The block of `peer` that receives from this gpu on the channel; kNoRank: none.
  uint32_t receiver_of(BlockId id, Rank peer, int32_t on_channel) {
    const auto [found, is_new] = receivers_.try_emplace({id.gpu, peer, on_channel}, kNoRank);
    if (!is_new) return found->second;
    const MscclGpu& gpu = algo_.gpus[peer];
    for (uint32_t b = 0; b < gpu.blocks.size(); ++b) {
      const MscclBlock& block = gpu.blocks[b];
      const bool receives = std::any_of(block.steps.begin(), block.steps.end(),
                                        [](const auto& s) { return msccl_receives(s.type); });
      if (receives && block.recv == static_cast<int32_t>(id.gpu) && block.channel == on_channel) {
        found->second = b;
      }
    }
    return found->second;
  }

  const MscclAlgo& algo_;
  const MscclMemory& memory_;
  const Lanes& lanes_;
  const How how_;
  Status status_;
  sched::Shape shape_;
  ProgramText text_;
  std::vector<std::vector<Block>> blocks_;  // by gpu and block
  std::vector<uint32_t> next_slot_;         // by gpu: the first that nothing uses
  std::vector<std::vector<Rank>> lowest_;   // contributor, by gpu: of Input, Output, slots
  std::map<std::tuple<Rank, Rank, uint32_t>, std::deque<Message>> channels_;
  std::map<std::tuple<Rank, Rank, int32_t>, uint32_t> receivers_;
  std::vector<std::vector<uint32_t>> signals_;  // by gpu and lane: given so far
  std::vector<std::vector<uint32_t>> seen_;     // by gpu, lane and lane waited for
  std::map<std::tuple<Rank, uint32_t, uint32_t>, uint32_t> signal_of_;  // by gpu, block and step
};

}  // namespace

Result<ProgramText> convert_msccl(const MscclAlgo& algo) {
  const Result<MscclMemory> memory = MscclMemory::of(algo);
  if (!memory.ok()) return memory.status();
  Status stuck;
  // With one message a lane while that is possible: those that are received ahead need slots and
  // copies.
  for (const bool ahead : {false, true}) {
    for (const uint32_t limit : kLaneLimits) {
      const Result<Lanes> lanes = Lanes::of(algo, limit);
      if (!lanes.ok()) return lanes.status();
      for (const bool patient : {false, true}) {
        Result<ProgramText> text =
            Execution(algo, memory.value(), lanes.value(), {patient, ahead}).run();
        if (text.ok() || text.status().code() != Code::kUnsupported) return text;
        stuck = text.status();
      }
      if (lanes.value().count() < limit) break;  // more would change nothing
    }
  }
  return invalid_argument(stuck.text());
}

}  // namespace weir::algo
