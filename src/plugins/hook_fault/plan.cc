// SPDX-License-Identifier: Apache-2.0
#include "plugins/hook_fault/plan.h"

#include <charconv>

namespace weir::plugins::hook_fault {
namespace {

struct Key {
  std::string_view name;
  uint64_t Plan::*field;
  uint64_t min;
  uint64_t max;
};

constexpr uint64_t kCountMax = uint64_t{1} << 62;
constexpr Key kKeys[] = {
    {"delay_us", &Plan::delay_us, 0, 60'000'000},
    {"drop_at", &Plan::drop_at, 1, kCountMax},
    {"duplicate_at", &Plan::duplicate_at, 1, kCountMax},
    {"reorder_at", &Plan::reorder_at, 1, kCountMax},
    {"corrupt_at", &Plan::corrupt_at, 1, kCountMax},
    {"error_at", &Plan::error_at, 1, kCountMax},
    {"fail_from", &Plan::fail_from, 1, kCountMax},
    {"still_from", &Plan::still_from, 1, kCountMax},
    {"connect_fails", &Plan::connect_fails, 1, 1},
    {"kill_at", &Plan::kill_at, 1, kCountMax},
    {"stop_at", &Plan::stop_at, 1, kCountMax},
    {"rank", &Plan::rank, 0, 0xfffffffe},
    {"peer", &Plan::peer, 0, 0xfffffffe},
    {"seed", &Plan::seed, 0, UINT64_MAX},
};
constexpr size_t kKeyCount = sizeof kKeys / sizeof kKeys[0];

std::string parse_word(std::string_view word, Plan* plan, bool (&seen)[kKeyCount]) {
  const std::string quoted = "'" + std::string(word) + "'";
  const size_t equals = word.find('=');
  if (equals == std::string_view::npos) return quoted + " is not of the form key=number";
  const std::string_view name = word.substr(0, equals);
  const std::string_view digits = word.substr(equals + 1);
  for (size_t i = 0; i < kKeyCount; ++i) {
    const Key& key = kKeys[i];
    if (key.name != name) continue;
    if (seen[i]) return quoted + " is the second of its kind";
    seen[i] = true;
    uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < key.min ||
        value > key.max) {
      return quoted + " needs a number from " + std::to_string(key.min) + " to " +
             std::to_string(key.max);
    }
    plan->*key.field = value;
    return "";
  }
  std::string known;
  for (const Key& key : kKeys) known += (known.empty() ? "" : ", ") + std::string(key.name);
  return quoted + " is unknown; known are " + known;
}

}  // namespace

std::string parse_plan(std::string_view text, Plan* plan) {
  *plan = Plan();
  if (text.empty()) return "";
  bool seen[kKeyCount] = {};
  for (;;) {
    const size_t comma = text.find(',');
    std::string reason = parse_word(text.substr(0, comma), plan, seen);
    if (!reason.empty()) return reason;
    if (comma == std::string_view::npos) return "";
    text.remove_prefix(comma + 1);
  }
}

uint64_t mix(uint64_t seed, uint64_t a, uint64_t b) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + a * 0xc2b2ae3d27d4eb4fu + b * 0x165667b19e3779f9u;
  // The finalizer of MurmurHash3 (Appleby, public domain).
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdu;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

}  // namespace weir::plugins::hook_fault
