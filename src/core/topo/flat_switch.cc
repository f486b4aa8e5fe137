// SPDX-License-Identifier: Apache-2.0
#include "core/topo/flat_switch.h"

#include <fmt/format.h>

#include <map>

namespace weir::topo {
namespace {

enum class Level : uint8_t { kFirst, kSecond };

// The PCIe generation of the switch that may show itself as this bridge on this level; 0: none.
// The numbers are those by which NCCL knows them (graph/topo.cc).
int pex_generation(const Node& node, Level level) {
  const bool is_switch = node.kind == NodeKind::kPciBridge &&
                         node.bridge != BridgeRole::kRootPort &&
                         node.bridge != BridgeRole::kDownstreamPort;
  constexpr uint16_t kBroadcom = 0x1000;
  if (!is_switch || node.pci->vendor != kBroadcom || node.pci->subsystem_vendor != kBroadcom) {
    return 0;
  }
  const int kind = node.pci->subsystem_device >> 12;
  if (node.pci->device == 0xc010) return kind == 0xa ? 4 : 0;  // the same on both levels
  if (node.pci->device == 0xc030) return kind == (level == Level::kFirst ? 0 : 1) ? 5 : 0;
  return 0;
}

class Joiner {
 public:
  explicit Joiner(const Topology& topology) : from_(topology) {}

  bool finds_any() {
    for (NodeId id = 0; id < from_.node_count(); ++id) look_at(id);
    return !into_.empty();
  }

  Result<Topology> joined() const {
    Topology to;
    std::vector<NodeId> new_id(from_.node_count(), kNoNode);
    for (NodeId id = 0; id < from_.node_count(); ++id) {
      if (into_.contains(id)) continue;
      NodeId parent = from_.node(id).parent;
      while (parent != kNoNode && into_.contains(parent)) parent = into_.at(parent);
      new_id[id] = to.add(parent == kNoNode ? kNoNode : new_id[parent], from_.node(id));
    }
    for (Link link : from_.links()) {
      link.a = new_id[link.a];
      link.b = new_id[link.b];
      if (link.a != kNoNode && link.b != kNoNode) to.add_link(link);
    }
    for (const Note& note : from_.notes()) to.add_note(note.where, note.text);
    for (const auto& [first, count] : joined_) {
      to.add_note(from_.label(first),
                  fmt::format("a PEX switch that shows itself as two levels of bridges: {} on the "
                              "second level {} joined with it",
                              count, count == 1 ? "is" : "are"));
    }
    WEIR_RETURN_IF_ERROR(to.finish());
    return to;
  }

 private:
  void look_at(NodeId id) {
    const int generation = pex_generation(from_.node(id), Level::kSecond);
    if (generation == 0) return;
    // Where each port is shown, one of the first level's is between.
    const NodeId above = from_.node(id).parent;
    const bool by_port = from_.node(above).kind == NodeKind::kPciBridge &&
                         from_.node(above).bridge == BridgeRole::kDownstreamPort;
    const NodeId first = by_port ? from_.node(above).parent : above;
    // Parents come first. What has been joined has no third level.
    if (into_.contains(first) || pex_generation(from_.node(first), Level::kFirst) != generation) {
      return;
    }
    into_[id] = first;
    if (by_port && from_.node(above).children.size() == 1) into_[above] = first;
    ++joined_[first];
  }

  const Topology& from_;
  std::map<NodeId, NodeId> into_;    // of what goes away: where its children go
  std::map<NodeId, size_t> joined_;  // by the bridge on the first level
};

}  // namespace

Result<Topology> join_flat_switches(Topology topology) {
  Joiner joiner(topology);
  if (!joiner.finds_any()) return topology;
  return joiner.joined();
}

}  // namespace weir::topo
