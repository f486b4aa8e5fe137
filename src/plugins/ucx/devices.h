// SPDX-License-Identifier: Apache-2.0
// Which of its network devices UCX uses, where a rank uses some of the machine's cards only. Pure
// function; thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir::plugins::ucx {

// For UCX_NET_DEVICES: of the resources that ucp_context_print_info lists ("rc_mlx5/mlx5_0:1"), the
// ports of `cards` and all devices that are no port of a card, such as tcp's interfaces. "": UCX
// has no port of these cards, or has no others: nothing is to be left out.
std::string devices_with(std::string_view description, const std::vector<std::string>& cards);

}  // namespace weir::plugins::ucx
