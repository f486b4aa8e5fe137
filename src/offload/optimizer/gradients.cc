// SPDX-License-Identifier: Apache-2.0
#include "offload/optimizer/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "core/base/check.h"
#include "offload/kernels/gradient_accumulate.h"
#include "offload/kernels/worker_pool.h"
#include "offload/optimizer/number_format.h"

namespace weir::offload {
namespace {

// Elements that a worker takes at a time for the statistics.
constexpr uint64_t kStatsWindow = 64 * kStatsBlock;

// Sums begin at -0, which every number is added to without a change, also +0 and -0.
constexpr float kNothing = -0.0f;

void add_window(const std::vector<GradientSegment>& segments, uint64_t offset, uint64_t begin,
                uint64_t end, GradientStats* stats) {
  // `offset` is where element 0 lies in the whole group, whose blocks count.
  float block[kStatsBlock];
  for (uint64_t at = begin; at < end;) {
    const uint64_t block_end = std::min(end, at + kStatsBlock - (offset + at) % kStatsBlock);
    const size_t index = segment_from(segments, at);
    if (index == segments.size()) return;
    const GradientSegment& segment = segments[index];
    if (segment.first <= at && segment.end() >= block_end) {
      // A run of whole blocks, and what precedes the first border.
      uint64_t run_end = std::min(end, segment.end());
      if (run_end < end) run_end -= (offset + run_end) % kStatsBlock;
      run_end = std::max(run_end, block_end);
      stats->add(segment.at(at), segment.type, block_end - at);
      if (run_end > block_end) stats->add(segment.at(block_end), segment.type, run_end - block_end);
      at = run_end;
      continue;
    }
    gather(segments, at, block_end - at, block);
    stats->add(block, DataType::kFloat32, block_end - at);
    at = block_end;
  }
}

}  // namespace

size_t segment_from(const std::vector<GradientSegment>& segments, uint64_t element) {
  return static_cast<size_t>(
      std::upper_bound(segments.begin(), segments.end(), element,
                       [](uint64_t e, const GradientSegment& s) { return e < s.end(); }) -
      segments.begin());
}

void gather(const std::vector<GradientSegment>& segments, uint64_t first, uint64_t count,
            float* to) {
  std::fill(to, to + count, 0.0f);
  const uint64_t end = first + count;
  for (size_t i = segment_from(segments, first); i < segments.size(); ++i) {
    const GradientSegment& segment = segments[i];
    if (segment.first >= end) return;
    const uint64_t from = std::max(first, segment.first);
    to_float(segment.at(from), segment.type, std::min(end, segment.end()) - from,
             to + (from - first));
  }
}

Gradients::Gradients(const std::vector<ParameterGroup>* groups)
    : parameters_(*groups), groups_(groups->size()) {}

std::string Gradients::text_of(uint32_t group, uint64_t first, uint64_t end) const {
  return fmt::format("group '{}', elements {} to {}", parameters_[group].name, first, end - 1);
}

Status Gradients::refer(uint32_t group, const GradientSegment& segment) {
  Group& own = groups_[group];
  const auto taken = [&](uint64_t first, uint64_t end, const char* how) {
    return invalid_argument(
        fmt::format("{} have a gradient already: elements {} to {} were {}",
                    text_of(group, std::max(first, segment.first), std::min(end, segment.end())),
                    first, end - 1, how));
  };
  auto after = own.references.lower_bound(segment.end());
  if (after != own.references.begin()) {
    const GradientSegment& before = std::prev(after)->second;
    if (before.end() > segment.first) return taken(before.first, before.end(), "given");
  }
  auto sum = own.accumulated.lower_bound(segment.end());
  if (sum != own.accumulated.begin()) {
    --sum;
    if (sum->second > segment.first) return taken(sum->first, sum->second, "accumulated");
  }
  own.references.emplace(segment.first, segment);
  return {};
}

uint64_t Gradients::accumulator_bytes(uint32_t group) const {
  if (!groups_[group].pieces.empty()) return 0;
  return (parameters_[group].element_count + kAccumulatorElements - 1) / kAccumulatorElements *
         kAccumulatorElements * sizeof(float);
}

void Gradients::give_accumulators(uint32_t group, std::vector<ArenaBuffer> pieces) {
  for (const ArenaBuffer& piece : pieces)
    std::fill_n(reinterpret_cast<float*>(piece.data()), piece.bytes() / sizeof(float), kNothing);
  groups_[group].pieces = std::move(pieces);
}

Status Gradients::accumulate(WorkerPool& pool, uint32_t group, const GradientSegment& segment) {
  Group& own = groups_[group];
  auto after = own.references.lower_bound(segment.end());
  if (after != own.references.begin()) {
    const GradientSegment& before = std::prev(after)->second;
    if (before.end() > segment.first)
      return invalid_argument(
          fmt::format("{} have a gradient already: elements {} to {} were given",
                      text_of(group, std::max(before.first, segment.first),
                              std::min(before.end(), segment.end())),
                      before.first, before.end() - 1));
  }
  const uint64_t first_piece = segment.first / kAccumulatorElements;
  const uint64_t piece_end = (segment.end() + kAccumulatorElements - 1) / kAccumulatorElements;
  pool.parallel_for(piece_end - first_piece, 1, [&](uint64_t begin, uint64_t end) {
    for (uint64_t piece = first_piece + begin; piece < first_piece + end; ++piece) {
      const uint64_t base = piece * kAccumulatorElements;
      const uint64_t from = std::max(segment.first, base);
      const uint64_t to = std::min(segment.end(), base + kAccumulatorElements);
      gradient_accumulate(reinterpret_cast<float*>(own.pieces[piece].data()) + (from - base),
                          segment.at(from), segment.type, to - from);
    }
  });
  uint64_t first = segment.first;
  uint64_t end = segment.end();
  auto next = own.accumulated.upper_bound(end);
  while (next != own.accumulated.begin()) {
    auto before = std::prev(next);
    if (before->second < first) break;
    first = std::min(first, before->first);
    end = std::max(end, before->second);
    own.accumulated.erase(before);
  }
  own.accumulated[first] = end;
  return {};
}

Status Gradients::prepare(bool complete) {
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_[i];
    std::vector<GradientSegment>& segments = group.segments;
    segments.clear();
    for (const auto& [first, segment] : group.references) segments.push_back(segment);
    for (const auto& [first, end] : group.accumulated) {
      for (uint64_t at = first; at < end;) {
        const uint64_t piece = at / kAccumulatorElements;
        const uint64_t base = piece * kAccumulatorElements;
        const uint64_t stop = std::min(end, base + kAccumulatorElements);
        segments.push_back({at, stop - at, DataType::kFloat32,
                            group.pieces[piece].data() + (at - base) * sizeof(float)});
        at = stop;
      }
    }
    std::sort(segments.begin(), segments.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    size_t kept = 0;
    for (size_t k = 1; k < segments.size(); ++k) {
      GradientSegment& last = segments[kept];
      const GradientSegment next = segments[k];
      if (last.end() == next.first && last.type == next.type && last.at(last.end()) == next.data)
        last.count += next.count;
      else
        segments[++kept] = next;
    }
    if (!segments.empty()) segments.resize(kept + 1);
    if (!complete) continue;
    uint64_t covered = 0;
    for (const GradientSegment& segment : segments) {
      if (segment.first != covered)
        return invalid_argument(text_of(i, covered, segment.first) + " have no gradient");
      covered = segment.end();
    }
    if (covered != parameters_[i].element_count)
      return invalid_argument(text_of(i, covered, parameters_[i].element_count) +
                              " have no gradient");
  }
  return {};
}

GradientStats Gradients::stats(WorkerPool& pool) const {
  GradientStats all;
  std::mutex mutex;
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    const std::vector<GradientSegment>& segments = groups_[i].segments;
    if (segments.empty()) continue;
    // The first window ends on a border of the whole group's blocks, and so do all others.
    const uint64_t offset = parameters_[i].first_element % kStatsBlock;
    pool.parallel_for(
        parameters_[i].element_count + offset, kStatsWindow, [&](uint64_t begin, uint64_t end) {
          GradientStats own;
          add_window(segments, offset, begin > offset ? begin - offset : 0, end - offset, &own);
          const std::lock_guard lock(mutex);
          all.add(own);
        });
  }
  return all;
}

