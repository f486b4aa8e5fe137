// SPDX-License-Identifier: Apache-2.0
// NCCL_IB_HCA: which InfiniBand ports of this machine it allows. NCCL's list may exclude (^), be exact
// (=) or name prefixes, and name a port or all of a device; UCX and libfabric want the devices
// themselves. Pure functions but for the one that looks; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir::nccl {

struct InfinibandPort {
  std::string device;  // "mlx5_0"
  int port = 1;

  std::string text() const;  // "mlx5_0:1"
  bool operator==(const InfinibandPort&) const = default;
};

// Of this machine, by name; `folder` as the kernel shows them.
std::vector<InfinibandPort> infiniband_ports(const std::string& folder = "/sys/class/infiniband");

// Those of `all` that `filter`, in NCCL's words, allows.
std::vector<InfinibandPort> allowed_ports(std::string_view filter,
                                          const std::vector<InfinibandPort>& all);

}  // namespace weir::nccl
