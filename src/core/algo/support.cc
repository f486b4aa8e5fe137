// SPDX-License-Identifier: Apache-2.0
#include "core/algo/support.h"

namespace weir::algo {

bool any_problem(const Problem& /*problem*/) { return true; }

bool mapped_staging(const Problem& problem) { return problem.mapped; }

bool mapped_inputs(const Problem& problem) { return problem.mapped && problem.inputs_mapped; }

bool mapped_inputs_outputs(const Problem& problem) {
  return problem.mapped && problem.inputs_mapped && problem.outputs_mapped;
}

uint32_t one_step(const Problem& /*problem*/, Rank /*rank*/) { return 1; }

uint32_t block_count(Collective collective, Rank rank_count) {
  switch (collective) {
    case Collective::kAllToAll:
      return rank_count * rank_count;
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kGather:
    case Collective::kScatter:
      return rank_count;
    case Collective::kBarrier:
    case Collective::kSendRecv:
      return 0;
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kReduce:
      return 1;
  }
  return 0;
}

bool emit_alone(const Problem& problem, uint32_t chunk_count, sched::Builder& builder) {
  if (problem.rank_count != 1) return false;
  if (chunk_count > 0) builder.copy(builder.output(0), builder.input(0), chunk_count);
  return true;
}

void stage_all_but(uint32_t first, uint32_t last, uint32_t skipped, sched::Builder& builder) {
  if (skipped > first) {
    builder.copy(builder.staging(0), builder.input(first), skipped - first);
  }
  if (skipped + 1 < last) {
    builder.copy(builder.staging(skipped + 1 - first), builder.input(skipped + 1),
                 last - skipped - 1);
  }
}

void emit_fold_or_copy(sched::Ref dst, std::span<const sched::Ref> operands, uint32_t count,
                       sched::Builder& builder) {
  if (operands.size() == 1) {
    builder.copy(dst, operands[0], count);
  } else {
    builder.reduce(dst, operands, count);
  }
}

}  // namespace weir::algo
