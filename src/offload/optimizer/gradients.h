// SPDX-License-Identifier: Apache-2.0
// Gradients: what the next step uses, by range of each group: references to arrays of the caller, or
// sums of the optimizer's own in f32. Together they must hold every element exactly once. One thread
// at a time; reading prepared segments is thread-safe.
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

// Elements of a piece of accumulated gradients: small, so that any hole of the budget takes some.
inline constexpr uint64_t kAccumulatorElements = 16384;

class Gradients {
 public:
  explicit Gradients(const std::vector<ParameterGroup>* groups);

  // kInvalidArgument, naming group and range, when a part of it has a gradient already.
  Status refer(uint32_t group, const GradientSegment& segment);
  // Bytes that the accumulators of the group take, 0 when they are there.
  uint64_t accumulator_bytes(uint32_t group) const;
  // Its pieces in order, each of kAccumulatorElements but the last.
  void give_accumulators(uint32_t group, std::vector<ArenaBuffer> pieces);
  // Adds to the accumulators, which must be there. kInvalidArgument as above: ranges may be
  // accumulated many times, but not referred to as well.
  Status accumulate(WorkerPool& pool, uint32_t group, const GradientSegment& segment);

  // Makes the segments. `complete`: kInvalidArgument names the first group and range without one.
  Status prepare(bool complete);
  // Of a group, in order, never overlapping.
  const std::vector<GradientSegment>& segments(uint32_t group) const {
    return groups_[group].segments;
  }
  // Of the prepared segments. The same for any division into ranges and any type that holds the
  // values: the blocks of the sum are those of the whole group.
  GradientStats stats(WorkerPool& pool) const;

  // Of the prepared segments, those that are infinite or NaN when multiplied by `factor`.
  NotFinite not_finite(WorkerPool& pool, float factor) const;

  // All are used: references are forgotten, sums are zero again.
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

// The first segment that ends behind `element`; segments.size() when none does.
size_t segment_from(const std::vector<GradientSegment>& segments, uint64_t element);
// Elements [first, first + count) in f32; zero where there is no segment.
void gather(const std::vector<GradientSegment>& segments, uint64_t first, uint64_t count,
            float* to);

}  // namespace weir::offload
