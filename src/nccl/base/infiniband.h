// SPDX-License-Identifier: Apache-2.0
// NCCL_IB_HCA: which InfiniBand ports of this machine may be used. NCCL's list may exclude (^),
// match exactly (=) or by prefix, and name a port or all ports of a device; UCX and libfabric take
// lists of devices. Pure functions, except the one that reads /sys; thread-safe.
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

// The ports of this machine, by name; `folder` is laid out like the kernel's.
std::vector<InfinibandPort> infiniband_ports(const std::string& folder = "/sys/class/infiniband");

// The ports of `all` that `filter`, in NCCL's syntax, allows.
std::vector<InfinibandPort> allowed_ports(std::string_view filter,
                                          const std::vector<InfinibandPort>& all);

}  // namespace weir::nccl
