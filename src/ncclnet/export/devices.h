// SPDX-License-Identifier: Apache-2.0
// Devices: the devices that NCCL may choose from. Over `tcp` each network interface that
// WEIR_IFNAME (else NCCL_SOCKET_IFNAME) allows is a device, loopback only where there is no other
// or it is requested; a virtual device joins several, and its connections may use all of them. The
// other transports choose their network themselves: there the device is the transport. Returned
// names stay valid as long as the object. Not thread-safe; the library's lock guards it.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "net/interfaces.h"

namespace weir::ncclnet {

struct NetDevice {
  std::string name;      // "eth0", "eth0+eth1"
  std::string pci_path;  // "" when it has none
  uint64_t guid = 0;
  int speed_mbits = 0;
  std::string meet_over;     // WEIR_IFNAME of the control network: one interface
  std::string move_over;     // that of the transport; "": the environment's
  std::vector<int> members;  // itself, or those of a virtual device
};

class Devices {
 public:
  // Finds the devices of the transport of that name; `one_each`: each interface is a device.
  bool find(const std::string& transport, bool one_each, const net::InterfaceFilter& filter,
            std::string* reason);
  int count() const { return static_cast<int>(list_.size()); }
  bool has(int device) const { return device >= 0 && device < count(); }
  const NetDevice& operator[](int device) const { return list_[static_cast<size_t>(device)]; }
  // The index of the new device, or -1 with the reason.
  int join(const int* members, int member_count, int member_count_max, std::string* reason);

 private:
  std::deque<NetDevice> list_;
};

}  // namespace weir::ncclnet
