// SPDX-License-Identifier: Apache-2.0
// Which cards and interfaces of this machine are nearest to a rank on each of its GPUs and NUMA
// nodes.
#pragma once

#include <string>
#include <vector>

#include "core/base/settings.h"

namespace weir::info {

struct NearLine {
  std::string rank;        // "on GPU3"
  std::string cards;       // "mlx5_3 (same PCIe switch as GPU3 (PIX))"; "": there are none
  std::string interfaces;  // likewise
};

// Empty where a rank has no choice, or WEIR_CARDS=0 refuses it. `sysfs_root` is "/sys", or a copy
// of one.
std::vector<NearLine> near_lines(const Settings& settings, const std::string& sysfs_root = "/sys");

}  // namespace weir::info
