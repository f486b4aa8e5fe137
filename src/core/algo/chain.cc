// SPDX-License-Identifier: Apache-2.0
// `chain`: the data of one root passes from rank to rank in a line, a slice at a time, so that all
// links are busy once the line is full. It moves the fewest bytes per port; latency n - 1. For long
// messages.
//
// In place: only the root has both buffers; a broadcast copies them onto each other, and a reduce
// reads Input in the operation that writes Output.
#include <array>

#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Shape;

Shape broadcast_shape(const Problem& /*problem*/) { return {.chunk_count = 1}; }
Shape reduce_shape(const Problem& /*problem*/) { return {.chunk_count = 1, .scratch_slots = 1}; }

void broadcast_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  const Rank distance = sub_mod(rank, problem.root, n);
  if (distance > 0) b.recv(sub_mod(rank, 1, n), b.output(0));
  if (distance + 1 < n) b.send(add_mod(rank, 1, n), distance == 0 ? b.input(0) : b.output(0));
  if (distance == 0) b.copy(b.output(0), b.input(0));
}

// Runs from the rank before the root backwards to the root.
void reduce_step(const Problem& problem, Rank rank, uint32_t /*step*/, Builder& b) {
  const Rank n = problem.rank_count;
  if (emit_alone(problem, 1, b)) return;
  const Rank distance = sub_mod(rank, problem.root, n);
  const Rank towards_root = sub_mod(rank, 1, n);
  if (distance == n - 1) {
    b.send(towards_root, b.input(0));
    return;
  }
  b.recv(add_mod(rank, 1, n), b.scratch(0));
  b.reduce(distance == 0 ? b.output(0) : b.scratch(0), std::array{b.input(0), b.scratch(0)});
  if (distance > 0) b.send(towards_root, b.scratch(0));
}

}  // namespace

const Algorithm kChainBroadcast = {
    .name = "chain",
    .summary = "slices pass from the root along a line of ranks",
    .collective = Collective::kBroadcast,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = broadcast_shape,
    .step_count = one_step,
    .step = broadcast_step,
    .formula = {"(n-1) (a + m b)",
                [](const Symbols& q) {
                  return std::max((q.n - 1) * (q.a + q.m * q.b), q.o + q.m * q.x);
                },
                always_exact},
};

const Algorithm kChainReduce = {
    .name = "chain",
    .summary = "partial folds of slices pass along a line of ranks to the root",
    .collective = Collective::kReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .supports = any_problem,
    .shape = reduce_shape,
    .step_count = one_step,
    .step = reduce_step,
    .formula = {"(n-1) (a + m b + m y)",
                [](const Symbols& q) { return (q.n - 1) * (q.a + q.m * (q.b + q.y)); },
                always_exact},
};

}  // namespace weir::algo
