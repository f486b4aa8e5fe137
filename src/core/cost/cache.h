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

// "tasks-v4-0123456789abcdef.json"
std::string cache_file_name(uint64_t topology_hash);

// A table is measured anew at the next start after this time.
inline constexpr int64_t kTableAgeMaxSeconds = 30 * 24 * 3600;
// A machine whose calls never take what is predicted is not measured at each start.
inline constexpr int64_t kDoubtEverySeconds = 24 * 3600;

struct CacheLookup {
  std::optional<Table> table;
  std::string warning;   // why an existing file was ignored; logged already
  std::string outdated;  // why a table that is in order is measured anew; logged already
};

// The file must be a regular file that belongs to this user and that only its owner may write, in a
// directory that belongs to this user or to root and that only its owner may write; its content
// must be a valid table of this topology. A table of an older version is as good as none: it is
// measured anew, without a warning. So is one that was written more than kTableAgeMaxSeconds ago,
// or as much in the future, and one that is doubted (doubt_cached_table): info lines say so.
CacheLookup load_cached_table(const std::string& directory, uint64_t topology_hash);

// Reads a table (the JSON of table.h) from any path, for tools: a regular file of bounded size with
// valid content. Older versions are read, too.
Result<Table> read_table(const std::string& path);
// Replaces the whole file; mode 0600.
Status write_table(const std::string& path, const Table& table);

// Makes the directory (mode 0700) if needed; writes a temporary file (mode 0600), syncs, renames.
// Removes this topology's files of older versions.
Status store_cached_table(const std::string& directory, const Table& table);

// Notes beside the cached table that its figures are doubtful, so that the next process that starts
// measures anew; `reason` is for people. False: nothing was noted, since the cached table is not
// this one any more, or the latest doubts are less than kDoubtEverySeconds old. The file is subject
// to the same checks as tables, and is written in the same way.
Result<bool> doubt_cached_table(const std::string& directory, const Table& table,
                                const std::string& reason);
// "tasks-v4-0123456789abcdef.doubts": the checksum of the table's blob (16 hexadecimal digits), a
// space and the reason.
std::string doubts_file_name(uint64_t topology_hash);

}  // namespace weir::cost
