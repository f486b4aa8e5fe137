// SPDX-License-Identifier: Apache-2.0
#include "core/topo/estimates.h"

namespace weir::topo {
namespace {

constexpr double kPcieHopUs = 0.25;
constexpr double kLinkHopUs = 0.5;
constexpr double kSocketHopUs = 0.15;
constexpr double kNumaHopUs = 0.05;
constexpr double kNetworkHopUs = 1.0;
constexpr double kPcieGen3x16Gbs = 15.754;

}  // namespace

Edge nvlink_edge(int32_t compute_capability) {
  if (compute_capability <= 0) return {25, kLinkHopUs, Source::kEstimated};
  double per_link_gbs = 25;                              // generations 2 to 4
  if (compute_capability < 70) per_link_gbs = 20;        // P100
  if (compute_capability == 86) per_link_gbs = 14.0625;  // bridges of GA102 boards
  if (compute_capability >= 100) per_link_gbs = 50;      // generation 5
  return {per_link_gbs, kLinkHopUs, Source::kStated};
}

Edge xgmi_edge(std::string_view gcn) {
  if (gcn.starts_with("gfx")) gcn.remove_prefix(3);
  if (gcn == "906" || gcn == "908") return {46, kLinkHopUs, Source::kStated};
  if (gcn == "90a" || gcn == "910") return {50, kLinkHopUs, Source::kStated};
  if (gcn.starts_with("94") || gcn.starts_with("95")) return {64, kLinkHopUs, Source::kStated};
  return {46, kLinkHopUs, Source::kEstimated};
}

Edge socket_edge(const CpuInfo& cpu) {
  double bandwidth_gbs = 20;
  if (cpu.vendor == "GenuineIntel") {
    // QPI 9.6 GT/s, then two UPI links at 10.4 GT/s, then three or four at 16 GT/s and up.
    bandwidth_gbs = cpu.model_id >= 143   ? 60
                    : cpu.model_id >= 106 ? 45
                    : cpu.model_id >= 85  ? 40
                                          : 19;
  } else if (cpu.vendor == "AuthenticAMD") {
    bandwidth_gbs = cpu.family_id >= 25 ? 72 : 54;  // three or four xGMI links of 16 or 18 GT/s
  } else if (cpu.arch == "ppc64" || cpu.arch == "ppc64le") {
    bandwidth_gbs = 64;  // X bus
  }
  return {bandwidth_gbs, kSocketHopUs, Source::kEstimated};
}

Edge numa_edge() { return {64, kNumaHopUs, Source::kEstimated}; }

Edge pcie_edge_unknown() { return {kPcieGen3x16Gbs, kPcieHopUs, Source::kEstimated}; }

Edge pcie_edge(double bandwidth_gbs) { return {bandwidth_gbs, kPcieHopUs, Source::kStated}; }

Edge internal_edge(double latency_us) { return {0, latency_us, Source::kNoLimit}; }

Edge network_edge(const NicInfo& nic) {
  Edge edge{nic.speed_mbps() / 8000, kNetworkHopUs, Source::kStated};
  if (edge.bandwidth_gbs <= 0) edge = {0, kNetworkHopUs, Source::kUnknown};
  for (const NetPort& port : nic.ports) {
    if (port.latency_us && *port.latency_us > 0) edge.latency_us = *port.latency_us;
  }
  return edge;
}

}  // namespace weir::topo
