// SPDX-License-Identifier: Apache-2.0
// Gradients: the gradients of the next step, by range of each group: references to the caller's
// arrays, or the optimizer's own sums in f32. Together they must hold every element exactly once.
// One thread at a time; reading prepared segments is thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "offload/io/arena.h"
#include "offload/kernels/gradient_stats.h"
#include "offload/optimizer/options.h"

namespace weir::offload {

class WorkerPool;

// Elements of a group that lie one after another in memory.
struct GradientSegment {
  uint64_t first = 0;
  uint64_t count = 0;
  DataType type = DataType::kFloat32;
  const unsigned char* data = nullptr;

  const unsigned char* at(uint64_t element) const {
    return data + (element - first) * element_bytes(type);
  }
  uint64_t end() const { return first + count; }
};

// Elements of a piece of accumulated gradients: small, so that any gap in the budget's arenas can
// hold some.
inline constexpr uint64_t kAccumulatorElements = 16384;

class Gradients {
 public:
  explicit Gradients(const std::vector<ParameterGroup>* groups);

  // kInvalidArgument, naming group and range, when a part of it has a gradient already.
  Status refer(uint32_t group, const GradientSegment& segment);
  // Bytes that the accumulators of the group take, 0 when they are there.
  uint64_t accumulator_bytes(uint32_t group) const;
  // The group's pieces in order, each of kAccumulatorElements except the last.
  void give_accumulators(uint32_t group, std::vector<ArenaBuffer> pieces);
  // Adds to the accumulators, which must be there. kInvalidArgument as above: a range may be
  // accumulated many times, but then not be given by reference too.
  Status accumulate(WorkerPool& pool, uint32_t group, const GradientSegment& segment);

  // Makes the segments. With `complete`, kInvalidArgument names the first group and range without a
  // gradient.
  Status prepare(bool complete);
  // The segments of a group, in order, never overlapping.
  const std::vector<GradientSegment>& segments(uint32_t group) const {
    return groups_[group].segments;
  }
  // Statistics of the prepared segments. They are the same for any division into ranges and any
  // type that holds the values: the blocks of the sum are those of the whole group.
  GradientStats stats(WorkerPool& pool) const;

  // The gradients of the prepared segments that are infinite or NaN when multiplied by `factor`.
  NotFinite not_finite(WorkerPool& pool, float factor) const;

  // Forgets all gradients after their use: references are dropped, sums are zero again.
  void clear(WorkerPool& pool);

 private:
  struct Group {
    std::map<uint64_t, GradientSegment> references;  // by first
    std::map<uint64_t, uint64_t> accumulated;        // first -> end, never adjacent
    std::vector<ArenaBuffer> pieces;
    std::vector<GradientSegment> segments;
  };
  std::string text_of(uint32_t group, uint64_t first, uint64_t end) const;

  const std::vector<ParameterGroup>& parameters_;
  std::vector<Group> groups_;
};

// The index of the first segment that ends after `element`; segments.size() when none does.
size_t segment_from(const std::vector<GradientSegment>& segments, uint64_t element);
// Reads elements [first, first + count) as f32; zero where there is no segment.
void gather(const std::vector<GradientSegment>& segments, uint64_t first, uint64_t count,
            float* to);

}  // namespace weir::offload
