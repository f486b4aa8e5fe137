// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/devices.h"

#include <algorithm>

namespace weir::plugins::ucx {
namespace {

constexpr std::string_view kResource = "flags ";
constexpr std::string_view kBeforeName = "-- ";

// Transports that use no network device: UCX_NET_DEVICES does not concern them.
bool is_local(std::string_view transport) {
  for (const std::string_view known :
       {"self", "sysv", "posix", "xpmem", "cma", "knem", "cuda_copy", "cuda_ipc", "gdr_copy",
        "rocm_copy", "rocm_ipc", "ze_copy"}) {
    if (transport == known) return true;
  }
  return false;
}

}  // namespace

std::string devices_with(std::string_view description, const std::vector<std::string>& cards) {
  std::vector<std::string_view> kept;
  bool has_own = false;
  bool has_others = false;
  while (!description.empty()) {
    const size_t end = std::min(description.find('\n'), description.size());
    const std::string_view line = description.substr(0, end);
    description.remove_prefix(std::min(end + 1, description.size()));
    const size_t flags = line.find(kResource);
    const size_t begin = flags == std::string_view::npos ? flags : line.find(kBeforeName, flags);
    if (begin == std::string_view::npos) continue;
    std::string_view name = line.substr(begin + kBeforeName.size());
    name = name.substr(0, name.find(' '));
    const size_t slash = name.find('/');
    if (slash == std::string_view::npos || is_local(name.substr(0, slash))) continue;
    const std::string_view device = name.substr(slash + 1);
    const std::string_view card = device.substr(0, device.find(':'));
    if (card.size() != device.size()) {
      const bool own = std::find(cards.begin(), cards.end(), card) != cards.end();
      (own ? has_own : has_others) = true;
      if (!own) continue;
    }
    if (std::find(kept.begin(), kept.end(), device) == kept.end()) kept.push_back(device);
  }
  if (!has_own || !has_others) return "";
  std::string text;
  for (const std::string_view device : kept) {
    if (!text.empty()) text += ',';
    text += device;
  }
  return text;
}

}  // namespace weir::plugins::ucx
