// SPDX-License-Identifier: Apache-2.0
// The names and numbers of PCI: addresses, class codes and the bandwidth of a link. Plain values
// and pure functions; no thread rule.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weir::topo {

struct PciAddress {
  uint32_t domain = 0;
  uint8_t bus = 0;
  uint8_t device = 0;    // below 32
  uint8_t function = 0;  // below 8

  // "0000:3b:00.0", or "3b:00.0" in domain 0; nullopt when `text` is not an address.
  static std::optional<PciAddress> parse(std::string_view text);
  std::string text() const;                             // "0000:3b:00.0"
  auto operator<=>(const PciAddress&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Class codes have 24 bits: base class, subclass, programming interface.
namespace pci_class {
bool is_accelerator(uint32_t code);  // display controllers and processing accelerators
bool is_network(uint32_t code);
bool is_infiniband(uint32_t code);
bool is_bridge(uint32_t code);    // PCI to PCI
bool is_nvswitch(uint32_t code);  // "other bridge", the class of NVIDIA's switches
bool is_storage(uint32_t code);
const char* describe(uint32_t code);  // "display", "network", "storage", …; "device" when unknown
}  // namespace pci_class

// The payload rate of a link in one direction: GT/s per lane × lanes, less the line code (8b/10b
// up to 5 GT/s, 128b/130b to 32, 242/256 flits from 64; PCI Express Base Specification).
// 0 for a speed or width that PCI Express does not have.
double pcie_bandwidth_gbs(double speed_gts, uint32_t width_lanes);

// A speed and a width whose pcie_bandwidth_gbs() is `bandwidth_gbs` within 0.1 %, the widest up to
// 16 lanes first; {0, 0} when there is none.
struct PcieRate {
  double speed_gts = 0;
  uint32_t width_lanes = 0;
};
PcieRate pcie_rate(double bandwidth_gbs);

// "16 GT/s", "16.0 GT/s PCIe", "16 GT/s PCIe": GT/s. 0 when unknown ("", "Unknown speed").
double parse_pcie_speed_gts(std::string_view text);

}  // namespace weir::topo
