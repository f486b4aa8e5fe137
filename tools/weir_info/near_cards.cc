// SPDX-License-Identifier: Apache-2.0
#include "weir_info/near_cards.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/comm/start/card_choice.h"
#include "core/topo/discover.h"

namespace weir::info {
namespace {

std::string describe(const topo::NearPorts& near) {
  if (near.names.empty()) return "";
  const std::string why = near.describe();
  return comm::join_names(near.names) + (why.empty() ? "" : fmt::format(" ({})", why));
}

}  // namespace

std::vector<NearLine> near_lines(const Settings& settings, const std::string& sysfs_root) {
  if (settings.cards == "0") return {};
  net::InterfaceFilter filter;
  std::vector<net::Interface> interfaces;
  std::string reason;
  if (!net::filter_from(std::getenv("WEIR_IFNAME"), std::getenv("NCCL_SOCKET_IFNAME"), &filter,
                        &reason) ||
      !net::list_interfaces(filter, &interfaces, &reason)) {
    return {};
  }
  const comm::CardCandidates all = comm::card_candidates(filter, interfaces, sysfs_root);
  if (!all.several()) return {};
  const auto topology =
      topo::read_machine(settings.topology_file, topo::merge_of_setting(settings.topology_merge));
  if (!topology.ok()) return {};
  std::vector<NearLine> lines;
  const auto add = [&](const std::string& name, const topo::RankPlace& place) {
    const comm::NearCards near = comm::near_cards(all, &topology.value(), place);
    lines.push_back({"on " + name, describe(near.cards), describe(near.interfaces)});
  };
  for (const topo::NodeId id : topology.value().all(topo::NodeKind::kGpu)) {
    add(topology.value().label(id), {topology.value().label(id), {}});
  }
  for (const topo::NodeId id : topology.value().all(topo::NodeKind::kNuma)) {
    add(topology.value().label(id), {"", topology.value().node(id).cpus});
  }
  return lines;
}

}  // namespace weir::info
