// SPDX-License-Identifier: Apache-2.0
#include "simnet/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/algo/algorithm.h"
#include "simnet/programs.h"

namespace weir::simnet {

namespace {

constexpr uint64_t kSecond = 1000 * kMillisecond;
constexpr uint64_t kElementBytesMax = 8;

void draw_hosts(Random& random, Plan* plan) {
  const uint32_t n = plan->rank_count;
  const uint64_t host_count = random.one_in(4) ? 1 : random.between(2, n);
  const uint64_t shape = random.below(3);
  for (uint32_t rank = 0; rank < n; ++rank) {
    const uint64_t host = shape == 0   ? rank * host_count / n  // one after the other
                          : shape == 1 ? rank % host_count      // in turns
                                       : random.below(host_count);
    plan->host_of_rank.push_back(static_cast<uint32_t>(host));
  }
}

void draw_fabric(Random& random, Plan* plan) {
  FabricOptions& fabric = plan->fabric;
  const uint64_t eager[] = {0, 64, 1024, 16384, 1 << 20};
  fabric.eager_bytes = eager[random.below(5)];
  fabric.window_bytes = 1 + random.of_any_size(1 << 18);
  fabric.piece_bytes_max = 1 + random.of_any_size(1 << 16);
  // A piece of a byte is a piece; many of them are no better.
  fabric.piece_bytes_max = std::max<uint64_t>(fabric.piece_bytes_max, 200);
  fabric.window_bytes = std::max<uint64_t>(fabric.window_bytes, 200);
  fabric.near_ns = 500 + random.below(5 * kMicrosecond);
  fabric.far_ns = 2 * kMicrosecond + random.below(100 * kMicrosecond);
  fabric.jitter_ns = random.of_any_size(100 * kMicrosecond);
  const uint32_t lanes[] = {4, 8, 16, 16};
  fabric.lane_count = lanes[random.below(4)];
  fabric.credit = static_cast<uint32_t>(1 + random.below(8));
  fabric.progress_tells = random.one_in(2);
  plan->world.yield_ns_max = 500 + random.of_any_size(50 * kMicrosecond);
}

// Algorithms and slices that the router would hardly choose for such sizes.
void draw_rules(Random& random, Plan* plan) {
  const bool mapped = plan->fabric.shares_memory;
  const std::vector<const algo::Algorithm*> programs = programs_for(plan->rank_count);
  plan->rules.file = "rules.toml";
  for (uint32_t c = 0; c <= static_cast<uint32_t>(Collective::kBarrier); ++c) {
    if (random.one_in(4)) continue;
    std::vector<const algo::Algorithm*> algorithms;
    for (const algo::Algorithm* algorithm : algo::all_algorithms()) {
      if (algorithm->collective == static_cast<Collective>(c) &&
          (mapped || !algorithm->needs_mapped) && !algorithm->needs_user_windows) {
        algorithms.push_back(algorithm);
      }
    }
    if (algorithms.empty()) continue;
    cost::Rule rule;
    rule.collective = static_cast<Collective>(c);
    // One in two is from elsewhere, where there are such.
    if (random.one_in(2)) {
      std::vector<const algo::Algorithm*> elsewhere;
      for (const algo::Algorithm* algorithm : programs) {
        if (algorithm->collective == rule.collective && (mapped || !algorithm->needs_mapped)) {
          elsewhere.push_back(algorithm);
        }
      }
      if (!elsewhere.empty()) algorithms = elsewhere;
    }
    rule.algorithm = algorithms[random.below(algorithms.size())];
    if (random.one_in(2)) rule.slice_bytes = 64 * random.between(2, 40);
    plan->rules.rules.push_back(rule);
  }
}

// How long at most a sender with so small a window naps while its receiver takes what it has sent.
int64_t slowest_ms(const Plan& plan) {
  uint64_t turns = 0;
  for (const Operation& op : plan.operations) {
    uint64_t elements = op.count * plan.rank_count;
    for (const size_t count : op.counts) elements += count;
    for (const Message& message : op.messages) elements += message.count;
    turns += elements * kElementBytesMax / plan.fabric.window_bytes;
  }
  return static_cast<int64_t>(turns * plan.world.nap_ns_max / kMillisecond);
}

void draw_fault(Random& random, Plan* plan) {
  const uint64_t which = random.below(100);
  plan->fault = which < 60   ? Fault::kNone
                : which < 74 ? Fault::kKill
                : which < 84 ? Fault::kStop
                : which < 90 ? Fault::kCut
                : which < 95 ? Fault::kMismatch
                             : Fault::kAbort;
  plan->culprit = static_cast<uint32_t>(random.below(plan->rank_count));
  const bool one_host = std::all_of(plan->host_of_rank.begin(), plan->host_of_rank.end(),
                                    [&](uint32_t h) { return h == plan->host_of_rank[0]; });
  if (plan->fault == Fault::kCut && one_host) plan->fault = Fault::kStop;
  switch (plan->fault) {
    case Fault::kKill:
    case Fault::kStop:
      plan->fault_at = 1 + random.of_any_size(plan->fabric.shares_memory ? 2 * kMillisecond : 300);
      break;
    case Fault::kCut:
      plan->fault_at = random.of_any_size(5 * kMillisecond);
      break;
    case Fault::kMismatch:
    case Fault::kAbort:
      plan->fault_at = random.below(plan->operations.size());
      // Messages are in no order with collectives: who calls one for the other is not comparable.
      plan->operations[plan->fault_at].kind = Kind::kAllGather;
      break;
    case Fault::kNone:
      break;
  }
  if (plan->fault == Fault::kNone) {
    plan->world.quiet_ns_max = 3 * kSecond;
    return;
  }
  // A network that needs longer than the deadline is no fault of the culprit's.
  plan->timeout_ms = static_cast<int64_t>(random.between(400, 2000)) + slowest_ms(*plan);
  plan->world.quiet_ns_max = static_cast<uint64_t>(plan->timeout_ms) * 4 * kMillisecond;
}

// Trouble that passes, and must cost its time and nothing else.
void draw_passing_trouble(Random& random, Plan* plan) {
  if (plan->fault != Fault::kNone) return;
  if (random.one_in(3) && !plan->fabric.shares_memory) {
    for (uint64_t i = random.between(1, 4); i > 0; --i) {
      Stall stall;
      stall.a = static_cast<uint32_t>(random.below(plan->rank_count));
      stall.b = static_cast<uint32_t>(random.below(plan->rank_count));
      stall.from_ns = kSecond + random.of_any_size(5 * kMillisecond);
      stall.until_ns = stall.from_ns + random.of_any_size(kSecond / 2);
      plan->stalls.push_back(stall);
    }
  }
  if (random.one_in(4)) {
    plan->paused = static_cast<uint32_t>(random.below(plan->rank_count));
    plan->pause_at = 1 + random.of_any_size(plan->fabric.shares_memory ? kMillisecond : 200);
    plan->pause_ns = 1 + random.of_any_size(kSecond / 2);
  }
}

}  // namespace

const char* name_of(Fault fault) {
  constexpr const char* kNames[] = {"none", "kill", "stop", "cut", "mismatch", "abort"};
  return kNames[static_cast<size_t>(fault)];
}

Plan draw_plan(uint64_t seed) {
  Random random(mix(seed, 0x5157));
  Plan plan;
  plan.seed = seed;
  plan.world.seed = seed;
  plan.rank_count =
      static_cast<uint32_t>(random.one_in(3) ? random.between(2, 9) : random.between(2, 5));
  draw_hosts(random, &plan);
  draw_fabric(random, &plan);
  if (random.one_in(4)) {
    plan.fabric.shares_memory = true;
    plan.host_of_rank.assign(plan.rank_count, 0);
  }
  draw_rules(random, &plan);
  plan.deterministic = random.one_in(5);
  OperationLimits limits;
  limits.rank_count = plan.rank_count;
  limits.elements_max = random.one_in(40) ? 20'000 : random.one_in(4) ? 2000 : 200;
  for (uint64_t i = random.between(2, 8); i > 0; --i) {
    plan.operations.push_back(draw_operation(random, limits));
  }
  draw_fault(random, &plan);
  draw_passing_trouble(random, &plan);
  if (plan.fault == Fault::kNone && random.one_in(6)) {
    const uint64_t colors = random.between(1, 3);
    std::vector<uint32_t> members(colors, 0);
    for (uint32_t rank = 0; rank < plan.rank_count; ++rank) {
      const int color = static_cast<int>(random.below(colors + 1)) - 1;
      plan.color_of_rank.push_back(color);
      if (color >= 0) ++members[static_cast<size_t>(color)];
    }
    for (uint64_t c = 0; c < colors; ++c) {
      plan.of_color.emplace_back();
      if (members[c] == 0) continue;
      limits.rank_count = members[c];
      for (int i = 0; i < 2; ++i) plan.of_color.back().push_back(draw_operation(random, limits));
    }
  }
  if (plan.fault == Fault::kKill || plan.fault == Fault::kStop || plan.fault == Fault::kCut) {
    uint32_t left = 0;
    for (uint32_t rank = 0; rank < plan.rank_count; ++rank) {
      left += plan.fault == Fault::kCut ? !plan.is_cut_off(rank) : rank != plan.culprit;
    }
    limits.rank_count = left;
    for (int i = 0; i < 2; ++i) plan.after.push_back(draw_operation(random, limits));
  }
  if (plan.fault == Fault::kNone) plan.fabric.sees_death = !random.one_in(6);
  plan.stays_away = plan.fault == Fault::kNone && random.one_in(2);
  return plan;
}

std::string Plan::describe() const {
  std::string text = fmt::format(
      "seed {}: {} ranks on hosts {}; {} lanes, credit {}, eager {}, window {}, pieces {}{}{}; "
      "timeout {} ms; fault {}{}",
      seed, rank_count, fmt::join(host_of_rank, " "), fabric.lane_count, fabric.credit,
      fabric.eager_bytes, fabric.window_bytes, fabric.piece_bytes_max,
      fabric.sees_death ? "" : ", deaths unseen", deterministic ? ", deterministic" : "",
      timeout_ms, name_of(fault), fabric.shares_memory ? " in shared memory" : "");
  if (stays_away) text += "; ranks stay away";
  if (fault != Fault::kNone) text += fmt::format(" of rank {} at {}", culprit, fault_at);
  if (pause_ns != 0) {
    text += fmt::format("; rank {} pauses for {} ns at post {}", paused, pause_ns, pause_at);
  }
  for (const Stall& s : stalls) {
    text += fmt::format("; ranks {} and {} stall from {} to {}", s.a, s.b, s.from_ns, s.until_ns);
  }
  text += "\n";
  for (const cost::Rule& rule : rules.rules) {
    text += fmt::format("  rule: {} by {}, slices of {}\n", weir::name_of(rule.collective),
                        rule.algorithm->name, rule.slice_bytes);
  }
  for (const Operation& op : operations) text += "  " + op.describe() + "\n";
  for (size_t c = 0; c < of_color.size(); ++c) {
    for (const Operation& op : of_color[c])
      text += fmt::format("  color {}: {}\n", c, op.describe());
  }
  if (!color_of_rank.empty()) {
    text += fmt::format("  colors of ranks {}\n", fmt::join(color_of_rank, " "));
  }
  for (const Operation& op : after) text += "  after: " + op.describe() + "\n";
  return text;
}

}  // namespace weir::simnet
