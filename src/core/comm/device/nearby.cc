// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/nearby.h"

#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "core/comm/device/device_memory.h"
#include "core/comm/start/process_topology.h"
#include "core/topo/cpus.h"
#include "net/interfaces.h"

namespace weir::comm {
namespace {

constexpr const char* kSysfs = "/sys";

CardCandidates candidates() {
  net::InterfaceFilter filter;
  std::vector<net::Interface> list;
  std::string reason;
  if (!net::filter_from(std::getenv("WEIR_IFNAME"), std::getenv("NCCL_SOCKET_IFNAME"), &filter,
                        &reason) ||
      !net::list_interfaces(filter, &list, &reason)) {
    return {};
  }
  return card_candidates(filter, list, kSysfs);
}

std::string describe(const char* what, const std::string& used, const topo::NearPorts& near) {
  if (used.empty()) return "";
  const std::string why = near.describe();
  return fmt::format("{} {}{}", what, used, why.empty() ? "" : fmt::format(" ({})", why));
}

}  // namespace

void Nearby::hint(weir_transport_config_t* config) const {
  config->device = device;
  config->numa_node = numa_node;
  config->interface = interface.empty() ? nullptr : interface.c_str();
  config->domain = domain.empty() ? nullptr : domain.c_str();
}

std::string Nearby::describe() const {
  const std::string cards = comm::describe("cards", domain, near.cards);
  const std::string interfaces = comm::describe("interfaces", interface, near.interfaces);
  return fmt::format("{}{}{}", cards, cards.empty() || interfaces.empty() ? "" : ", ", interfaces);
}

Nearby look_nearby(bool asks_driver) {
  Nearby it;
  if (asks_driver) it.device = current_device();
  const topo::CpuPlace place = place_on_machine(topo::cpus_allowed());
  const bool on_one_node = place.numa < topo::CpuPlace::kSeveral;
  it.numa_node = on_one_node ? static_cast<int32_t>(place.numa) : -1;
  return it;
}

Nearby look_nearby(const Settings& settings, bool asks_driver, Rank rank) {
  Nearby it = look_nearby(asks_driver);
  if (settings.cards == "0") return it;
  const CardCandidates all = candidates();
  topo::RankPlace place{"", topo::cpus_allowed()};
  if (it.device >= 0) {
    const std::string told = told_device(it.device);
    place.device = told.substr(0, told.find(' '));
  }
  it.near = near_cards(all, nullptr, place);
  if (all.several()) {
    with_topology(settings, [&](const topo::Topology& topology) {
      it.near = near_cards(all, &topology, place);
    });
  }
  it.interface = join_names(rotated(it.near.interfaces.names, rank));
  it.domain = join_names(it.near.cards.names);
  return it;
}

}  // namespace weir::comm
