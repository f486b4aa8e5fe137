// SPDX-License-Identifier: Apache-2.0
#include "core/topo/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/topo/merge_fill.h"

namespace weir::topo {
namespace {

bool is_cpu_part(NodeKind kind) {
  return kind == NodeKind::kMachine || kind == NodeKind::kPackage || kind == NodeKind::kNuma ||
         kind == NodeKind::kCache || kind == NodeKind::kCore;
}

class Merger {
 public:
  Merger(const Topology& file, const Topology& machine) : file_(file), machine_(machine) {}

  Result<Topology> run() {
    WEIR_RETURN_IF_ERROR(check());
    index();
    if (const std::string reason = why_another(); !reason.empty()) {
      return Status(Code::kUnsupported, reason);
    }
    add_processors();
    add_devices_of_file();
    add_devices_of_machine();
    add_links();
    for (const Topology* one : {&file_, &machine_}) {
      for (const Note& note : one->notes()) to_.add_note(note.where, note.text);
    }
    note_missing();
    WEIR_RETURN_IF_ERROR(to_.finish());
    return std::move(to_);
  }

 private:
  Status check() const {
    for (const auto& [topology, name] :
         {std::pair(&file_, "the file"), std::pair(&machine_, "what was found")}) {
      const size_t count = topology->count(NodeKind::kMachine);
      if (count != 1 || topology->node(0).kind != NodeKind::kMachine) {
        return {Code::kUnsupported,
                fmt::format("{} is {} machines, and only one can be merged", name, count)};
      }
    }
    if (file_.node_count() + machine_.node_count() > kNodeCountMax) {
      return {Code::kUnsupported,
              fmt::format("together they have more than {} parts, the limit", kNodeCountMax)};
    }
    return Status();
  }

  void index() {
    for (NodeId id = 0; id < file_.node_count(); ++id) {
      const Node& node = file_.node(id);
      if (node.kind == NodeKind::kNuma) numa_in_file_[node.os_index] = id;
    }
    for (NodeId id = 0; id < machine_.node_count(); ++id) {
      const Node& node = machine_.node(id);
      if (node.pci) in_machine_[node.pci->address] = id;
      if (!node.nic) continue;
      for (const NetPort& port : node.nic->ports) {
        if (!port.name.empty()) ports_of_machine_.push_back(&port);
      }
    }
    for (const NodeId id : file_.all(NodeKind::kNic)) {
      for (const NetPort& port : file_.node(id).nic->ports) ports_of_file_.push_back(&port);
    }
  }

  // The machine's node at the address of the file's; kNoNode: none.
  NodeId counterpart(const Node& of_file) const {
    if (!of_file.pci) return kNoNode;
    const auto found = in_machine_.find(of_file.pci->address);
    return found == in_machine_.end() ? kNoNode : found->second;
  }

  static bool is_same_port(const NetPort& of_file, const NetPort& of_machine) {
    return of_file.name == of_machine.name &&
           (of_file.port == 0 || of_machine.port == 0 || of_file.port == of_machine.port);
  }

  bool file_has(const NetPort& of_machine) const {
    return std::any_of(ports_of_file_.begin(), ports_of_file_.end(),
                       [&](const NetPort* port) { return is_same_port(*port, of_machine); });
  }

  bool machine_has(NodeId id) const {
    const Node& node = file_.node(id);
    const NodeId other = counterpart(node);
    if (other != kNoNode && machine_.node(other).kind == node.kind) return true;
    if (!node.nic) return false;
    for (const NetPort& port : node.nic->ports) {
      for (const NetPort* of_machine : ports_of_machine_) {
        if (is_same_port(port, *of_machine)) return true;
      }
    }
    return false;
  }

  // "": the file may be of this machine.
  std::string why_another() const {
    for (const auto& [kind, name] :
         {std::pair(NodeKind::kGpu, "GPUs"), std::pair(NodeKind::kNic, "network adapters")}) {
      const std::vector<NodeId> devices = file_.all(kind);
      if (devices.empty()) continue;
      if (std::any_of(devices.begin(), devices.end(), [&](NodeId id) { return machine_has(id); })) {
        return "";
      }
      return fmt::format("the file is of another machine: none of its {} {} ({}, …) is in this one",
                         devices.size(), name, place_of(devices[0]));
    }
    return "";
  }

  std::string place_of(NodeId id) const {
    const Node& node = file_.node(id);
    if (node.pci) return node.pci->address.text();
    return node.nic && !node.nic->ports.empty() ? node.nic->ports[0].name : file_.label(id);
  }

  // ---- Processors -------------------------------------------------------------------------------