NotFinite Gradients::not_finite(WorkerPool& pool, float factor) const {
  NotFinite all;
  std::mutex mutex;
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    const std::vector<GradientSegment>& segments = groups_[i].segments;
    if (segments.empty()) continue;
    pool.parallel_for(parameters_[i].element_count, kStatsBlock, [&](uint64_t begin, uint64_t end) {
      float block[kStatsBlock];
      gather(segments, begin, end - begin, block);
      NotFinite own{0, i, 0};
      for (uint64_t at = end; at > begin; --at) {
        if (std::isfinite(block[at - 1 - begin] * factor)) continue;
        ++own.count;
        own.element = at - 1;
      }
      if (own.count == 0) return;
      const std::lock_guard lock(mutex);
      const bool first = all.count == 0 || (all.group == i && own.element < all.element);
      all = {all.count + own.count, first ? i : all.group, first ? own.element : all.element};
    });
  }
  return all;
}

void Gradients::clear(WorkerPool& pool) {
  for (Group& group : groups_) {
    group.references.clear();
    group.segments.clear();
    for (const auto& [first, end] : group.accumulated) {
      const uint64_t first_piece = first / kAccumulatorElements;
      const uint64_t count = (end - 1) / kAccumulatorElements + 1 - first_piece;
      pool.parallel_for(count, 1, [&](uint64_t begin, uint64_t stop) {
        for (uint64_t piece = first_piece + begin; piece < first_piece + stop; ++piece)
          std::fill_n(reinterpret_cast<float*>(group.pieces[piece].data()), kAccumulatorElements,
                      kNothing);
      });
    }
    group.accumulated.clear();
  }
}

}  // namespace weir::offload
