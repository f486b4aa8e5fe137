// SPDX-License-Identifier: Apache-2.0
// Devices: what NCCL may choose from. Over `tcp` each network interface that WEIR_IFNAME (else
// NCCL_SOCKET_IFNAME) allows is one, loopback only where there is nothing else or it is asked for; a virtual
// device joins several, over all of which its connections may go. The other transports choose their network
// themselves: there the device is the transport. Names given out stay valid as long as the object. Not thread-safe; the
// library's lock guards it.
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
  std::string meet_over;     // setting WEIR_IFNAME of who meets: one interface
  std::string move_over;     // of the transport; "" leaves the environment's
  std::vector<int> members;  // itself, or those behind a virtual one
};

class Devices {
 public:
  // `transport`: its name; `one_each`: an interface is a device.
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
