// SPDX-License-Identifier: Apache-2.0
#include "net/listening.h"

#include <errno.h>
#include <string.h>

#include <algorithm>

#include "net/ip_socket.h"

namespace weir::net {
namespace {

// Room for strangers, beside the connections that are expected.
constexpr uint64_t kBacklogSpare = 64;
constexpr uint64_t kBacklogMax = 4096;

}  // namespace

std::vector<Listening> listen_at_all(const std::vector<Interface>& interfaces,
                                     const InterfaceFilter& filter, size_t count_max,
                                     uint64_t connection_count, std::string* reason) {
  const auto backlog = static_cast<int>(std::min(connection_count + kBacklogSpare, kBacklogMax));
  std::vector<Listening> all;
  std::string failures;
  for (size_t i = 0; i < interfaces.size(); ++i) {
    const Interface& one = interfaces[i];
    if (!one.is_loopback && all.size() + 1 >= count_max) continue;
    if (all.size() == count_max) break;
    uint16_t port = 0;
    const int fd = listen_at(one.address, &port, backlog);
    if (fd < 0) {
      // Addresses come and go; IPv6 may be switched off in the kernel.
      char text[128];
      failures += (failures.empty() ? "" : "; ") + one.name + " " + to_string(one.address) + ": " +
                  strerror_r(errno, text, sizeof text);
      continue;
    }
    all.push_back({fd, port, i});
  }
  if (!all.empty()) return all;
  const std::string allowed =
      filter.text().empty() ? "" : " that the setting '" + filter.text() + "' allows";
  *reason = "no network interface" + allowed + " is up and has an address" +
            (failures.empty() ? "" : " (" + failures + ")");
  return all;
}

}  // namespace weir::net
