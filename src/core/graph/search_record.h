// SPDX-License-Identifier: Apache-2.0
// SearchRecord: a graph with the forests and rings that were found for it, as bytes: what is kept
// in the cache directory, and what rank 0 tells the others. Bytes from elsewhere are checked in
// full: a record that is read is one that Weir could have written. Pure functions; thread-safe.
//
// A record, integers little-endian:
//
//   offset  bytes  field
//        0      4  "WSRC"
//        4      2  version, 2
//        6      2  0
//        8      8  LinkGraph::hash
//       16      4  ranks
//       20      4  vertices, V
//       24      4  links, L
//       28      4  forests, F
//       32    ...  V vertices: kind (1), host (4), length of the name (1), name
//             24L  links: from (4), to (4), bandwidth in kB/s (8), latency in ns (8, IEEE double)
//             ...  F forests: size (4), and a forest as below
//             ...  rings: size (4), 0: not searched; and as below
//               8  XXH64 of all before it
//
// A forest:
//
//   offset  bytes  field
//        0      4  ranks, N
//        4      4  trees of each root
//        8      4  trees, T
//       12      4  1: for all_reduce; 0: for what its roots say
//       16      8  block_gbs (IEEE double)
//       24      8  bound_gbs (the same)
//       32      8  steps
//       40    ...  T trees: root (4), first part (4), parts (4), N - 1 links: from (2), to (2)
//
// Rings: ranks, N (4); rings, R (4), 0: none is worth it; R N ranks in order (2 each).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/graph/forest.h"
#include "core/graph/link_graph.h"
#include "core/graph/rings.h"

namespace weir::graph {

// Larger graphs and forests are neither packed nor read.
inline constexpr uint32_t kRecordRanksMax = 4096;
inline constexpr uint32_t kRecordVerticesMax = 1u << 16;
inline constexpr uint32_t kRecordLinksMax = 1u << 16;
inline constexpr size_t kRecordBytesMax = size_t{16} << 20;
inline constexpr size_t kForestBytesMax = size_t{4} << 20;

struct SearchRecord {
  LinkGraph graph;
  std::vector<Forest> forests = {};
  std::optional<Rings> rings = {};  // nothing: not searched
};

// kUnsupported: it is above a limit.
Result<std::string> pack(const SearchRecord& record);
// kRefused, with what is wrong: also a forest that does not fit the graph.
Result<SearchRecord> unpack_search_record(std::string_view bytes);

// kUnsupported: it is above a limit.
Result<std::string> pack(const Forest& forest);
// kRefused: bytes that are no forest, or flaw_of says something.
Result<Forest> unpack_forest(std::string_view bytes);

Result<std::string> pack(const Rings& rings);
Result<Rings> unpack_rings(std::string_view bytes);

}  // namespace weir::graph
