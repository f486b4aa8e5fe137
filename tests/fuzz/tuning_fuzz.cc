// SPDX-License-Identifier: Apache-2.0
// What users and earlier runs say about costs and choices: tuning rules, the simulator's network,
// tables of measured times as JSON and as bytes, the plan of the fault hook.
// Each is taken, with every figure in range, or refused with a reason. The first byte says which.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "core/cost/rules.h"
#include "core/cost/table.h"
#include "core/sim/network.h"
#include "plugins/hook_fault/plan.h"

using namespace weir;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void read_rules(const std::string& text) {
  const Result<cost::Rules> parsed = cost::parse_rules(text, "input.toml");
  if (!parsed.ok()) return require(!parsed.status().text().empty());
  for (const cost::Rule& rule : parsed.value().rules) {
    require(rule.algorithm != nullptr && rule.algorithm->collective == rule.collective);
    require(rule.bytes_min <= rule.bytes_max && rule.ranks_min <= rule.ranks_max);
    require(rule.slice_bytes == 0 || (rule.slice_bytes >= 64 && rule.slice_bytes % 64 == 0));
    require(parsed.value().find(rule.collective, rule.bytes_min, rule.ranks_min) == &rule);
  }
}

void read_table(const Result<cost::Table>& table) {
  if (!table.ok()) return require(!table.status().text().empty());
  require(cost::validate(table.value()).ok());
  const cost::TableBlob blob = cost::to_blob(table.value());
  const Result<cost::Table> again = cost::table_from_blob(blob);
  require(again.ok() && cost::to_blob(again.value()) == blob);
  require(cost::table_from_json(cost::to_json(table.value())).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  switch (data[0] % 5) {
    case 0:
      read_rules(text);
      break;
    case 1: {
      const Result<sim::Network> network = sim::parse_network(text, "input.toml");
      require(network.ok() ? sim::validate(network.value()).ok()
                           : !network.status().text().empty());
      break;
    }
    case 2:
      read_table(cost::table_from_json(text));
      break;
    case 3:
      read_table(cost::table_from_blob(std::as_bytes(std::span(text.data(), text.size()))));
      break;
    default: {
      plugins::hook_fault::Plan plan;
      (void)plugins::hook_fault::parse_plan(text, &plan);
    }
  }
  return 0;
}
