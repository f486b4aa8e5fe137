// SPDX-License-Identifier: Apache-2.0
#include "core/algo/algorithm.h"

#include "core/base/check.h"

namespace weir::algo {

sched::Program compile(const Algorithm& algorithm, const Problem& problem, Rank rank) {
  WEIR_CHECK(problem.collective == algorithm.collective, "the algorithm is for another collective");
  WEIR_CHECK(rank < problem.rank_count, "no such rank");
  WEIR_CHECK(algorithm.supports(problem), "ask supports() before compile()");
  sched::Program program;
  program.collective = problem.collective;
  program.rank = rank;
  program.rank_count = problem.rank_count;
  program.root = problem.root;
  program.shape = algorithm.shape(problem);
  sched::Builder builder(rank, &program.ops, &program.operands);
  const uint32_t step_count = algorithm.step_count(problem, rank);
  for (uint32_t step = 0; step < step_count; ++step) {
    builder.lane(0);
    algorithm.step(problem, rank, step, builder);
  }
  return program;
}

}  // namespace weir::algo
