// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/topo/print.h"

namespace weir::topo {
namespace {

constexpr size_t kDeviceCountMax = 256;

std::string cell(const Path& path, MatrixContent content) {
  if (content == MatrixContent::kClass || path.path_class == PathClass::kSelf) return path.label();
  if (path.bandwidth_gbs <= 0) return "?";
  return fmt::format("{}{:.1f}", path.estimated ? "~" : "", path.bandwidth_gbs);
}

void legend_line(std::string* text, const char* label, const char* meaning) {
  *text += fmt::format("  {:<5}= {}\n", label, meaning);
}

// Only the entries that the table uses, so that a small machine has a small legend.
std::string legend(const std::vector<Path>& paths, MatrixContent content) {
  std::set<std::string> used;
  bool estimated = false;
  for (const Path& path : paths) {
    std::string label = path.label();
    while (!label.empty() && label.back() >= '0' && label.back() <= '9') label.pop_back();
    used.insert(label);
    estimated = estimated || path.estimated;
  }
  std::string text = "\nLegend:\n";
  legend_line(&text, "X", "the device itself");
  if (content == MatrixContent::kBandwidth) {
    text += "  GB/s in one direction (10^9 bytes of payload), the narrowest place on the way\n";
    if (estimated)
      legend_line(&text, "~", "an estimate for hardware of the kind: nothing states it");
    legend_line(&text, "?", "not known");
    return text;
  }
  const std::pair<const char*, const char*> lines[] = {
      {"NV", "# NVLinks, directly"},
      {"XG", "# xGMI links, directly"},
      {"XL", "# Xe Links, directly"},
      {"C2C", "# chip-to-chip links, directly"},
      {"NVS", "# NVLinks into NVSwitches"},
      {"PIX", "PCIe, through at most one switch"},
      {"PXB", "PCIe, through several switches, but no root complex"},
      {"PHB", "PCIe, through the same root complex (usually the CPU)"},
      {"NODE", "PCIe, through several root complexes of one NUMA node"},
      {"SYS", "PCIe, and the links between NUMA nodes or sockets"},
      {"NET", "the network, to another machine"},
      {"-", "no way"},
  };
  for (const auto& [label, meaning] : lines) {
    if (!used.contains(label)) continue;
    legend_line(&text, meaning[0] == '#' ? fmt::format("{}#", label).c_str() : label, meaning);
  }
  return text;
}

std::string names_of(const Node& nic) {
  std::string names;
  for (const NetPort& port : nic.nic->ports) {
    if (names.find(port.name) != std::string::npos) continue;
    names += (names.empty() ? "" : ", ") + port.name;
  }
  if (nic.pci) names += (names.empty() ? "" : "  ") + nic.pci->address.text();
  return names;
}

}  // namespace

std::string print_matrix(const Topology& topology, MatrixContent content) {
  std::vector<NodeId> devices = topology.all(NodeKind::kGpu);
  const std::vector<NodeId> nics = topology.all(NodeKind::kNic);
  devices.insert(devices.end(), nics.begin(), nics.end());
  std::string text;
  if (devices.empty()) {
    text += "No GPU and no NIC; the NUMA nodes instead:\n";
    devices = topology.all(NodeKind::kNuma);
  }
  if (devices.size() > kDeviceCountMax) {
    return fmt::format("{} devices are too many for a table of up to {}; use --json\n",
                       devices.size(), kDeviceCountMax);
  }
  // Rows of cells; the last two columns are the affinities.
  std::vector<std::vector<std::string>> rows(1);
  rows[0].push_back("");
  for (const NodeId id : devices) rows[0].push_back(topology.label(id));
  rows[0].insert(rows[0].end(), {"CPU Affinity", "NUMA Affinity"});
  std::vector<Path> paths;
  for (const NodeId a : devices) {
    std::vector<std::string> row{topology.label(a)};
    for (const NodeId b : devices) {
      paths.push_back(find_path(topology, a, b));
      row.push_back(cell(paths.back(), content));
    }
    const std::string cpus = topology.cpus_near(a).list();
    const int32_t numa = topology.numa_of(a);
    row.push_back(cpus.empty() ? "N/A" : cpus);
    row.push_back(numa < 0 ? "N/A" : fmt::format("{}", numa));
    rows.push_back(std::move(row));
  }
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool centred = i > 0 && row[i] == "X";
      line += centred ? fmt::format("{:^{}}  ", row[i], widths[i])
                      : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  text += legend(paths, content);
  if (!nics.empty()) {
    text += "\nNIC names:\n";
    for (const NodeId id : nics) {
      const double speed = topology.node(id).nic->speed_mbps();
      const std::string rate = speed > 0 ? fmt::format("  {:g} Gbit/s", speed / 1000) : "";
      text += fmt::format("  {}: {}{}\n", topology.label(id), names_of(topology.node(id)), rate);
    }
  }
  return text;
}

}  // namespace weir::topo
