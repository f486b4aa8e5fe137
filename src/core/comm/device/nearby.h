// SPDX-License-Identifier: Apache-2.0
// Nearby: what is near to the calling thread, for the hints in a transport's configuration. A
// value.
#pragma once

#include <cstdint>
#include <string>

#include "weir/plugin.h"

namespace weir::comm {

struct Nearby {
  int32_t device = -1;
  int32_t numa_node = -1;
  std::string interface;
  std::string domain;

  // The configuration then points into this value.
  void hint(weir_transport_config_t* config) const;
};

// The device of the CUDA context that is current in this thread, where the process uses CUDA and
// `asks_driver`; the NUMA node of the processors on which this thread may run; the allowed
// interface and the network card, each if it is the only one of the machine or of that node. Reads
// small files.
Nearby look_nearby(bool asks_driver, const std::string& sysfs_root = "/sys");

}  // namespace weir::comm
