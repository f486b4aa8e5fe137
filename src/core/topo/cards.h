// SPDX-License-Identifier: Apache-2.0
// Finds the cards of this machine through which InfiniBand, RoCE or EFA may reach ranks of other
// hosts, from a few small files under /sys: the devices of the kernel's class infiniband.
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weir::topo {

enum class CardKind : uint8_t { kInfiniBand = 1, kRoce = 2, kEfa = 4 };  // bits of a set
inline constexpr uint8_t kCardKindsAll = 7;

const char* name_of(CardKind kind);

struct Cards {
  uint8_t kinds = 0;  // bits of CardKind: those of which a port is active
  std::string text;   // each device with its kind, or why it does not count; "" if there is none
};

// A device of which a port is active, of one of these kinds.
struct ActiveCard {
  std::string name;                     // "mlx5_0"
  std::string address;                  // on PCI, "0000:3b:00.0"; "": not on PCI
  std::vector<std::string> interfaces;  // of the kernel's network over it: "ib0"
};
// In the order of their names.
std::vector<ActiveCard> active_cards(const std::string& sysfs_root);

// The card on PCI of a network interface; "": none.
std::string address_of_interface(const std::string& name, const std::string& sysfs_root);

// Devices without hardware of their own, such as rxe's and siw's, do not count, nor does iWARP.
// `sysfs_root` is "/sys", or a copy of one.
Cards look_for_cards(const std::string& sysfs_root);

}  // namespace weir::topo
