// SPDX-License-Identifier: Apache-2.0
#include "core/topo/merge_fill.h"

#include <algorithm>

#include "core/topo/estimates.h"

namespace weir::topo {
namespace {

template <class Value>
void fill(Value* of_file, const Value& of_machine, const Value& missing = Value()) {
  if (*of_file == missing) *of_file = of_machine;
}

// Bandwidth follows from speed and width, each of which may be missing.
void fill_pcie_link(const Node& of_machine, Node* of_file) {
  PciInfo& pci = *of_file->pci;
  const PciInfo& found = *of_machine.pci;
  const bool stated =
      of_file->up.source == Source::kStated || of_file->up.source == Source::kNoLimit;
  const bool no_part = pci.speed_gts_max <= 0 && pci.width_max == 0;
  if (!stated && no_part && of_machine.up.source != Source::kUnknown) of_file->up = of_machine.up;
  fill(&pci.speed_gts_max, found.speed_gts_max);
  fill(&pci.width_max, found.width_current > 0 ? found.width_current : found.width_max);
  fill(&pci.speed_gts_current, found.speed_gts_current);
  fill(&pci.width_current, found.width_current);
  if (stated || no_part) return;
  const double bandwidth_gbs = pcie_bandwidth_gbs(pci.speed_gts_max, pci.width_max);
  if (bandwidth_gbs > 0) of_file->up = pcie_edge(bandwidth_gbs);
}

void fill_gpu(const GpuInfo& found, GpuInfo* gpu) {
  fill(&gpu->dev, found.dev);
  fill(&gpu->rank, found.rank);
  fill(&gpu->compute_capability, found.compute_capability);
  fill(&gpu->gcn, found.gcn);
  fill(&gpu->arch, found.arch);
  fill(&gpu->uuid, found.uuid);
  fill(&gpu->memory_bytes, found.memory_bytes);
  fill(&gpu->gdr, found.gdr);
}

}  // namespace

CpuInfo filled(const CpuInfo& of_file, const CpuInfo& of_machine) {
  CpuInfo cpu = of_file;
  fill(&cpu.arch, of_machine.arch);
  fill(&cpu.vendor, of_machine.vendor);
  fill(&cpu.model, of_machine.model);
  fill(&cpu.family_id, of_machine.family_id, -1);
  fill(&cpu.model_id, of_machine.model_id, -1);
  return cpu;
}

void fill_device(const Node& of_machine, Node* of_file) {
  PciInfo& pci = *of_file->pci;
  const PciInfo& found = *of_machine.pci;
  if (pci.class_code == 0 && of_file->kind == NodeKind::kPciDevice) {
    of_file->kind = of_machine.kind;
    of_file->bridge = of_machine.bridge;
    of_file->gpu = of_machine.gpu;
    if (of_machine.nic) of_file->nic.emplace();  // its ports follow
  }
  fill(&pci.class_code, found.class_code);
  fill(&pci.vendor, found.vendor);
  fill(&pci.device, found.device);
  fill(&pci.subsystem_vendor, found.subsystem_vendor);
  fill(&pci.subsystem_device, found.subsystem_device);
  fill(&of_file->name, of_machine.name);
  fill_pcie_link(of_machine, of_file);
  if (of_file->gpu && of_machine.gpu) fill_gpu(*of_machine.gpu, &*of_file->gpu);
}

void fill_port(const NetPort& of_machine, NetPort* of_file) {
  fill(&of_file->dev, of_machine.dev);
  fill(&of_file->port, of_machine.port);
  fill(&of_file->speed_mbps, of_machine.speed_mbps);
  fill(&of_file->latency_us, of_machine.latency_us);
  fill(&of_file->guid, of_machine.guid);
  fill(&of_file->connection_count_max, of_machine.connection_count_max);
  fill(&of_file->gdr, of_machine.gdr);
  of_file->infiniband = of_file->infiniband || of_machine.infiniband;
}

void fill_link(const Node& a, const Node& b, const Link* of_machine, Link* of_file) {
  if (of_file->edge.source == Source::kStated) return;
  if (of_machine != nullptr && of_machine->edge.source == Source::kStated) {
    const double one_gbs = of_machine->edge.bandwidth_gbs / std::max(of_machine->count, 1u);
    of_file->edge = of_machine->edge;
    of_file->edge.bandwidth_gbs = one_gbs * of_file->count;
    return;
  }
  for (const Node* end : {&a, &b}) {
    if (!end->gpu) continue;
    const Edge one = of_file->kind == LinkKind::kXgmi ? xgmi_edge(end->gpu->gcn)
                     : of_file->kind == LinkKind::kNvlink
                         ? nvlink_edge(end->gpu->compute_capability)
                         : Edge{};
    if (one.source != Source::kStated) continue;
    of_file->edge.bandwidth_gbs = one.bandwidth_gbs * of_file->count;
    of_file->edge.source = Source::kStated;
    return;
  }
}

}  // namespace weir::topo
