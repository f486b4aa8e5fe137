// SPDX-License-Identifier: Apache-2.0
#include "core/graph/kept_searches.h"

#include <fmt/format.h>

#include "core/base/log.h"
#include "core/base/private_files.h"

namespace weir::graph {

std::string kept_search_name(uint64_t graph_hash) {
  return fmt::format("search-v2-{:016x}.trees", graph_hash);
}

Result<std::optional<SearchRecord>> read_search(const std::string& directory, uint64_t graph_hash) {
  const std::string name = kept_search_name(graph_hash);
  auto read = read_private_file(directory, name, kRecordBytesMax);
  if (!read.ok()) return read.status();
  if (!read.value()) return std::optional<SearchRecord>();
  const std::string path = fmt::format("'{}/{}'", directory, name);
  auto record = unpack_search_record(read.value()->text);
  if (!record.ok()) return record.status().with_context(path);
  if (record.value().graph.hash() != graph_hash) {
    return Status(Code::kRefused,
                  fmt::format("{} is of graph {:016x}", path, record.value().graph.hash()));
  }
  return std::optional(record.take());
}

std::optional<SearchRecord> load_search(const std::string& directory, uint64_t graph_hash) {
  auto read = read_search(directory, graph_hash);
  if (read.ok()) return read.take();
  log_warn("a kept search is ignored: " + read.status().text());
  return std::nullopt;
}

Status store_search(const std::string& directory, const SearchRecord& record) {
  auto packed = pack(record);
  if (!packed.ok()) return packed.status();
  return store_private_file(directory, kept_search_name(record.graph.hash()), packed.value());
}

}  // namespace weir::graph
