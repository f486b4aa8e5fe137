// SPDX-License-Identifier: Apache-2.0
#include "core/algo/check.h"

namespace weir::algo {

sched::Access access_of(const Problem& problem) {
  return {.mapped = problem.mapped,
          .inputs_mapped = problem.inputs_mapped,
          .outputs_mapped = problem.outputs_mapped,
          .in_place = problem.in_place};
}

std::vector<sched::Program> compile_all(const Algorithm& algorithm, const Problem& problem) {
  std::vector<sched::Program> programs;
  programs.reserve(problem.rank_count);
  for (Rank rank = 0; rank < problem.rank_count; ++rank) {
    programs.push_back(compile(algorithm, problem, rank));
  }
  return programs;
}

sched::Verdict verify(const Algorithm& algorithm, const Problem& problem, uint32_t credit,
                      bool keeps_nothing) {
  return sched::verify(
      compile_all(algorithm, problem),
      {.access = access_of(problem), .credit = credit, .keeps_nothing = keeps_nothing});
}

}  // namespace weir::algo