  void add_processors() {
    from_machine_.assign(machine_.node_count(), kNoNode);
    from_file_.assign(file_.node_count(), kNoNode);
    for (NodeId id = 0; id < machine_.node_count(); ++id) {
      const Node& found = machine_.node(id);
      if (!is_cpu_part(found.kind)) continue;
      Node node = found;
      // More NUMA nodes may follow, or another model of CPU.
      if (node.kind == NodeKind::kPackage || node.kind == NodeKind::kNuma) node.up = Edge{};
      if (node.kind == NodeKind::kMachine && !file_.node(0).name.empty()) {
        node.name = file_.node(0).name;
      }
      from_machine_[id] = to_.add(id == 0 ? kNoNode : from_machine_[found.parent], std::move(node));
      const auto numa = numa_in_file_.find(found.os_index);
      if (found.kind != NodeKind::kNuma || numa == numa_in_file_.end()) continue;
      from_file_[numa->second] = from_machine_[id];
      take_numa(file_.node(numa->second), from_machine_[id]);
    }
    from_file_[0] = 0;
    for (const NodeId id : file_.all(NodeKind::kPackage)) {
      for (const NodeId other : machine_.all(NodeKind::kPackage)) {
        if (machine_.node(other).os_index == file_.node(id).os_index) {
          from_file_[id] = from_machine_[other];
        }
      }
    }
    for (const auto& [number, id] : numa_in_file_) {
      if (from_file_[id] != kNoNode) continue;
      Node node = file_.node(id);
      node.up = Edge{};
      const NodeId home = home_in_file(node.parent);
      from_file_[id] = to_.add(home, std::move(node));
    }
  }

  void take_numa(const Node& of_file, NodeId id) {
    Node& node = to_.mutable_node(id);
    if (!of_file.cpus.empty()) node.cpus = of_file.cpus;
    if (of_file.memory_bytes > 0) node.memory_bytes = of_file.memory_bytes;
    if (!of_file.cpu) return;
    node.cpu = filled(*of_file.cpu, node.cpu.value_or(CpuInfo{}));
    const NodeId package = to_.ancestor(id, NodeKind::kPackage);
    if (package == kNoNode) return;
    std::optional<CpuInfo>& cpu = to_.mutable_node(package).cpu;
    cpu = filled(*of_file.cpu, cpu.value_or(CpuInfo{}));
  }

  // Where in the result a part of the file is whose parent is `id` or something of the CPU above.
  NodeId home_in_file(NodeId id) const {
    while (id != kNoNode && from_file_[id] == kNoNode) id = file_.node(id).parent;
    return id == kNoNode ? 0 : from_file_[id];
  }

  // ---- Devices ----------------------------------------------------------------------------------

  NodeId root_complex(NodeId home, const std::string& name) {
    const auto [place, is_new] = root_complexes_.try_emplace(std::pair(home, name), kNoNode);
    if (is_new) {
      Node node;
      node.kind = NodeKind::kRootComplex;
      node.name = name;
      place->second = to_.add(home, std::move(node));
    }
    return place->second;
  }

  // The name of the root complex in the machine above the file's device, or above one below it.
  std::string root_name(NodeId of_file) const {
    std::vector<NodeId> look = {of_file};
    while (!look.empty()) {
      const NodeId id = look.back();
      look.pop_back();
      const NodeId other = counterpart(file_.node(id));
      const NodeId root =
          other == kNoNode ? kNoNode : machine_.ancestor(other, NodeKind::kRootComplex);
      if (root != kNoNode) return machine_.node(root).name;
      const std::vector<NodeId>& below = file_.node(id).children;
      look.insert(look.end(), below.rbegin(), below.rend());
    }
    return "";
  }

  void add_devices_of_file() {
    for (NodeId id = 1; id < file_.node_count(); ++id) {
      const Node& of_file = file_.node(id);
      if (is_cpu_part(of_file.kind) || of_file.kind == NodeKind::kRootComplex) continue;
      NodeId parent = home_in_file(of_file.parent);
      if (const Node& above = file_.node(of_file.parent); above.kind == NodeKind::kRootComplex) {
        parent = root_complex(parent, above.name.empty() ? root_name(id) : above.name);
      }
      Node node = of_file;
      const NodeId other = counterpart(node);
      if (other != kNoNode) fill_device(machine_.node(other), &node);
      if (node.nic) complete_ports(other, &node);
      from_file_[id] = to_.add(parent, std::move(node));
      if (other != kNoNode) from_machine_[other] = from_file_[id];
    }
  }

  void complete_ports(NodeId other, Node* node) const {
    for (NetPort& port : node->nic->ports) {
      for (const NetPort* of_machine : ports_of_machine_) {
        if (!is_same_port(port, *of_machine)) continue;
        fill_port(*of_machine, &port);
        break;
      }
    }
    if (other == kNoNode || !machine_.node(other).nic) return;
    for (const NetPort& port : machine_.node(other).nic->ports) {
      if (!file_has(port)) node->nic->ports.push_back(port);
    }
  }

