// SPDX-License-Identifier: Apache-2.0
#include "core/topo/cards.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/topo/pci.h"
#include "core/topo/sysfs_files.h"

namespace weir::topo {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDeviceCountMax = 64;
constexpr size_t kPortCountMax = 256;
constexpr size_t kTextCountMax = 4;  // devices that the text names

// As the kernel writes them: the number of enum rdma_node_type, of enum ib_port_state.
constexpr std::string_view kChannelAdapter = "1:";
constexpr std::string_view kUnspecified = "7:";
constexpr std::string_view kActive = "4:";

std::optional<CardKind> kind_of(const fs::path& device, const fs::path& port) {
  const std::string node = read_line(device / "node_type");
  if (node.starts_with(kUnspecified)) {
    std::error_code error;
    const fs::path driver = fs::read_symlink(device / "device" / "driver", error);
    if (!error && driver.filename() == "efa") return CardKind::kEfa;
    return std::nullopt;
  }
  if (!node.starts_with(kChannelAdapter)) return std::nullopt;
  const std::string layer = read_line(port / "link_layer");
  if (layer == "InfiniBand") return CardKind::kInfiniBand;
  if (layer == "Ethernet") return CardKind::kRoce;
  return std::nullopt;
}

// Adds the device's kinds; returns what the text says of it.
std::string look_at(const fs::path& device, uint8_t* kinds) {
  std::error_code error;
  if (!fs::exists(device / "device", error)) return "a device without hardware";
  uint8_t own = 0;
  std::string active;
  std::string idle;
  std::vector<std::string> ports = entries(device / "ports");
  if (ports.size() > kPortCountMax) ports.resize(kPortCountMax);
  for (const std::string& name : ports) {
    const fs::path port = device / "ports" / name;
    const std::optional<CardKind> kind = kind_of(device, port);
    if (!kind) continue;
    const std::string state = read_line(port / "state");
    if (!state.starts_with(kActive)) {
      const size_t colon = state.find(": ");
      idle +=
          fmt::format("{}port {} is {}", idle.empty() ? "" : ", ", name,
                      colon == std::string::npos ? "in no known state" : state.substr(colon + 2));
    } else if (const auto bit = static_cast<uint8_t>(*kind); (own & bit) == 0) {
      own = static_cast<uint8_t>(own | bit);
      active += fmt::format("{}{}", active.empty() ? "" : ", ", name_of(*kind));
    }
  }
  *kinds = static_cast<uint8_t>(*kinds | own);
  if (own != 0) return active;
  return idle.empty() ? "neither InfiniBand nor RoCE nor EFA" : idle;
}

std::vector<std::string> device_names(const fs::path& folder) {
  std::vector<std::string> names = entries(folder);
  if (names.size() > kDeviceCountMax) names.resize(kDeviceCountMax);
  return names;
}

// What `device`, a link, points to is named by its address on PCI. Only the link itself is read:
// communicators do so for each interface.
std::string address_at(const fs::path& device) {
  std::error_code error;
  const std::string name = fs::read_symlink(device, error).filename();
  return !error && PciAddress::parse(name) ? name : "";
}

}  // namespace

std::vector<ActiveCard> active_cards(const std::string& sysfs_root) {
  const fs::path folder = fs::path(sysfs_root) / "class" / "infiniband";
  std::vector<ActiveCard> cards;
  for (const std::string& name : device_names(folder)) {
    uint8_t kinds = 0;
    (void)look_at(folder / name, &kinds);
    if (kinds == 0) continue;
    const fs::path device = folder / name / "device";
    cards.push_back({name, address_at(device), entries(device / "net")});
  }
  return cards;
}

std::string address_of_interface(const std::string& name, const std::string& sysfs_root) {
  return address_at(fs::path(sysfs_root) / "class" / "net" / name / "device");
}

const char* name_of(CardKind kind) {
  switch (kind) {
    case CardKind::kInfiniBand:
      return "InfiniBand";
    case CardKind::kRoce:
      return "RoCE";
    case CardKind::kEfa:
      return "EFA";
  }
  return "";
}

Cards look_for_cards(const std::string& sysfs_root) {
  Cards cards;
  const fs::path folder = fs::path(sysfs_root) / "class" / "infiniband";
  const std::vector<std::string> names = device_names(folder);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string says = look_at(folder / names[i], &cards.kinds);
    if (i < kTextCountMax) {
      cards.text += fmt::format("{}{} ({})", cards.text.empty() ? "" : ", ", names[i], says);
    }
  }
  if (names.size() > kTextCountMax) {
    cards.text += fmt::format(" and {} more", names.size() - kTextCountMax);
  }
  return cards;
}

}  // namespace weir::topo
