// SPDX-License-Identifier: Apache-2.0
#include "core/engine/mapped_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/engine/prefetch.h"

namespace weir::engine {

Status unknown_memory(Rank peer) {
  return Status(Code::kMismatch,
                fmt::format("a buffer of rank {} lies in memory that this rank has freed: no rank "
                            "may free it or destroy its arena while another passes it",
                            peer));
}

inline unsigned char* MappedRun::address(const Place& place, uint64_t ring_offset,
                                         uint64_t slice_offset) const {
  unsigned char* base = bases_[place.base];
  if (base == nullptr && place.stand_in != kNoSource) [[unlikely]] {
    return address(plan_->operands_[place.stand_in], ring_offset, slice_offset);
  }
  return base + place.offset_bytes + (place.staged ? ring_offset : slice_offset);
}

void MappedRun::start(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint,
                      Context& context, std::span<unsigned char* const> peer_inputs,
                      std::span<unsigned char* const> peer_outputs) {
  plan_ = &plan;
  call_ = &call;
  described_ = false;
  told_ = nullptr;
  input_open_ = true;
  touched_bytes_ = 0;
  status_ = Status();
  context.want_huge_pages();
  context.publish_done();
  start_ = context.begin_operation(plan.slicing_.entry_bytes, plan.slicing_.ring_bytes,
                                   plan.slice_count_);
  sequence_ = context.sequence;
  mark_ = context.begin_mark(call_fingerprint);
  if (plan.slicing_.choose_slot_stores) plan.slot_stores_.begin_operation(now_ns);
  if (plan.slicing_.choose_output_stores) plan.output_stores_.begin_operation(now_ns);
  next_slice_.assign(plan.stages_.size(), 0);
  const Rank n = context.rank_count;
  bases_.resize(3 + size_t{3} * n);
  bases_[base_scratch(n)] = plan.scratch_.get();
  // Inputs are only read: no place of a plan writes to them.
  bases_[kBaseInput] = static_cast<unsigned char*>(const_cast<void*>(call.input));
  bases_[kBaseOutput] = static_cast<unsigned char*>(call.output);
  for (Rank p = 0; p < n; ++p) {
    bases_[kBaseStaging + p] = context.staging(p);
    bases_[base_peer_input(n, p)] = peer_inputs.empty() ? nullptr : peer_inputs[p];
    bases_[base_peer_output(n, p)] = peer_outputs.empty() ? nullptr : peer_outputs[p];
  }
}

void MappedRun::start_told(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint,
                           Context& context, uint64_t own_word, ToldBuffers& told) {
  context.describe_next_call(call, call_fingerprint, own_word, 0);
  start(plan, call, call_fingerprint, context);
  described_ = true;
  told_ = &told;
  input_open_ = own_word != 0;
}

bool MappedRun::hear(Context& context, Rank peer) {
  // Of the call itself: a rank describes it before it signals.
  const DescriptorLine& line = context.control(peer).descriptor[sequence_ % kDescriptorCount];
  if (line.sequence.load(std::memory_order_acquire) != sequence_) return false;
  const uint64_t word = line.input_window.load(std::memory_order_relaxed);
  if (word == 0) return true;
  unsigned char* const input = told_->find(peer, word);
  bases_[base_peer_input(context.rank_count, peer)] = input;
  if (input != nullptr) return true;
  status_ = unknown_memory(peer);
  return false;
}

bool MappedRun::peer_reached(Context& context, Rank peer, uint32_t phase, uint64_t slice) {
  const uint64_t wanted = start_ + (slice + 1) * plan_->slicing_.entry_bytes;
  PeerView& view = context.peers[peer];
  // The first slice always checks, so that the mark is compared once per peer and operation.
  if (slice != 0 && view.phase[phase] >= wanted) return true;
  const PhaseLine& line = context.control(peer).phase[phase];
  const uint64_t position = line.position.load(std::memory_order_acquire);
  if (position < wanted) return false;
  view.phase[phase] = position;
  if (slice == 0 && !same_call(context.control(peer), line)) {
    status_ = Status(Code::kMismatch, std::string());
    return false;
  }
  return slice != 0 || told_ == nullptr || hear(context, peer);
}

bool MappedRun::same_call(const Control& peer, const PhaseLine& line) const {
  const uint64_t ours = call_flag(sequence_, mark_);
  const uint64_t theirs = line.mark[sequence_ % kMarkSlots].load(std::memory_order_relaxed);
  if (theirs == ours) [[likely]] {
    return true;
  }
  if (theirs >> 32 == ours >> 32) return false;
  // The peer is so far ahead that the slot holds a later call, or reached the position by a call
  // without this phase. Its descriptor of this call is complete or on its way.
  return !called_otherwise(peer, sequence_, mark_);
}

bool MappedRun::ready(Context& context, uint32_t stage_index, uint64_t slice) {
  const Stage& stage = plan_->stages_[stage_index];
  if (stage_index == 0) {
    const uint64_t end = start_ + (slice + 1) * plan_->slicing_.entry_bytes;
    const uint64_t ring = plan_->slicing_.ring_bytes;
    const uint64_t reused = end > ring ? end - ring : 0;
    if (!context.all_done_before(std::max(context.geometry_position, reused))) return false;
  }
  if (stage.wait_phase >= 0 && holds(stage.wait_when)) {
    for (const Rank peer : stage.wait_ranks) {
      if (!peer_reached(context, peer, static_cast<uint32_t>(stage.wait_phase), slice))
        return false;
    }
  }
  return true;
}

void MappedRun::run_stage(Context& context, uint32_t stage_index, uint64_t slice) {
  const Stage& stage = plan_->stages_[stage_index];
  const Slicing& slicing = plan_->slicing_;
  const bool stream_slots = slicing.choose_slot_stores && plan_->slot_stores_.streams();
  // What is told is read by peers unless it is written last.
  const bool stream_output = slicing.choose_output_stores && plan_->output_stores_.streams() &&
                             (told_ == nullptr || stage_index == plan_->output_stage_);
  StoreChoice* measured = nullptr;
  if (slicing.choose_slot_stores && stage_index == plan_->slot_stage_) {
    measured = &plan_->slot_stores_;
  }
  if (slicing.choose_output_stores && stage_index == plan_->output_stage_) {
    measured = &plan_->output_stores_;
  }
  if (measured != nullptr && !measured->measures()) measured = nullptr;
  const uint64_t begin_ns = measured != nullptr ? now_ns() : 0;
  uint64_t written_bytes = 0;
  const uint64_t slice_bytes = plan_->slicing_.slice_bytes;
  const uint64_t slice_offset = slice * slice_bytes;
  const uint64_t end = start_ + (slice + 1) * plan_->slicing_.entry_bytes;
  const uint64_t ring_offset = context.ring_offset(end - plan_->slicing_.entry_bytes);

  for (uint32_t i = 0; i < stage.op_count; ++i) {
    const MappedOp& op = plan_->ops_[stage.first_op + i];
    if (op.length_bytes <= slice_offset || !holds(op.when)) continue;
    const uint64_t bytes = std::min(slice_bytes, op.length_bytes - slice_offset);
    written_bytes += bytes;
    const auto streams = [&](const Place& place) {
      if (place.base == kBaseStaging + context.rank) return stream_slots;
      return stream_output && place.base != base_scratch(context.rank_count);
    };
    const uint64_t dst_slice_offset =
        op.result ? slice_offset >> plan_->output_shift_ : slice_offset;
    unsigned char* dst = address(op.dst, ring_offset, dst_slice_offset);
    const Place* operands = &plan_->operands_[op.first_operand];
    if (op.tree) {
      tree_operands_.resize(op.operand_count);
      for (uint32_t k = 0; k < op.operand_count; ++k) {
        tree_operands_[k] = {address(operands[k], ring_offset, slice_offset), operands[k].folds};
      }
      const TreeArgs args{dst,
                          tree_operands_.data(),
                          op.operand_count,
                          bytes / plan_->element_bytes_,
                          plan_->divisor_,
                          streams(op.dst)};
      (op.result ? plan_->tree_.result : plan_->tree_.partial)(args);
      continue;
    }
    if (!op.reduce) {
      const unsigned char* src = address(operands[0], ring_offset, slice_offset);
      if (dst != src) touched_bytes_ += 2 * bytes;
      copy_bytes(dst, src, bytes, streams(op.dst));
      continue;
    }
    touched_bytes_ += (op.operand_count + (op.second ? 2u : 1u)) * bytes;
    sources_.resize(op.operand_count);
    for (uint32_t k = 0; k < op.operand_count; ++k) {
      sources_[k] = address(operands[k], ring_offset, slice_offset);
    }
    ReduceArgs args;
    args.dst = dst;
    args.second_dst = op.second ? address(op.second_dst, ring_offset, slice_offset) : nullptr;
    args.sources = sources_.data();
    args.source_count = op.operand_count;
    args.element_count = bytes / plan_->element_bytes_;
    args.scaled_source = op.scaled_operand;
    args.scale = call_->scale;
    // A scaled copy is a reduction of one operand, without a fold.
    const bool divides = (op.operand_count > 1 && !op.partial) || plan_->rank_count_ == 1;
    args.divisor = divides ? plan_->divisor_ : 1;
    args.streaming = streams(op.dst);
    args.second_streaming = op.second && streams(op.second_dst);
    if (args.second_streaming && !args.streaming) {
      std::swap(args.dst, args.second_dst);
      std::swap(args.streaming, args.second_streaming);
    }
    plan_->kernel_(args);
  }

  if (stage.signal_phase >= 0) {
    PhaseLine& line = context.control(context.rank).phase[stage.signal_phase];
    if (slice == 0) {
      line.mark[sequence_ % kMarkSlots].store(call_flag(sequence_, mark_),
                                              std::memory_order_relaxed);
    }
    line.position.store(end, std::memory_order_release);
    context.wake_sleepers();
  }
  if (measured != nullptr && written_bytes > 0) {
    const uint64_t end_ns = now_ns();
    measured->wrote(written_bytes, end_ns - begin_ns, end_ns);
  }
}

void MappedRun::prefetch_outputs(uint64_t slice) const {
  const bool streams = plan_->slicing_.choose_output_stores && plan_->output_stores_.streams();
  if (streams || plan_->stages_.size() < 2) return;
  const uint64_t slice_offset = slice * plan_->slicing_.slice_bytes;
  const Stage& stage = plan_->stages_[1];
  for (uint32_t i = 0; i < stage.op_count; ++i) {
    const MappedOp& op = plan_->ops_[stage.first_op + i];
    if (op.dst.base != kBaseOutput || op.length_bytes <= slice_offset || !holds(op.when)) continue;
    const uint32_t shift = plan_->output_shift_;
    const uint64_t bytes = std::min(plan_->slicing_.slice_bytes, op.length_bytes - slice_offset);
    prefetch_for_write(bases_[kBaseOutput] + op.dst.offset_bytes + (slice_offset >> shift),
                       bytes >> shift);
  }
}

Advance MappedRun::advance(Context& context) {
  const auto stage_count = static_cast<uint32_t>(plan_->stages_.size());
  const uint64_t slice_count = plan_->slice_count_;
  bool moved = false;
  bool again = true;
  for (uint32_t step = 0; again && step < kStepsPerAdvance; ++step) {
    again = false;
    // Later stages run first: their data is most likely in the cache, and they free the ring.
    for (uint32_t k = stage_count; k-- > 0;) {
      const uint64_t slice = next_slice_[k];
      if (slice == slice_count || (k > 0 && slice >= next_slice_[k - 1])) continue;
      if (!ready(context, k, slice)) {
        if (!status_.ok()) return Advance::kFailed;
        continue;
      }
      run_stage(context, k, slice);
      ++next_slice_[k];
      if (k == 0) prefetch_outputs(slice);
      if (k + 1 == stage_count) {
        context.control(context.rank)
            .done.position.store(start_ + (slice + 1) * plan_->slicing_.entry_bytes,
                                 std::memory_order_release);
        context.wake_sleepers();
      }
      again = moved = true;
      break;
    }
  }
  if (!described_) {
    context.describe_call(plan_->what_, call_->count);
    described_ = true;
  }
  if (next_slice_[stage_count - 1] == slice_count) {
    if (plan_->hears_all_) {
      context.all_done = std::max(context.all_done, start_);
    }
    return Advance::kDone;
  }
  return moved ? Advance::kMoved : Advance::kBlocked;
}

void MappedRun::collect_awaited(const Context& context, std::vector<Rank>* ranks) const {
  ranks->clear();
  for (uint32_t k = 0; k < plan_->stages_.size(); ++k) {
    const uint64_t slice = next_slice_[k];
    if (slice == plan_->slice_count_ || (k > 0 && slice >= next_slice_[k - 1])) continue;
    const Stage& stage = plan_->stages_[k];
    const uint64_t end = start_ + (slice + 1) * plan_->slicing_.entry_bytes;
    if (k == 0) {
      const uint64_t ring = plan_->slicing_.ring_bytes;
      const uint64_t needed = std::max(context.geometry_position, end > ring ? end - ring : 0);
      for (Rank p = 0; p < context.rank_count; ++p) {
        if (p != context.rank &&
            context.control(p).done.position.load(std::memory_order_acquire) < needed) {
          ranks->push_back(p);
        }
      }
    }
    if (stage.wait_phase < 0 || !holds(stage.wait_when)) continue;
    for (const Rank p : stage.wait_ranks) {
      const auto& line = context.control(p).phase[stage.wait_phase];
      if (line.position.load(std::memory_order_acquire) < end) ranks->push_back(p);
    }
  }
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

RunPosition MappedRun::position() const {
  const auto stage_count = static_cast<uint32_t>(plan_->stages_.size());
  RunPosition at{0, stage_count, plan_->slice_count_, plan_->slice_count_};
  // The last stage with work to do frees the ring for those before it.
  for (uint32_t k = stage_count; k-- > 0;) {
    const uint64_t slice = next_slice_[k];
    if (slice == plan_->slice_count_ || (k > 0 && slice >= next_slice_[k - 1])) continue;
    at.step = k;
    at.slice = slice;
    break;
  }
  return at;
}

}  // namespace weir::engine