  void add_devices_of_machine() {
    for (NodeId id = 1; id < machine_.node_count(); ++id) {
      const Node& found = machine_.node(id);
      switch (found.kind) {
        case NodeKind::kGpu:
        case NodeKind::kNic:
        case NodeKind::kPciDevice:
          add_found(id);
          break;
        case NodeKind::kNvSwitch:
          // One that only links name comes with its links.
          if (found.parent != 0) add_found(id);
          break;
        default:
          break;
      }
    }
  }

  // The place in the result of a part of the machine, which is added with what is above it unless
  // the file has it. kNoNode: all of its ports are elsewhere in the file.
  NodeId add_found(NodeId id) {
    if (from_machine_[id] != kNoNode) return from_machine_[id];
    const Node& found = machine_.node(id);
    Node node = found;
    if (node.nic && !node.nic->ports.empty()) {
      std::erase_if(node.nic->ports, [this](const NetPort& port) { return file_has(port); });
      if (node.nic->ports.empty()) return kNoNode;
    }
    // The bridges above, the outermost first.
    const NodeId parent = add_found(found.parent);
    from_machine_[id] = found.kind == NodeKind::kRootComplex ? root_complex(parent, found.name)
                                                             : to_.add(parent, std::move(node));
    return from_machine_[id];
  }

  // ---- Links ------------------------------------------------------------------------------------

  void add_links() {
    std::set<std::pair<NodeId, LinkKind>> given;  // GPUs to which the file gives links of the kind
    for (Link link : file_.links()) {
      link.a = from_file_[link.a];
      link.b = from_file_[link.b];
      // finish() adds those between switches again, for the whole.
      if (is_between_switches(link) && link.edge.source == Source::kEstimated) continue;
      const Link* found = link_of_machine(link);
      fill_link(to_.node(link.a), to_.node(link.b), found, &link);
      given.insert({link.a, link.kind});
      given.insert({link.b, link.kind});
      to_.add_link(link);
    }
    for (const Link& found : machine_.links()) {
      Link link = found;
      link.a = from_machine_[found.a];
      link.b = from_machine_[found.b];
      const bool between_switches = machine_.node(found.a).kind == NodeKind::kNvSwitch &&
                                    machine_.node(found.b).kind == NodeKind::kNvSwitch;
      if (between_switches && found.edge.source == Source::kEstimated) continue;
      const auto is_free = [&](NodeId of_machine, NodeId id) {
        const NodeKind kind = machine_.node(of_machine).kind;
        const bool decides = kind == NodeKind::kGpu || between_switches;
        return decides && (id == kNoNode || !given.contains({id, link.kind}));
      };
      if (!is_free(found.a, link.a) && !is_free(found.b, link.b)) continue;
      if (link.a == kNoNode) link.a = add_found(found.a);
      if (link.b == kNoNode) link.b = add_found(found.b);
      if (link.a != kNoNode && link.b != kNoNode && link.a != link.b) to_.add_link(link);
    }
  }

  bool is_between_switches(const Link& link) const {
    return to_.node(link.a).kind == NodeKind::kNvSwitch &&
           to_.node(link.b).kind == NodeKind::kNvSwitch;
  }

  // The machine's link between the same two, whose ends are ids of the result.
  const Link* link_of_machine(const Link& link) const {
    for (const Link& found : machine_.links()) {
      const NodeId a = from_machine_[found.a];
      const NodeId b = from_machine_[found.b];
      if (found.kind == link.kind &&
          ((a == link.a && b == link.b) || (a == link.b && b == link.a))) {
        return &found;
      }
    }
    return nullptr;
  }

  void note_missing() {
    for (const NodeKind kind : {NodeKind::kGpu, NodeKind::kNic}) {
      for (const NodeId id : file_.all(kind)) {
        if (machine_has(id)) continue;
        to_.add_note(place_of(id), fmt::format("this {} is in the topology file only",
                                               kind == NodeKind::kGpu ? "GPU" : "network adapter"));
      }
    }
    for (const auto& [number, id] : numa_in_file_) {
      const std::vector<NodeId> found = machine_.all(NodeKind::kNuma);
      const bool known = std::any_of(
          found.begin(), found.end(),
          [&, wanted = number](NodeId other) { return machine_.node(other).os_index == wanted; });
      if (!known) to_.add_note(file_.label(id), "this NUMA node is in the topology file only");
    }
  }

  const Topology& file_;
  const Topology& machine_;
  Topology to_;
  std::map<PciAddress, NodeId> in_machine_;
  std::map<int32_t, NodeId> numa_in_file_;
  std::vector<const NetPort*> ports_of_file_;
  std::vector<const NetPort*> ports_of_machine_;
  std::vector<NodeId> from_file_;     // ids of the result
  std::vector<NodeId> from_machine_;  // ids of the result
  std::map<std::pair<NodeId, std::string>, NodeId> root_complexes_;
};

}  // namespace

Result<Topology> merge(const Topology& file, const Topology& machine) {
  return Merger(file, machine).run();
}

}  // namespace weir::topo
