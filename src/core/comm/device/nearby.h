// SPDX-License-Identifier: Apache-2.0
// Nearby: what is near to the calling thread, for the hints in a transport's configuration. A
// value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/settings.h"
#include "core/base/types.h"
#include "core/comm/start/card_choice.h"
#include "weir/plugin.h"

namespace weir::comm {

struct Nearby {
  int32_t device = -1;
  int32_t numa_node = -1;
  NearCards near;         // by the topology
  std::string interface;  // the nearest ones with commas, beginning with another for each rank
  std::string domain;     // the cards that this rank uses, with commas; at first all near ones

  // The configuration then points into this value.
  void hint(weir_transport_config_t* config) const;
  // "cards mlx5_3 (same PCIe switch as GPU3 (PIX)), interfaces …"; "": there is no choice.
  std::string describe() const;
};

// The device of the CUDA context that is current in this thread, where the process uses CUDA and
// `asks_driver`; the NUMA node of the processors on which this thread may run.
Nearby look_nearby(bool asks_driver);

// The same, with cards and interfaces unless WEIR_CARDS=0: if the machine has several, its topology
// is read, which takes tens of milliseconds once in a process.
Nearby look_nearby(const Settings& settings, bool asks_driver, Rank rank);

}  // namespace weir::comm
