// SPDX-License-Identifier: Apache-2.0
// Forests that are kept between runs: one file (search_record.h) for each graph, in a directory of
// the user, by the hash of the graph. It only saves time, or gives better trees: a file that cannot
// be used causes a warning, and the search runs. Thread- and process-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/graph/search_record.h"

namespace weir::graph {

// "search-v2-0123456789abcdef.trees"
std::string kept_search_name(uint64_t graph_hash);

// Without a value: there is none, or it cannot be used (owner, permissions, content; see
// private_files.h and search_record.h), which is logged as a warning.
std::optional<SearchRecord> load_search(const std::string& directory, uint64_t graph_hash);
// The same, for a tool, which shows why.
Result<std::optional<SearchRecord>> read_search(const std::string& directory, uint64_t graph_hash);

// Replaces the file of this graph.
Status store_search(const std::string& directory, const SearchRecord& record);

}  // namespace weir::graph
