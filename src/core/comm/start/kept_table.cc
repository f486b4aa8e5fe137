// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/kept_table.h"

#include <fmt/format.h>

#include <map>

#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/cost/cache.h"

namespace weir::comm {

namespace {

constinit InheritedState<std::map<std::string, cost::Table>> of_process;
constexpr size_t kTablesMax = 256;

void remember(const std::string& key, const cost::Table& table) {
  const auto tables = of_process.use();
  if (tables->size() < kTablesMax) tables->emplace(key, table);
}

}  // namespace

std::string KeptTable::key() const { return directory_ + "/" + cost::cache_file_name(hash_); }

std::optional<cost::Table> KeptTable::find() const {
  if (!keeps()) return std::nullopt;
  {
    const auto tables = of_process.use();
    const auto found = tables->find(key());
    if (found != tables->end()) return found->second;
  }
  const std::optional<cost::Table> cached = cost::load_cached_table(directory_, hash_).table;
  if (!cached) return std::nullopt;
  const std::string reason = cost::why_implausible(*cached, circumstances_);
  if (!reason.empty()) {
    log_info(fmt::format("costs are measured anew: in '{}' {}", key(), reason));
    return std::nullopt;
  }
  remember(key(), *cached);
  return cached;
}

void KeptTable::keep(const cost::Table& table) const {
  if (!keeps()) return;
  remember(key(), table);
  const std::string reason = cost::why_implausible(table, circumstances_);
  if (!reason.empty()) {
    log_info(fmt::format("measured costs are used by this process and not cached: {}", reason));
    return;
  }
  const Status kept = cost::store_cached_table(directory_, table);
  if (!kept.ok()) log_info(fmt::format("measured costs are not cached: {}", kept.text()));
}

void doubt_if_times_disagree(const std::string& directory, const cost::Table& table,
                             const cost::DecisionLog& decisions) {
  if (directory.empty()) return;
  const auto found = cost::disagreement(decisions);
  if (!found) return;
  const std::string reason = fmt::format(
      "calls took {:.3g} times as long as predicted, the median of {} decisions and {} calls",
      found->measured_over_predicted, found->decision_count, found->call_count);
  auto noted = cost::doubt_cached_table(directory, table, reason);
  if (!noted.ok()) {
    log_info(fmt::format("doubts about cached costs are not noted: {}", noted.status().text()));
  } else if (noted.value()) {
    log_info(fmt::format("{}: the next process to start measures costs anew", reason));
  }
}

}  // namespace weir::comm
