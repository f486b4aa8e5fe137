// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device/nearby.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/comm/device/device_memory.h"
#include "core/topo/cpus.h"
#include "core/topo/nearest.h"
#include "net/interfaces.h"

namespace weir::comm {
namespace {

std::vector<std::string> allowed_interfaces() {
  net::InterfaceFilter filter;
  std::vector<net::Interface> list;
  std::string reason;
  std::vector<std::string> names;
  if (!net::filter_from(std::getenv("WEIR_IFNAME"), std::getenv("NCCL_SOCKET_IFNAME"), &filter,
                        &reason) ||
      !net::list_interfaces(filter, &list, &reason)) {
    return names;
  }
  for (const net::Interface& one : list) {
    if (!one.is_loopback) names.push_back(one.name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());  // one per address
  return names;
}

}  // namespace

void Nearby::hint(weir_transport_config_t* config) const {
  config->device = device;
  config->numa_node = numa_node;
  config->interface = interface.empty() ? nullptr : interface.c_str();
  config->domain = domain.empty() ? nullptr : domain.c_str();
}

Nearby look_nearby(bool asks_driver, const std::string& sysfs_root) {
  Nearby it;
  if (asks_driver) it.device = current_device();
  it.numa_node = topo::numa_node_of(topo::cpus_allowed(), sysfs_root);
  it.interface = topo::nearest_device("net", allowed_interfaces(), it.numa_node, sysfs_root);
  it.domain = topo::nearest_device("infiniband", topo::devices_of_class("infiniband", sysfs_root),
                                   it.numa_node, sysfs_root);
  return it;
}

}  // namespace weir::comm
