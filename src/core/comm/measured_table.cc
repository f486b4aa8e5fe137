// SPDX-License-Identifier: Apache-2.0
#include "core/comm/measured_table.h"

#include <fmt/format.h>

#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "core/base/log.h"
#include "core/cost/cache.h"
#include "core/engine/probe.h"
#include "core/topo/discover.h"

namespace weir::comm {

namespace {

// What rank 0 tells the others: a table, or that ranks 0 and 1 measure one first.
constexpr std::string_view kProbeNow = "probe";

// Discovery takes tens of milliseconds and the machine stays the same.
uint64_t topology_hash(const std::string& file) {
  static std::mutex lock;
  static std::optional<uint64_t> known;
  std::lock_guard guard(lock);
  if (!known) {
    auto topology = file.empty() ? topo::discover() : topo::read_file(file);
    if (!topology.ok()) {
      log_warn(
          fmt::format("no topology, so measured costs are not kept: {}", topology.status().text()));
    }
    known = topology.ok() ? topology.value().hash() : 0;
  }
  return *known;
}

std::string pack(const cost::Table& table) {
  const cost::TableBlob blob = cost::to_blob(table);
  return std::string(reinterpret_cast<const char*>(blob.data()), blob.size());
}

Result<cost::Table> unpack(const std::string& blob) {
  return cost::table_from_blob(std::as_bytes(std::span(blob.data(), blob.size())));
}

}  // namespace

Result<cost::Table> agree_on_table(Bootstrap& bootstrap, engine::Context& context,
                                   const Settings& settings, uint64_t deadline_ns) {
  const bool decides = context.rank == 0;
  uint64_t hash = 0;
  std::string directory;
  std::string told;
  if (decides) {
    std::optional<cost::Table> table;
    if (settings.probe) {
      hash = topology_hash(settings.topology_file);
      auto found = cost::cache_directory(settings.cache_dir);
      if (found.ok() && hash != 0) directory = found.take();
      if (!directory.empty()) table = cost::load_cached_table(directory, hash).table;
    }
    const bool probes = settings.probe && !table && context.mapped() && context.rank_count > 1;
    told = probes ? std::string(kProbeNow) : pack(table ? *table : cost::built_in_table());
  }
  auto first = bootstrap.all_gather(told, deadline_ns);
  if (!first.ok()) return first.status();
  if (first.value()[0] != kProbeNow) return unpack(first.value()[0]);

  told.clear();
  if (context.rank <= 1) {
    auto measured = engine::probe_tasks(context, hash, deadline_ns);
    if (decides) {
      if (measured.ok() && !directory.empty()) {
        const Status kept = cost::store_cached_table(directory, measured.value());
        if (!kept.ok()) log_info(fmt::format("measured costs are not kept: {}", kept.text()));
      }
      if (!measured.ok()) log_warn(measured.status().text() + "; built-in figures are used");
      told = pack(measured.ok() ? measured.value() : cost::built_in_table());
    }
  }
  auto second = bootstrap.all_gather(told, deadline_ns);
  if (!second.ok()) return second.status();
  return unpack(second.value()[0]);
}

}  // namespace weir::comm
