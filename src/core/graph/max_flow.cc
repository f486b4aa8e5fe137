// SPDX-License-Identifier: Apache-2.0
#include "core/graph/max_flow.h"

#include <algorithm>

namespace weir::graph {
namespace {
constexpr uint32_t kUnseen = UINT32_MAX;
}  // namespace

MaxFlow::MaxFlow(uint32_t vertex_count) : from_(vertex_count) {}

uint32_t MaxFlow::add_arc(uint32_t from, uint32_t to, int64_t capacity) {
  const auto half = static_cast<uint32_t>(halves_.size());
  halves_.push_back({to, half + 1, 0});
  halves_.push_back({from, half, 0});
  from_[from].push_back(half);
  from_[to].push_back(half + 1);
  capacity_.push_back(capacity);
  return half / 2;
}

bool MaxFlow::find_levels(uint32_t source, uint32_t sink) {
  level_.assign(from_.size(), kUnseen);
  queue_.clear();
  queue_.push_back(source);
  level_[source] = 0;
  for (size_t head = 0; head < queue_.size(); ++head) {
    const uint32_t vertex = queue_[head];
    for (const uint32_t id : from_[vertex]) {
      const Half& half = halves_[id];
      if (half.left <= 0 || level_[half.to] != kUnseen) continue;
      level_[half.to] = level_[vertex] + 1;
      if (half.to == sink) return true;
      queue_.push_back(half.to);
    }
  }
  return false;
}

int64_t MaxFlow::push(uint32_t vertex, uint32_t sink, int64_t most) {
  if (vertex == sink) return most;
  int64_t pushed = 0;
  for (uint32_t& next = next_[vertex]; next < from_[vertex].size(); ++next) {
    Half& half = halves_[from_[vertex][next]];
    if (half.left <= 0 || level_[half.to] != level_[vertex] + 1) continue;
    const int64_t amount = push(half.to, sink, std::min(most - pushed, half.left));
    half.left -= amount;
    halves_[half.twin].left += amount;
    pushed += amount;
    if (pushed == most) return pushed;
  }
  return pushed;
}

int64_t MaxFlow::run(uint32_t source, uint32_t sink, int64_t enough) {
  for (size_t arc = 0; arc < capacity_.size(); ++arc) {
    halves_[2 * arc].left = capacity_[arc];
    halves_[2 * arc + 1].left = 0;
  }
  int64_t flow = 0;
  while (flow < enough && find_levels(source, sink)) {
    next_.assign(from_.size(), 0);
    flow += push(source, sink, enough - flow);
  }
  return flow;
}

std::vector<bool> MaxFlow::source_side() const {
  std::vector<bool> side(from_.size());
  for (size_t i = 0; i < side.size(); ++i) side[i] = level_[i] != kUnseen;
  return side;
}

}  // namespace weir::graph
