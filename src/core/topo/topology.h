// SPDX-License-Identifier: Apache-2.0
// Topology: the parts of a machine (or several), as a value: a tree of machines, packages, NUMA
// nodes, caches, cores and the PCIe hierarchy with GPUs and NICs at its leaves, and links beside
// the tree (NVLink, xGMI). Every edge carries bandwidth and latency, and says whether they were
// stated by a driver or a file, or are an estimate. discover.h makes it from this machine,
// hwloc_xml.h and nccl_xml.h from files; path.h finds paths in it.
//
// Thread rule: a const Topology may be read by any number of threads; changes need exclusion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/base/status.h"
#include "core/topo/cpuset.h"
#include "core/topo/pci.h"

namespace weir::topo {

// Index of a node in its Topology. Parents have smaller ids than their children; 0 is the root.
using NodeId = uint32_t;
inline constexpr NodeId kNoNode = UINT32_MAX;
inline constexpr size_t kNodeCountMax = 1u << 20;
// Limits on the contents of a file.
inline constexpr int32_t kDeviceNumberMax = 65535;
inline constexpr uint32_t kLinkCountMax = 1u << 20;
inline constexpr double kBandwidthMaxGbs = 1e6;

enum class NodeKind : uint8_t {
  kNetwork,  // root over several machines; each NIC of each is one hop from it
  kMachine,
  kPackage,
  kNuma,
  kCache,
  kCore,
  kRootComplex,
  kPciBridge,
  kGpu,
  kNic,
  kNvSwitch,
  kPciDevice,  // anything else on PCIe, such as storage
};

enum class Source : uint8_t {
  kUnknown,    // nothing is known
  kNoLimit,    // inside a chip: no limit of its own
  kEstimated,  // a typical figure for hardware of the kind (estimates.h)
  kStated,     // said by the driver, sysfs or the file
};

// Bandwidth is payload per direction, in 10^9 bytes a second; it is valid only for kEstimated and
// kStated. Latency is one way, for the hop.
struct Edge {
  double bandwidth_gbs = 0;
  double latency_us = 0;
  Source source = Source::kUnknown;
};

struct CacheInfo {
  uint32_t level = 0;
  uint64_t bytes = 0;
};

struct CpuInfo {
  std::string arch;    // "x86_64"
  std::string vendor;  // "GenuineIntel"
  std::string model;   // marketing name, "" = unknown
  int32_t family_id = -1;
  int32_t model_id = -1;
};

// The role of a bridge. A switch that a file shows as one bridge (NCCL's) is kSwitch; one shown
// port by port has an upstream port with downstream ports below.
enum class BridgeRole : uint8_t { kRootPort, kUpstreamPort, kDownstreamPort, kSwitch };

struct PciInfo {
  PciAddress address;
  uint32_t class_code = 0;  // 24 bits
  uint16_t vendor = 0;
  uint16_t device = 0;
  uint16_t subsystem_vendor = 0;
  uint16_t subsystem_device = 0;
  // The link towards the CPU; 0 = unknown. The current speed of an idle device may be lower than
  // under load, so bandwidth comes from the maximum speed and the current width.
  double speed_gts_max = 0;
  double speed_gts_current = 0;
  uint32_t width_max = 0;
  uint32_t width_current = 0;
};

struct GpuInfo {
  uint32_t index = 0;          // the number in "GPU3"
  std::optional<int32_t> dev;  // number that the driver or the file gives it
  std::optional<int32_t> rank;
  int32_t compute_capability = 0;  // CUDA: 80 for 8.0; 0 = unknown. ROCm: number of compute units
  std::string gcn;                 // ROCm: "906", "gfx90a"
  std::string arch;                // ROCm
  std::string uuid;
  uint64_t memory_bytes = 0;
  std::optional<bool> gdr;  // a NIC may read and write its memory
};

struct NetPort {
  std::string name;  // "mlx5_0", "eth0"
  std::optional<int32_t> dev;
  uint32_t port = 0;
  double speed_mbps = 0;  // 10^6 bits a second; 0 = unknown
  std::optional<double> latency_us;
  std::string guid;
  uint32_t connection_count_max = 0;  // 0 = unknown
  std::optional<bool> gdr;
  bool infiniband = false;  // a verbs device (InfiniBand or RoCE), not a kernel network interface
};

struct NicInfo {
  uint32_t index = 0;          // the number in "NIC3"
  std::vector<NetPort> ports;  // may be empty: a PCI function about which nothing more is known
  double speed_mbps() const;   // of all ports; a function's verbs and kernel names count once
};

struct Node {
  NodeKind kind = NodeKind::kMachine;
  NodeId parent = kNoNode;
  std::vector<NodeId> children;
  Edge up;           // to the parent
  std::string name;  // machine, GPU: product; root complex: bus; NVSwitch outside PCI: its name
  int32_t os_index = -1;      // package, NUMA node, core; NVSwitch: the number in "NVS3"
  CpuSet cpus;                // machine, package, NUMA node, cache, core
  uint64_t memory_bytes = 0;  // NUMA node
  BridgeRole bridge = BridgeRole::kSwitch;
  std::optional<CacheInfo> cache;
  std::optional<CpuInfo> cpu;  // package, NUMA node
  std::optional<PciInfo> pci;
  std::optional<GpuInfo> gpu;
  std::optional<NicInfo> nic;
};

enum class LinkKind : uint8_t { kNvlink, kXgmi, kXelink, kC2c };

// A link beside the tree, the same in both directions. Its `count` physical links together have the
// bandwidth of `edge`.
struct Link {
  NodeId a = kNoNode;
  NodeId b = kNoNode;
  LinkKind kind = LinkKind::kNvlink;
  uint32_t count = 1;
  Edge edge;
};

// A message for people about a file or the machine: an element that was not understood, or a part
// of the machine that could not be queried, and why.
struct Note {
  std::string where;  // "topo.xml:12", "nvml", "/sys/…"
  std::string text;
};

class Topology {
 public:
  // ---- Making one: add nodes and links, then finish()
  // -------------------------------------------- Adds a node (its parent and children fields are
  // set here). The first one is the root and has the parent kNoNode.
  NodeId add(NodeId parent, Node node);
  // Both ends must exist and differ. Links of one kind between the same two nodes add up, to at
  // most kLinkCountMax and kBandwidthMaxGbs.
  void add_link(const Link& link);
  void add_note(std::string where, std::string text);
  // Numbers GPUs, NICs and NVSwitches, fills in edges about which nothing is known, and checks the
  // invariants. The text of an error names the offending nodes.
  Status finish();

