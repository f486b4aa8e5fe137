// SPDX-License-Identifier: Apache-2.0
// `rings`: as `ring`, around several rings at once that were found for the machine
// (graph/rings.h), each for an equal part of every block. The rings have lanes of their own, as far
// as there are lanes; rings that share one take turns, in the same order on all ranks.
//
// In place: a chunk of Input is read for the last time by the operation that writes the chunk of
// Output.
#include "core/graph/rings.h"

#include <algorithm>
#include <array>
#include <vector>

#include "core/algo/catalog.h"
#include "core/algo/support.h"

namespace weir::algo {
namespace {

using sched::Builder;
using sched::Ref;
using sched::Shape;

bool has_rings(const Problem& problem) {
  return problem.rings != nullptr && problem.rank_count > 1 &&
         problem.rings->rank_count == problem.rank_count;
}

uint32_t ring_count_of(const Problem& problem) {
  return static_cast<uint32_t>(problem.rings->orders.size());
}

uint32_t lane_count_of(const Problem& problem) {
  return std::clamp(ring_count_of(problem), 1u, std::max(1u, problem.lanes_max));
}

Shape gathering_shape(const Problem& problem) {
  return {.chunk_count = problem.rank_count * ring_count_of(problem),
          .lane_count = lane_count_of(problem)};
}

Shape reducing_shape(const Problem& problem) {
  Shape shape = gathering_shape(problem);
  shape.scratch_slots = ring_count_of(problem);
  return shape;
}

// A rank's place in one of the rings.
class Place {
 public:
  Place(const Problem& problem, Rank rank, uint32_t ring)
      : order_(problem.rings->orders[ring]),
        ring_(ring),
        ring_count_(ring_count_of(problem)),
        position_(problem.rings->positions[ring][rank]) {}

  uint32_t position() const { return position_; }
  Rank next() const { return order_[add_mod(position_, 1, size())]; }
  Rank previous() const { return order_[sub_mod(position_, 1, size())]; }
  // This ring's part of the block of the rank at `position`.
  uint32_t chunk(uint32_t position) const { return order_[position] * ring_count_ + ring_; }

 private:
  Rank size() const { return static_cast<Rank>(order_.size()); }

  const std::vector<Rank>& order_;
  uint32_t ring_;
  uint32_t ring_count_;
  uint32_t position_;
};

// visit(place, ring) for each ring, in its lane; rings in the order of their numbers.
template <typename Visit>
void for_each_ring(const Problem& problem, Rank rank, Builder& b, Visit&& visit) {
  const uint32_t lanes = lane_count_of(problem);
  for (uint32_t ring = 0; ring < ring_count_of(problem); ++ring) {
    b.lane(static_cast<uint8_t>(ring % lanes));
    visit(Place(problem, rank, ring), ring);
  }
}

uint32_t all_reduce_step_count(const Problem& problem, Rank /*rank*/) {
  return 2 * (problem.rank_count - 1);
}

uint32_t half_step_count(const Problem& problem, Rank /*rank*/) { return problem.rank_count - 1; }

void all_reduce_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  for_each_ring(problem, rank, b, [&](const Place& place, uint32_t ring) {
    if (step < n - 1) {
      const uint32_t sent = sub_mod(place.position(), step, n);
      const uint32_t sent_chunk = place.chunk(sent);
      const uint32_t folded = place.chunk(sub_mod(sent, 1, n));
      b.send(place.next(), step == 0 ? b.input(sent_chunk) : b.output(sent_chunk));
      b.recv(place.previous(), b.scratch(ring));
      b.reduce(b.output(folded), std::array{b.scratch(ring), b.input(folded)});
    } else {
      const uint32_t sent = sub_mod(add_mod(place.position(), 1, n), step - (n - 1), n);
      b.send(place.next(), b.output(place.chunk(sent)));
      b.recv(place.previous(), b.output(place.chunk(sub_mod(sent, 1, n))));
    }
  });
}

void reduce_scatter_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  for_each_ring(problem, rank, b, [&](const Place& place, uint32_t ring) {
    const uint32_t sent = sub_mod(place.position(), step + 1, n);
    const uint32_t folded = place.chunk(sub_mod(sent, 1, n));
    b.send(place.next(), step == 0 ? b.input(place.chunk(sent)) : b.scratch(ring));
    b.recv(place.previous(), b.scratch(ring));
    const Ref dst = step == n - 2 ? b.output(folded) : b.scratch(ring);
    b.reduce(dst, std::array{b.scratch(ring), b.input(folded)});
  });
}

void all_gather_step(const Problem& problem, Rank rank, uint32_t step, Builder& b) {
  const Rank n = problem.rank_count;
  for_each_ring(problem, rank, b, [&](const Place& place, uint32_t /*ring*/) {
    const uint32_t sent = sub_mod(place.position(), step, n);
    const uint32_t own = place.chunk(place.position());
    b.send(place.next(), step == 0 ? b.input(own) : b.output(place.chunk(sent)));
    if (step == 0) b.copy(b.output(own), b.input(own));
    b.recv(place.previous(), b.output(place.chunk(sub_mod(sent, 1, n))));
  });
}

}  // namespace

const Algorithm kRingsAllReduce = {
    .name = "rings",
    .summary = "reduce-scatter and all-gather around several rings that were found for the machine",
    .collective = Collective::kAllReduce,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .uses_rings = true,
    .supports = has_rings,
    .shape = reducing_shape,
    .step_count = all_reduce_step_count,
    .step = all_reduce_step,
};

const Algorithm kRingsReduceScatter = {
    .name = "rings",
    .summary = "partial folds travel around several rings that were found for the machine",
    .collective = Collective::kReduceScatter,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToAll,
    .uses_rings = true,
    .supports = has_rings,
    .shape = reducing_shape,
    .step_count = half_step_count,
    .step = reduce_scatter_step,
};

const Algorithm kRingsAllGather = {
    .name = "rings",
    .summary = "blocks travel around several rings that were found for the machine",
    .collective = Collective::kAllGather,
    .needs_mapped = false,
    .needs_user_windows = false,
    .rank_order = false,
    .lengths = BlockLengths::kKnownToAll,
    .uses_rings = true,
    .supports = has_rings,
    .shape = gathering_shape,
    .step_count = half_step_count,
    .step = all_gather_step,
};

}  // namespace weir::algo
