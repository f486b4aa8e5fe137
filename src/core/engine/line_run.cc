// SPDX-License-Identifier: Apache-2.0
#include "core/engine/line_run.h"

#include <algorithm>
#include <cstring>

#include "core/base/check.h"
#include "core/engine/prefetch.h"

namespace weir::engine {

namespace {

std::atomic<uint64_t>& flag_of(unsigned char* slot, uint64_t payload_bytes) {
  return *reinterpret_cast<std::atomic<uint64_t>*>(slot + line_slot_bytes(payload_bytes) -
                                                   sizeof(uint64_t));
}

// Of rooted operations whose data this rank found there, since it is behind its peers: those that
// have used up the operations that they may be ahead read what it publishes at every poll, and so
// take the line away that it is to write next.
constexpr uint64_t kDonePublishedEvery = 8;
static_assert(kDonePublishedEvery < kOperationsAhead, "who waits for nothing else must hear of it");

}  // namespace

// A warm call is short enough for its calls of functions to count.
[[gnu::always_inline]] inline void LineRun::bind(const MappedPlan& plan, const Call& call,
                                                 uint32_t mark, uint64_t sequence, uint64_t entry,
                                                 Context& context) {
  plan_ = &plan;
  call_ = &call;
  mark_ = mark;
  next_op_ = 0;
  flag_ = call_flag(sequence, mark);
  const Rank n = context.rank_count;
  bases_.resize(2 + n);
  bases_[kBaseInput] = static_cast<unsigned char*>(const_cast<void*>(call.input));
  bases_[kBaseOutput] = static_cast<unsigned char*>(call.output);
  for (Rank p = 0; p < n; ++p) bases_[kBaseStaging + p] = context.line_entry(p, entry);
}

[[gnu::always_inline]] inline void LineRun::execute(const MappedOp& op, Context& context) {
  const uint64_t bytes = op.length_bytes;
  const Place* operands = &plan_->operands_[op.first_operand];
  unsigned char* dst = bases_[op.dst.base] + op.dst.offset_bytes;
  if (op.tree) {
    execute_tree(op, dst);
  } else if (op.reduce) {
    sources_.resize(op.operand_count);
    for (uint32_t k = 0; k < op.operand_count; ++k) {
      sources_[k] = bases_[operands[k].base] + operands[k].offset_bytes;
    }
    ReduceArgs args;
    args.dst = dst;
    args.second_dst = op.second ? bases_[op.second_dst.base] + op.second_dst.offset_bytes : nullptr;
    args.sources = sources_.data();
    args.source_count = op.operand_count;
    args.element_count = bytes / plan_->element_bytes_;
    args.scaled_source = op.scaled_operand;
    args.scale = call_->scale;
    args.divisor = op.operand_count > 1 || plan_->rank_count_ == 1 ? plan_->divisor_ : 1;
    plan_->kernel_(args);
  } else {
    const unsigned char* src = bases_[operands[0].base] + operands[0].offset_bytes;
    if (bytes > 0 && dst != src) std::memcpy(dst, src, bytes);
  }
  if (op.dst.staged) {
    flag_of(dst, bytes).store(flag_ ^ bytes, std::memory_order_release);
    context.wake_sleepers();
  }
}

void LineRun::execute_tree(const MappedOp& op, unsigned char* dst) {
  const Place* operands = &plan_->operands_[op.first_operand];
  tree_operands_.resize(op.operand_count);
  for (uint32_t k = 0; k < op.operand_count; ++k) {
    tree_operands_[k] = {bases_[operands[k].base] + operands[k].offset_bytes, operands[k].folds};
  }
  const TreeArgs args{dst, tree_operands_.data(), op.operand_count,
                      op.length_bytes / plan_->element_bytes_, plan_->divisor_};
  (op.result ? plan_->tree_.result : plan_->tree_.partial)(args);
}

void LineRun::publish_ahead(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint,
                            Context& context) {
  WEIR_CHECK(plan.mutual_, "the entries of rooted operations are told apart by their sequence");
  bind(plan, call, context.call_mark(call_fingerprint), context.sequence + 1,
       context.mutual_line_count % kMutualLineEntries, context);
  while (next_op_ < plan_->ops_.size() && plan_->ops_[next_op_].dst.staged) {
    execute(plan_->ops_[next_op_++], context);
  }
  ahead_flag_ = flag_;
  ahead_op_count_ = next_op_;
}

std::optional<Rank> LineRun::unpublished(const Context& context) const {
  for (uint32_t i = ahead_op_count_; i < plan_->ops_.size(); ++i) {
    const MappedOp& op = plan_->ops_[i];
    for (uint32_t k = 0; k < op.operand_count; ++k) {
      const Place& place = plan_->operands_[op.first_operand + k];
      if (!place.staged || place.base == kBaseStaging + context.rank) continue;
      const uint64_t seen = flag_of(bases_[place.base] + place.offset_bytes, op.length_bytes)
                                .load(std::memory_order_acquire);
      if (seen != (flag_ ^ op.length_bytes)) return place.base - kBaseStaging;
    }
  }
  return std::nullopt;
}

void LineRun::start(const MappedPlan& plan, const Call& call, uint32_t call_fingerprint,
                    Context& context) {
  described_ = heard_ = waited_ = false;
  status_ = Status();
  start_ = context.begin_operation(context.entry_bytes, context.ring_bytes, 1);
  const uint64_t entry = plan.mutual_ ? context.mutual_line_count++ % kMutualLineEntries
                                      : kMutualLineEntries + context.sequence % kRootedLineEntries;
  bind(plan, call, context.begin_mark(call_fingerprint), context.sequence, entry, context);
  if (ahead_flag_ == flag_) next_op_ = ahead_op_count_;
}

Advance LineRun::advance(Context& context) {
  const Rank self = context.rank;
  const auto op_count = static_cast<uint32_t>(plan_->ops_.size());
  const uint32_t first = next_op_;
  for (; next_op_ < op_count; ++next_op_) {
    const MappedOp& op = plan_->ops_[next_op_];
    const uint64_t bytes = op.length_bytes;
    const Place* operands = &plan_->operands_[op.first_operand];
    unsigned char* dst = bases_[op.dst.base] + op.dst.offset_bytes;
    const bool publishes = op.dst.staged;
    if (!publishes) {
      if (!described_) {
        // The published data is on its way: use the time.
        prefetch_for_write(dst, op.result ? bytes >> plan_->output_shift_ : bytes);
        context.describe_call(plan_->what_, call_->count);
        described_ = true;
      }
      for (uint32_t k = 0; k < op.operand_count; ++k) {
        const Place& place = operands[k];
        if (!place.staged || place.base == kBaseStaging + self) continue;
        const uint64_t seen =
            flag_of(bases_[place.base] + place.offset_bytes, bytes).load(std::memory_order_acquire);
        if (seen == (flag_ ^ bytes)) {
          heard_ = true;
          continue;
        }
        // The word may also be payload of an earlier operation whose slots were longer: the peer's
        // call descriptor decides.
        if (seen >> 32 == flag_ >> 32 &&
            called_otherwise(context.control(place.base - kBaseStaging), context.sequence, mark_)) {
          status_ = Status(Code::kMismatch, std::string());
          return Advance::kFailed;
        }
        waited_ = true;
        return next_op_ > first ? Advance::kMoved : Advance::kBlocked;
      }
    }
    execute(op, context);
  }
  if (!described_) context.describe_call(plan_->what_, call_->count);
  const bool is_behind = heard_ && !waited_ && !plan_->mutual_;
  if (!is_behind || context.sequence % kDonePublishedEvery == 0) context.publish_done();
  if (plan_->hears_all_) context.all_done = std::max(context.all_done, start_);
  return Advance::kDone;
}

void LineRun::collect_awaited(const Context& context, std::vector<Rank>* ranks) const {
  ranks->clear();
  for (uint32_t i = next_op_; i < plan_->ops_.size(); ++i) {
    const MappedOp& op = plan_->ops_[i];
    if (op.dst.staged) continue;
    for (uint32_t k = 0; k < op.operand_count; ++k) {
      const Place& place = plan_->operands_[op.first_operand + k];
      if (!place.staged || place.base == kBaseStaging + context.rank) continue;
      const uint64_t seen =
          flag_of(bases_[place.base] + place.offset_bytes, op.length_bytes).load();
      if (seen != (flag_ ^ op.length_bytes)) ranks->push_back(place.base - kBaseStaging);
    }
  }
  std::sort(ranks->begin(), ranks->end());
  ranks->erase(std::unique(ranks->begin(), ranks->end()), ranks->end());
}

RunPosition LineRun::position() const {
  return {next_op_, static_cast<uint32_t>(plan_->ops_.size()), 0, 1};
}

}  // namespace weir::engine
