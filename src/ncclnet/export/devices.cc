// SPDX-License-Identifier: Apache-2.0
#include "ncclnet/export/devices.h"

#include <limits.h>
#include <stdlib.h>

#include <algorithm>

namespace weir::ncclnet {
namespace {

constexpr int kSpeedUnknownMbits = 10'000;  // NCCL's own guess
constexpr int kDeviceCountMax = 64;

// The PCI device of an interface, in NCCL's form; "" for bridges, veth and the like.
std::string pci_path_of(const std::string& interface) {
  char* resolved = realpath(("/sys/class/net/" + interface + "/device").c_str(), nullptr);
  if (resolved == nullptr) return "";
  std::string path = resolved;
  free(resolved);
  return path.find("/pci") != std::string::npos ? path : "";
}

}  // namespace

bool Devices::find(const std::string& transport, bool one_each, const net::InterfaceFilter& filter,
                   std::string* reason) {
  std::vector<net::Interface> interfaces;
  if (!net::list_interfaces(filter, &interfaces, reason)) return false;
  const bool has_other = std::any_of(interfaces.begin(), interfaces.end(),
                                     [](const net::Interface& one) { return !one.is_loopback; });
  for (const net::Interface& one : interfaces) {
    if (one.is_loopback && has_other && !filter.asks_for(one.name)) continue;
    const auto same = [&](const NetDevice& device) { return device.name == one.name; };
    if (std::any_of(list_.begin(), list_.end(), same)) continue;  // a further address
    if (count() == kDeviceCountMax) break;
    NetDevice device;
    device.name = one.name;
    device.pci_path = pci_path_of(one.name);
    device.guid = static_cast<uint64_t>(count());
    device.speed_mbits = one.speed_mbits != 0 && one.speed_mbits < INT_MAX
                             ? static_cast<int>(one.speed_mbits)
                             : kSpeedUnknownMbits;
    device.meet_over = "=" + one.name;
    device.move_over = device.meet_over;
    device.members = {count()};
    if (!one_each) {
      device.name = transport;
      device.pci_path = "";
      device.move_over = "";
    }
    list_.push_back(device);
    if (!one_each) break;
  }
  if (list_.empty()) *reason = "no network interface that is allowed is up and has an address";
  return !list_.empty();
}

int Devices::join(const int* members, int member_count, int member_count_max, std::string* reason) {
  if (members == nullptr || member_count < 1 || member_count > member_count_max) {
    *reason = "a virtual device of " + std::to_string(member_count) + " devices; 1 to " +
              std::to_string(member_count_max) + " can be joined";
    return -1;
  }
  NetDevice made;
  for (int i = 0; i < member_count; ++i) {
    const int member = members[i];
    if (!has(member) || (*this)[member].members.size() != 1) {
      *reason = "a virtual device of device " + std::to_string(member) +
                ", which does not exist or is itself virtual";
      return -1;
    }
    if (std::find(made.members.begin(), made.members.end(), member) != made.members.end()) {
      *reason = "a virtual device with device " + std::to_string(member) + " in it twice";
      return -1;
    }
    const NetDevice& one = (*this)[member];
    made.members.push_back(member);
    made.name += (i == 0 ? "" : "+") + one.name;
    made.speed_mbits += std::min(one.speed_mbits, INT_MAX - made.speed_mbits);
    if (i == 0) {
      made.pci_path = one.pci_path;
      made.guid = one.guid;
      made.meet_over = one.meet_over;
      made.move_over = one.move_over;
    } else {
      made.move_over += "," + one.name;
    }
  }
  if (member_count == 1) return members[0];
  for (int i = 0; i < count(); ++i) {
    if ((*this)[i].members == made.members) return i;
  }
  if (count() == kDeviceCountMax) {
    *reason = "there are " + std::to_string(kDeviceCountMax) + " devices already";
    return -1;
  }
  list_.push_back(made);
  return count() - 1;
}

}  // namespace weir::ncclnet
