// SPDX-License-Identifier: Apache-2.0
#include "core/topo/pci.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace weir::topo {
namespace {

bool parse_hex(std::string_view text, size_t digits_min, size_t digits_max, uint32_t* value) {
  if (text.size() < digits_min || text.size() > digits_max) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, 16);
  return error == std::errc() && end == text.data() + text.size();
}

constexpr double kSpeedsGts[] = {2.5, 5, 8, 16, 32, 64};
constexpr uint32_t kWidths[] = {16, 8, 4, 2, 1, 12, 32};

}  // namespace

std::optional<PciAddress> PciAddress::parse(std::string_view text) {
  uint32_t domain = 0;
  if (const size_t first = text.find(':');
      first != std::string_view::npos && text.find(':', first + 1) != std::string_view::npos) {
    if (!parse_hex(text.substr(0, first), 1, 8, &domain)) return std::nullopt;
    text.remove_prefix(first + 1);
  }
  const size_t colon = text.find(':');
  const size_t dot = text.find('.');
  if (colon == std::string_view::npos || dot == std::string_view::npos || dot < colon) {
    return std::nullopt;
  }
  uint32_t bus = 0;
  uint32_t device = 0;
  uint32_t function = 0;
  if (!parse_hex(text.substr(0, colon), 1, 2, &bus) ||
      !parse_hex(text.substr(colon + 1, dot - colon - 1), 1, 2, &device) ||
      !parse_hex(text.substr(dot + 1), 1, 1, &function) || device > 31 || function > 7) {
    return std::nullopt;
  }
  PciAddress address;
  address.domain = domain;
  address.bus = static_cast<uint8_t>(bus);
  address.device = static_cast<uint8_t>(device);
  address.function = static_cast<uint8_t>(function);
  return address;
}

std::string PciAddress::text() const {
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, device, function);
}

namespace pci_class {

bool is_accelerator(uint32_t code) { return code >> 16 == 0x03 || code >> 16 == 0x12; }
bool is_network(uint32_t code) { return code >> 16 == 0x02; }
bool is_infiniband(uint32_t code) { return code >> 8 == 0x0207; }
bool is_bridge(uint32_t code) { return code >> 8 == 0x0604; }
bool is_nvswitch(uint32_t code) { return code >> 8 == 0x0680; }
bool is_storage(uint32_t code) { return code >> 16 == 0x01; }

const char* describe(uint32_t code) {
  switch (code >> 16) {
    case 0x01:
      return code >> 8 == 0x0108 ? "NVMe storage" : "storage";
    case 0x02:
      return is_infiniband(code) ? "InfiniBand" : "network";
    case 0x03:
      return "display";
    case 0x04:
      return "multimedia";
    case 0x05:
      return "memory";
    case 0x06:
      return "bridge";
    case 0x08:
      return "system";
    case 0x0c:
      return "serial bus";
    case 0x0b:
    case 0x12:
      return "accelerator";
    default:
      return "device";
  }
}

}  // namespace pci_class

double pcie_bandwidth_gbs(double speed_gts, uint32_t width_lanes) {
  bool known = false;
  for (const uint32_t width : kWidths) known = known || width == width_lanes;
  if (!known) return 0;
  for (const double speed : kSpeedsGts) {
    if (!(std::abs(speed - speed_gts) <= 0.05)) continue;
    const double code = speed <= 5 ? 8.0 / 10 : speed <= 32 ? 128.0 / 130 : 242.0 / 256;
    return speed * code / 8 * width_lanes;
  }
  return 0;
}

PcieRate pcie_rate(double bandwidth_gbs) {
  for (const uint32_t width : kWidths) {
    for (const double speed : kSpeedsGts) {
      const double rate = pcie_bandwidth_gbs(speed, width);
      if (std::abs(rate - bandwidth_gbs) <= rate * 1e-3) return {speed, width};
    }
  }
  return {};
}

double parse_pcie_speed_gts(std::string_view text) {
  double speed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), speed);
  if (error != std::errc()) return 0;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (!unit.starts_with("GT/s")) return 0;
  return pcie_bandwidth_gbs(speed, 1) > 0 ? speed : 0;
}

}  // namespace weir::topo
