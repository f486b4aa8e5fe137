// SPDX-License-Identifier: Apache-2.0
#include "core/graph/search_record.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <cmath>

#include "core/graph/searches.h"
#include "net/little_endian.h"

namespace weir::graph {

namespace {

constexpr std::string_view kMagic = "WSRC";
constexpr uint16_t kVersion = 2;
constexpr uint32_t kRecordRingsMax = 64;
constexpr size_t kNameBytesMax = 255;

class Writer {
 public:
  template <typename Integer>
  void put(Integer value) {
    unsigned char bytes[sizeof value];
    net::put(bytes, value);
    text_.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
  }
  void put_double(double value) { put(std::bit_cast<uint64_t>(value)); }
  void append(std::string_view text) { text_ += text; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Reads as long as there is something; then `ended` and zeros.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename Integer>
  Integer get() {
    const std::string_view taken = take(sizeof(Integer));
    if (taken.empty()) return 0;
    return net::get<Integer>(reinterpret_cast<const unsigned char*>(taken.data()));
  }
  double get_double() { return std::bit_cast<double>(get<uint64_t>()); }
  std::string_view take(size_t count) {
    if (count > bytes_.size()) {
      ended_ = true;
      bytes_ = {};
      return {};
    }
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  size_t left() const { return bytes_.size(); }
  bool ended() const { return ended_; }

 private:
  std::string_view bytes_;
  bool ended_ = false;
};

Status refused(std::string text) { return Status(Code::kRefused, std::move(text)); }

bool is_figure(double value) { return std::isfinite(value) && value >= 0; }

uint64_t checksum_of(std::string_view bytes) { return XXH64(bytes.data(), bytes.size(), 0); }

Result<LinkGraph> read_graph(Reader* in, uint32_t ranks, uint32_t vertices, uint32_t links) {
  if (ranks == 0 || ranks > kRecordRanksMax || vertices < ranks || vertices > kRecordVerticesMax ||
      links > kRecordLinksMax) {
    return refused(
        fmt::format("a graph of {} ranks, {} vertices and {} links", ranks, vertices, links));
  }
  LinkGraph graph(ranks);
  for (VertexId id = 0; id < vertices; ++id) {
    const auto kind = in->get<uint8_t>();
    const auto host = in->get<uint32_t>();
    const std::string name(in->take(in->get<uint8_t>()));
    const bool is_rank = kind == static_cast<uint8_t>(VertexKind::kRank);
    const bool is_place = host < ranks || (host == kNone && !is_rank);
    if (in->ended() || kind > static_cast<uint8_t>(VertexKind::kNetwork) ||
        is_rank != (id < ranks) || !is_place) {
      return refused(fmt::format("vertex {} cannot be read", id));
    }
    if (is_rank) {
      graph.set_rank(id, host, name);
    } else {
      graph.add_vertex(static_cast<VertexKind>(kind), host, name);
    }
  }
  for (uint32_t i = 0; i < links; ++i) {
    Link link;
    link.from = in->get<uint32_t>();
    link.to = in->get<uint32_t>();
    link.bandwidth = static_cast<KilobytesPerSecond>(in->get<uint64_t>());
    link.latency_ns = in->get_double();
    if (in->ended() || link.from >= vertices || link.to >= vertices || link.from == link.to ||
        link.bandwidth < 0 || link.bandwidth > kBandwidthMax || !is_figure(link.latency_ns)) {
      return refused(fmt::format("link {} cannot be read", i));
    }
    graph.add_link(link);
  }
  if (Status status = graph.finish(); !status.ok()) return refused(status.text());
  return graph;
}

}  // namespace

Result<std::string> pack(const Forest& forest) {
  const uint64_t tree_bytes = 12 + uint64_t{4} * (forest.rank_count - 1);
  if (forest.rank_count > kRecordRanksMax ||
      forest.trees.size() > (kForestBytesMax - 40) / tree_bytes) {
    return Status(Code::kUnsupported,
                  fmt::format("trees of {} ranks are too many to be told", forest.rank_count));
  }
  Writer out;
  out.put(forest.rank_count);
  out.put(forest.trees_per_root);
  out.put(static_cast<uint32_t>(forest.trees.size()));
  out.put(uint32_t{forest.for_all_reduce});
  out.put_double(forest.block_gbs);
  out.put_double(forest.bound_gbs);
  out.put(forest.steps);
  for (const Tree& tree : forest.trees) {
    out.put(tree.root);
    out.put(tree.first);
    out.put(tree.count);
    for (const TreeLink& link : tree.links) {
      out.put(static_cast<uint16_t>(link.from));
      out.put(static_cast<uint16_t>(link.to));
    }
  }
  return out.text();
}

Result<Forest> unpack_forest(std::string_view bytes) {
  Reader in(bytes);
  Forest forest;
  forest.rank_count = in.get<uint32_t>();
  forest.trees_per_root = in.get<uint32_t>();
  const auto tree_count = in.get<uint32_t>();
  const auto for_all_reduce = in.get<uint32_t>();
  forest.block_gbs = in.get_double();
  forest.bound_gbs = in.get_double();
  forest.steps = in.get<uint64_t>();
  const bool sane = !in.ended() && for_all_reduce <= 1 && forest.rank_count >= 2 &&
                    forest.rank_count <= kRecordRanksMax && is_figure(forest.block_gbs) &&
                    is_figure(forest.bound_gbs);
  if (!sane || in.left() != tree_count * (12 + uint64_t{4} * (forest.rank_count - 1))) {
    return refused(fmt::format("{} bytes are no forest", bytes.size()));
  }
  forest.for_all_reduce = for_all_reduce == 1;
  std::vector<uint32_t> depth(forest.rank_count);
  for (uint32_t i = 0; i < tree_count; ++i) {
    Tree tree;
    tree.root = in.get<uint32_t>();
    tree.first = in.get<uint32_t>();
    tree.count = in.get<uint32_t>();
    depth.assign(forest.rank_count, 0);
    for (Rank r = 1; r < forest.rank_count; ++r) {
      TreeLink link{in.get<uint16_t>(), in.get<uint16_t>(), 0};
      if (link.from >= forest.rank_count || link.to >= forest.rank_count) {
        return refused(fmt::format("tree {}: a rank that does not exist", i));
      }
      link.depth = depth[link.to] = depth[link.from] + 1;
      tree.links.push_back(link);
    }
    forest.trees.push_back(std::move(tree));
  }
  if (const std::string flaw = flaw_of(forest); !flaw.empty()) return refused(flaw);
  return forest;
}

Result<std::string> pack(const Rings& rings) {
  if (rings.rank_count > kRecordRanksMax || rings.orders.size() > kRecordRingsMax) {
    return Status(Code::kUnsupported, "rings are too many to be told");
  }
  Writer out;
  out.put(rings.rank_count);
  out.put(static_cast<uint32_t>(rings.orders.size()));
  for (const std::vector<Rank>& order : rings.orders) {
    for (const Rank rank : order) out.put(static_cast<uint16_t>(rank));
  }
  return out.text();
}

Result<Rings> unpack_rings(std::string_view bytes) {
  Reader in(bytes);
  const auto ranks = in.get<uint32_t>();
  const auto count = in.get<uint32_t>();
  if (in.ended() || ranks < 2 || ranks > kRecordRanksMax || count > kRecordRingsMax ||
      in.left() != size_t{2} * ranks * count) {
    return refused(fmt::format("{} bytes are no rings", bytes.size()));
  }
  std::vector<std::vector<Rank>> orders(count);
  for (std::vector<Rank>& order : orders) {
    while (order.size() < ranks) order.push_back(in.get<uint16_t>());
  }
  if (count > 0) {
    if (std::string flaw = flaw_of(orders, ranks); !flaw.empty()) return refused(std::move(flaw));
  }
  Rings rings = rings_of(std::move(orders));
  rings.rank_count = ranks;
  return rings;
}

Result<std::string> pack(const SearchRecord& record) {
  const LinkGraph& graph = record.graph;
  if (graph.rank_count() > kRecordRanksMax || graph.vertices().size() > kRecordVerticesMax ||
      graph.links().size() > kRecordLinksMax) {
    return Status(Code::kUnsupported, "the graph is too large to be kept");
  }
  Writer out;
  out.append(kMagic);
  out.put(kVersion);
  out.put(uint16_t{0});
  out.put(graph.hash());
  out.put(graph.rank_count());
  out.put(static_cast<uint32_t>(graph.vertices().size()));
  out.put(static_cast<uint32_t>(graph.links().size()));
  out.put(static_cast<uint32_t>(record.forests.size()));
  for (const Vertex& vertex : graph.vertices()) {
    out.put(static_cast<uint8_t>(vertex.kind));
    out.put(vertex.host);
    const std::string_view name = std::string_view(vertex.name).substr(0, kNameBytesMax);
    out.put(static_cast<uint8_t>(name.size()));
    out.append(name);
  }
  for (const Link& link : graph.links()) {
    out.put(link.from);
    out.put(link.to);
    out.put(static_cast<uint64_t>(link.bandwidth));
    out.put_double(link.latency_ns);
  }
  for (const Forest& forest : record.forests) {
    auto packed = pack(forest);
    if (!packed.ok()) return packed.status();
    out.put(static_cast<uint32_t>(packed.value().size()));
    out.append(packed.value());
  }
  std::string rings;
  if (record.rings) {
    auto packed = pack(*record.rings);
    if (!packed.ok()) return packed.status();
    rings = packed.take();
  }
  out.put(static_cast<uint32_t>(rings.size()));
  out.append(rings);
  if (out.text().size() + 8 > kRecordBytesMax) {
    return Status(Code::kUnsupported, "the trees are too many to be kept");
  }
  out.put(checksum_of(out.text()));
  return out.text();
}

Result<SearchRecord> unpack_search_record(std::string_view bytes) {
  if (bytes.size() < 40 || bytes.size() > kRecordBytesMax || bytes.substr(0, 4) != kMagic) {
    return refused("no record of a search");
  }
  Reader in(bytes.substr(4));
  if (const auto version = in.get<uint16_t>(); version != kVersion) {
    return refused(fmt::format("version {} of such records is not known", version));
  }
  const std::string_view end = bytes.substr(bytes.size() - 8);
  if (checksum_of(bytes.substr(0, bytes.size() - 8)) !=
      net::get<uint64_t>(reinterpret_cast<const unsigned char*>(end.data()))) {
    return refused("its checksum is wrong");
  }
  (void)in.get<uint16_t>();
  const auto hash = in.get<uint64_t>();
  const auto ranks = in.get<uint32_t>();
  const auto vertices = in.get<uint32_t>();
  const auto links = in.get<uint32_t>();
  const auto forests = in.get<uint32_t>();
  auto graph = read_graph(&in, ranks, vertices, links);
  if (!graph.ok()) return graph.status();
  if (graph.value().hash() != hash) return refused("its graph is another one than it says");
  SearchRecord record{.graph = graph.take(), .forests = {}, .rings = {}};
  for (uint32_t i = 0; i < forests; ++i) {
    const std::string_view packed = in.take(in.get<uint32_t>());
    if (in.ended()) return refused("it ends too early");
    auto forest = unpack_forest(packed);
    if (!forest.ok()) return forest.status();
    if (std::string flaw = flaw_of(forest.value(), record.graph); !flaw.empty()) {
      return refused(std::move(flaw));
    }
    record.forests.push_back(forest.take());
  }
  if (const auto size = in.get<uint32_t>(); size > 0) {
    auto rings = unpack_rings(in.take(size));
    if (!rings.ok()) return rings.status();
    if (rings.value().rank_count != ranks) return refused("its rings are of other ranks");
    record.rings = rings.take();
  }
  if (in.left() != 8) return refused("bytes follow its end");
  return record;
}

}  // namespace weir::graph
