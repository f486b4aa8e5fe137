// SPDX-License-Identifier: Apache-2.0
#include "core/cost/cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "core/base/log.h"
#include "core/base/private_files.h"

namespace weir::cost {

namespace {

constexpr size_t kFileBytesMax = 1 << 20;

// A clock that was set back makes files of the future.
bool is_within(time_t written, int64_t seconds) {
  const int64_t age = int64_t{time(nullptr)} - int64_t{written};
  return age < seconds && age > -seconds;
}

std::string name_of_version(uint32_t version, uint64_t topology_hash) {
  return fmt::format("tasks-v{}-{:016x}", version, topology_hash);
}

std::string fingerprint_of(const Table& table) {
  return fmt::format("{:016x}", checksum_of(table));
}

// Empty: there are none.
std::string doubts_about(const std::string& directory, const Table& table) {
  const std::string name = doubts_file_name(table.topology_hash);
  auto read = read_private_file(directory, name, kFileBytesMax);
  if (!read.ok()) {
    log_info("doubts about cached measurements are ignored: " + read.status().text());
    return "";
  }
  if (!read.value()) return "";
  const std::string& text = read.value()->text;
  const std::string head = fingerprint_of(table) + " ";
  if (!text.starts_with(head)) return "";  // it has been measured since
  // For a line of the log.
  constexpr size_t kReasonMax = 200;
  std::string reason = text.substr(head.size(), kReasonMax);
  std::replace_if(
      reason.begin(), reason.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return reason.substr(0, reason.find_last_not_of(' ') + 1) + " (" + directory + "/" + name + ")";
}

struct Loaded {
  std::optional<Table> table;  // none: the file does not exist, or an older Weir wrote it
  time_t written = 0;
};

Result<Loaded> load(const std::string& directory, uint64_t topology_hash) {
  const std::string name = cache_file_name(topology_hash);
  const std::string path = directory + "/" + name;
  auto read = read_private_file(directory, name, kFileBytesMax);
  if (!read.ok()) return read.status();
  if (!read.value()) return Loaded();
  TableOrigin origin;
  Result<Table> table = table_from_json(read.value()->text, &origin);
  if (!table.ok()) return table.status().with_context("'" + path + "'");
  if (origin.version != Table::kVersion) return Loaded();  // it is measured anew
  if (!origin.is_unchanged) {
    return invalid_argument("'" + path +
                            "' was changed since it was written: its checksum is of "
                            "other figures");
  }
  if (table.value().topology_hash != topology_hash) {
    return invalid_argument(
        fmt::format("'{}' is of topology {:016x}", path, table.value().topology_hash));
  }
  return Loaded{table.take(), read.value()->written};
}

}  // namespace

Result<std::string> cache_directory(const std::string& setting) {
  if (!setting.empty()) return setting;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && xdg[0] == '/') return std::string(xdg) + "/weir";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/weir";
  return Status(
      Code::kUnsupported,
      "no place for cached measurements: set WEIR_CACHE_DIR, XDG_CACHE_HOME or HOME to an "
      "absolute path");
}

std::string cache_file_name(uint64_t topology_hash) {
  return name_of_version(Table::kVersion, topology_hash) + ".json";
}

std::string doubts_file_name(uint64_t topology_hash) {
  return name_of_version(Table::kVersion, topology_hash) + ".doubts";
}

CacheLookup load_cached_table(const std::string& directory, uint64_t topology_hash) {
  CacheLookup lookup;
  Result<Loaded> loaded = load(directory, topology_hash);
  if (!loaded.ok()) {
    lookup.warning = "cached measurements are ignored: " + loaded.status().text();
    log(LogLevel::kWarn, lookup.warning);
    return lookup;
  }
  if (!loaded.value().table) return lookup;
  if (!is_within(loaded.value().written, kTableAgeMaxSeconds)) {
    lookup.outdated = fmt::format("'{}/{}' was not written within the last {} days", directory,
                                  cache_file_name(topology_hash), kTableAgeMaxSeconds / 86400);
  } else {
    lookup.outdated = doubts_about(directory, *loaded.value().table);
  }
  if (lookup.outdated.empty()) {
    lookup.table = loaded.value().table;
  } else {
    log_info("costs are measured anew: " + lookup.outdated);
  }
  return lookup;
}

Result<bool> doubt_cached_table(const std::string& directory, const Table& table,
                                const std::string& reason) {
  auto loaded = load(directory, table.topology_hash);
  if (!loaded.ok()) return loaded.status();
  const std::string fingerprint = fingerprint_of(table);
  if (!loaded.value().table || fingerprint_of(*loaded.value().table) != fingerprint) return false;
  const std::string name = doubts_file_name(table.topology_hash);
  auto earlier = read_private_file(directory, name, kFileBytesMax);
  if (!earlier.ok()) return earlier.status();
  if (earlier.value() && is_within(earlier.value()->written, kDoubtEverySeconds)) return false;
  WEIR_RETURN_IF_ERROR(store_private_file(directory, name, fingerprint + " " + reason + "\n"));
  return true;
}

Status store_cached_table(const std::string& directory, const Table& table) {
  WEIR_RETURN_IF_ERROR(validate(table));
  WEIR_RETURN_IF_ERROR(
      store_private_file(directory, cache_file_name(table.topology_hash), to_json(table)));
  // Nothing reads what older versions have left of this machine.
  for (uint32_t version = Table::kVersionReadMin; version < Table::kVersion; ++version) {
    const std::string old = directory + "/" + name_of_version(version, table.topology_hash);
    (void)unlink((old + ".json").c_str());
    (void)unlink((old + ".doubts").c_str());
  }
  return {};
}

Result<Table> read_table(const std::string& path) {
  Result<std::string> text = read_any_file(path, kFileBytesMax);
  if (!text.ok()) return text.status();
  Result<Table> table = table_from_json(text.value());
  if (!table.ok()) return table.status().with_context("'" + path + "'");
  return table;
}

Status write_table(const std::string& path, const Table& table) {
  WEIR_RETURN_IF_ERROR(validate(table));
  return replace_file(path, to_json(table));
}

}  // namespace weir::cost