  // ---- Reading
  // -----------------------------------------------------------------------------------
  bool empty() const { return nodes_.empty(); }
  size_t node_count() const { return nodes_.size(); }
  const Node& node(NodeId id) const;
  Node& mutable_node(NodeId id);  // call finish() after changes
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Link>& links() const { return links_; }
  // The indexes in links() of the links that end at the node.
  const std::vector<size_t>& links_of(NodeId id) const;
  const std::vector<Note>& notes() const { return notes_; }

  std::vector<NodeId> all(NodeKind kind) const;  // GPUs and NICs by index, others by id
  size_t count(NodeKind kind) const;
  // The nearest node of `kind` at or above `id`; kNoNode when there is none.
  NodeId ancestor(NodeId id, NodeKind kind) const;
  NodeId machine_of(NodeId id) const { return ancestor(id, NodeKind::kMachine); }
  // The number of the NUMA node above, or of the machine's only one; -1 when it is not known.
  int32_t numa_of(NodeId id) const;
  // Processors near the node: its own, or those of the nearest ancestor that has any.
  const CpuSet& cpus_near(NodeId id) const;

  // "GPU0", "NIC1", "NVS2", "NUMA0", "package 0", "0000:3b:00.0", …; with several machines
  // "M1.GPU0". Unique for GPUs, NICs, NVSwitches and NUMA nodes.
  std::string label(NodeId id) const;
  // Finds a node by label, PCI address, port name ("mlx5_0", "eth0") or GPU UUID, in any letter
  // case. The error suggests what could have been meant.
  Result<NodeId> find(std::string_view text) const;

  // A stable fingerprint of the properties that determine performance: the same on every machine of
  // one kind and on every run, so that it can key measured tables. Names, UUIDs, notes and the
  // order of siblings do not count.
  uint64_t hash() const;

 private:
  void number_devices();
  Status check() const;

  std::vector<Node> nodes_;
  std::vector<Link> links_;
  std::map<std::tuple<NodeId, NodeId, LinkKind>, size_t> link_index_;  // lower id first
  std::map<NodeId, std::vector<size_t>> links_at_;
  std::vector<Note> notes_;
};

const char* name_of(NodeKind kind);  // "package", "numa", …: the words of the JSON form
const char* name_of(LinkKind kind);  // "nvlink", "xgmi", "xelink", "c2c"
const char* name_of(Source source);  // "unknown", "no_limit", "estimated", "stated"

}  // namespace weir::topo
