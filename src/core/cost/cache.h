// SPDX-License-Identifier: Apache-2.0
// The cache of measured tables between runs: one JSON file per topology in a directory of the user.
// It only saves time: a defect in it causes a warning, and the probe runs. Thread- and
// process-safe: files are replaced whole, by rename.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/cost/table.h"

namespace weir::cost {

// `setting` (WEIR_CACHE_DIR) if not empty, else $XDG_CACHE_HOME/weir if that is absolute, else
// $HOME/.cache/weir. An error when none of them is set.
Result<std::string> cache_directory(const std::string& setting);

// "tasks-v2-0123456789abcdef.json"
std::string cache_file_name(uint64_t topology_hash);

struct CacheLookup {
  std::optional<Table> table;
  std::string warning;  // why an existing file was ignored; logged already
};

// The file must be a regular file that belongs to this user and that only its owner may write, in a
// directory that belongs to this user or to root and that only its owner may write; its content
// must be a valid table of this topology. A table of an older version is as good as none: it is
// measured anew, without a warning.
CacheLookup load_cached_table(const std::string& directory, uint64_t topology_hash);

// Reads a table (the JSON of table.h) from any path, for tools: a regular file of bounded size with
// valid content. Older versions are read, too.
Result<Table> read_table(const std::string& path);
// Replaces the whole file; mode 0600.
Status write_table(const std::string& path, const Table& table);

// Makes the directory (mode 0700) if needed; writes a temporary file (mode 0600), syncs, renames.
Status store_cached_table(const std::string& directory, const Table& table);

}  // namespace weir::cost
