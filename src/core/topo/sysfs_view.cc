// SPDX-License-Identifier: Apache-2.0
#include "core/topo/sysfs_view.h"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <pugixml.hpp>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "core/topo/cpus.h"
#include "core/topo/cpuset.h"
#include "core/topo/pci.h"
#include "core/topo/sysfs_files.h"

namespace weir::topo {
namespace {

namespace fs = std::filesystem;

// hwloc's types of devices of the operating system.
constexpr int kBlock = 0, kNetwork = 2, kOpenFabrics = 3;
// Of parts with the same processors, the smaller one is outside.
constexpr int kPackageRank = 0, kNumaRank = 1, kCacheRank = 2, kCoreRank = 16;

std::optional<uint64_t> number_in(std::string_view text, int base = 10) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (failure != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// The number after a prefix: 12 for "cpu12" and "cpu".
std::optional<uint64_t> number_after(std::string_view prefix, std::string_view name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  if (name.empty() || name.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  return number_in(name);
}

CpuSet read_cpus(const fs::path& path) {
  Result<CpuSet> cpus = CpuSet::parse_list(read_line(path));
  return cpus.ok() ? cpus.take() : CpuSet();
}

// What covers some of the processors.
struct Part {
  CpuSet cpus;
  int rank = 0;
  std::string type;
  std::map<std::string, std::string> attributes;
  uint64_t memory_bytes = 0;  // NUMA node
};

class View {
 public:
  View(fs::path root, std::string cpuinfo_file)
      : root_(std::move(root)), cpuinfo_file_(std::move(cpuinfo_file)) {}

  std::string write() {
    CpuSet cpus = read_cpus(root_ / "devices/system/cpu/online");
    if (cpus.empty()) cpus = cpus_allowed();
    pugi::xml_node topology = document_.append_child("topology");
    topology.append_attribute("version") = "2.0";
    Placed machine{add_object(topology, "Machine"), cpus, {}};
    set_cpus(machine.object, cpus);
    utsname name{};
    if (uname(&name) == 0) add_info(machine.object, "Architecture", name.machine);
    add_info(machine.object, "DMIProductName", read_line(root_ / "class/dmi/id/product_name"));
    placed_.push_back(std::move(machine));
    read_nodes();
    read_processors(cpus);
    place_parts();
    read_devices();
    name_devices("block", kBlock);
    name_devices("class/net", kNetwork);
    name_devices("class/infiniband", kOpenFabrics);
    std::ostringstream text;
    document_.save(text, " ");
    return text.str();
  }

 private:
  struct Placed {
    pugi::xml_node object;
    CpuSet cpus;
    std::vector<size_t> children;
  };

  static pugi::xml_node add_object(pugi::xml_node parent, const std::string& type) {
    pugi::xml_node object = parent.append_child("object");
    object.append_attribute("type") = type.c_str();
    return object;
  }

  static void add_info(pugi::xml_node object, const char* name, const std::string& value) {
    if (value.empty()) return;
    pugi::xml_node info = object.append_child("info");
    info.append_attribute("name") = name;
    info.append_attribute("value") = value.c_str();
  }

  static void set_cpus(pugi::xml_node object, const CpuSet& cpus) {
    std::string mask = "0x" + cpus.mask();
    for (size_t at = 0; (at = mask.find(',', at)) != std::string::npos; at += 3) {
      mask.insert(at + 1, "0x");
    }
    object.append_attribute("cpuset") = mask.c_str();
  }

  void read_nodes() {
    const fs::path folder = root_ / "devices/system/node";
    for (const std::string& name : entries(folder)) {
      const auto number = number_after("node", name);
      if (!number) continue;
      Part part{read_cpus(folder / name / "cpulist"), kNumaRank, "Group", {}, 0};
      part.attributes["os_index"] = std::to_string(*number);
      // "Node 0 MemTotal:       24684092 kB"
      const std::string memory = read_line(folder / name / "meminfo");
      if (const size_t at = memory.find("MemTotal:"); at != std::string::npos) {
        const size_t digits = memory.find_first_of("0123456789", at);
        if (digits != std::string::npos) {
          part.memory_bytes = number_in(memory.substr(digits)).value_or(0) << 10;
        }
      }
      parts_.push_back(std::move(part));
    }
  }

  // Several processors name the same part: it is added once.
  void add_part(Part part) {
    if (part.cpus.empty()) return;
    const auto key = std::pair(part.rank, part.cpus.list());
    if (known_.try_emplace(key, true).second) parts_.push_back(std::move(part));
  }

  void read_processors(const CpuSet& cpus) {
    std::map<uint64_t, CpuSet> packages;
    for (const uint32_t cpu : cpus.cpus()) {
      const fs::path folder = root_ / fmt::format("devices/system/cpu/cpu{}", cpu);
      if (const auto id = number_in(read_line(folder / "topology/physical_package_id"))) {
        packages[*id].add(cpu);
      }
      CpuSet siblings = read_cpus(folder / "topology/thread_siblings_list");
      if (siblings.empty()) siblings.add(cpu);
      add_part({siblings,
                kCoreRank,
                "Core",
                {{"os_index",
                  std::to_string(number_in(read_line(folder / "topology/core_id")).value_or(cpu))}},
                0});
      for (const std::string& index : entries(folder / "cache")) {
        const fs::path cache = folder / "cache" / index;
        const uint64_t level = number_in(read_line(cache / "level")).value_or(0);
        if (level < 1 || level > 8 || read_line(cache / "type") == "Instruction") continue;
        add_part({read_cpus(cache / "shared_cpu_list"),
                  kCacheRank + static_cast<int>(9 - level),
                  fmt::format("L{}Cache", level),
                  {{"depth", std::to_string(level)},
                   {"cache_size", std::to_string(bytes_in(read_line(cache / "size")))}},
                  0});
      }
    }
    for (auto& [id, covered] : packages) {
      add_part({covered, kPackageRank, "Package", {{"os_index", std::to_string(id)}}, 0});
    }
  }

  // Larger parts first; each lies in the smallest one that covers it.
  void place_parts() {
    std::stable_sort(parts_.begin(), parts_.end(), [](const Part& a, const Part& b) {
      return std::pair(b.cpus.count(), a.rank) < std::pair(a.cpus.count(), b.rank);
    });
    const std::map<std::string, std::string> model = read_model();
    for (const Part& part : parts_) {
      size_t parent = 0;
      for (bool deeper = !part.cpus.empty(); deeper;) {
        deeper = false;
        for (const size_t child : placed_[parent].children) {
          if (!placed_[child].cpus.contains(part.cpus)) continue;
          parent = child;
          deeper = true;
          break;
        }
      }
      const pugi::xml_node object = add_object(placed_[parent].object, part.type);
      set_cpus(object, part.cpus);
      if (part.rank == kNumaRank) {
        add_numa_node(object, part);
      } else {
        set_attributes(object, part);
      }
      if (part.rank == kPackageRank) {
        for (const auto& [name, value] : model) add_info(object, name.c_str(), value);
      }
      placed_[parent].children.push_back(placed_.size());
      placed_.push_back({object, part.cpus, {}});
    }
  }

  static void set_attributes(pugi::xml_node object, const Part& part) {
    for (const auto& [name, value] : part.attributes) {
      object.append_attribute(name.c_str()) = value.c_str();
    }
  }

  // The group is what the node's memory is near to.
  void add_numa_node(pugi::xml_node group, const Part& part) {
    const pugi::xml_node node = add_object(group, "NUMANode");
    set_cpus(node, part.cpus);
    set_attributes(node, part);
    pugi::xml_node(node).append_attribute("local_memory") =
        std::to_string(part.memory_bytes).c_str();
    groups_[part.attributes.at("os_index")] = group;
  }

  // By hwloc's names.
  std::map<std::string, std::string> read_model() const {
    static const std::map<std::string, std::string, std::less<>> kNames = {
        {"vendor_id", "CPUVendor"},
        {"model name", "CPUModel"},
        {"cpu family", "CPUFamilyNumber"},
        {"model", "CPUModelNumber"}};
    std::map<std::string, std::string> model;
    std::ifstream file(cpuinfo_file_);
    for (std::string line; std::getline(file, line) && !line.empty();) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos) continue;
      const auto name = kNames.find(
          std::string_view(line).substr(0, line.find_last_not_of(" \t", colon - 1) + 1));
      const size_t value = line.find_first_not_of(" \t", colon + 1);
      if (name == kNames.end() || value == std::string::npos) continue;
      model[name->second] = line.substr(value);
    }
    return model;
  }

  // ---- The PCIe tree ----------------------------------------------------------------------------

  uint64_t number_of(const std::string& device, const char* file) const {
    return number_in(read_line(root_ / "bus/pci/devices" / device / file), 16).value_or(0);
  }

  // Bridges come with what is below them.
  bool is_important(const std::string& device) const {
    const auto code = static_cast<uint32_t>(number_of(device, "class"));
    constexpr uint64_t kNvidia = 0x10de;
    return pci_class::is_accelerator(code) || pci_class::is_network(code) ||
           pci_class::is_storage(code) ||
           (pci_class::is_nvswitch(code) && number_of(device, "vendor") == kNvidia);
  }

  void read_devices() {
    for (const std::string& device : entries(root_ / "bus/pci/devices")) {
      if (!PciAddress::parse(device) || !is_important(device)) continue;
      std::error_code error;
      const fs::path path = fs::canonical(root_ / "bus/pci/devices" / device, error);
      if (error) continue;
      pugi::xml_node above;
      for (const fs::path& part : path) {
        const std::string name = part.string();
        // ".../pci0000:00/0000:00:01.0/0000:01:00.0"
        if (name.starts_with("pci") && name.find(':') != std::string::npos) {
          above = root_complex(name.substr(3), device);
        } else if (above && PciAddress::parse(name)) {
          above = pci_object(above, name, name == device);
        }
      }
    }
  }

  // What the operating system calls the devices, by the device in whose folder a name leads:
  // ".../0000:00:03.0/virtio1/net/eth0".
  void name_devices(const char* names, int type) {
    for (const std::string& name : entries(root_ / names)) {
      std::error_code error;
      const fs::path path = fs::canonical(root_ / names / name, error);
      pugi::xml_node device;
      for (const fs::path& part : path) {
        const auto found = devices_.find(part.string());
        if (found != devices_.end() && PciAddress::parse(part.string())) device = found->second;
      }
      if (!device || std::string_view(device.attribute("type").value()) != "PCIDev") continue;
      pugi::xml_node object = add_object(device, "OSDev");
      object.append_attribute("name") = name.c_str();
      object.append_attribute("osdev_type") = type;
    }
  }

  pugi::xml_node root_complex(const std::string& bus, const std::string& device) {
    auto [it, is_new] = devices_.try_emplace(bus);
    if (!is_new) return it->second;
    const auto group = groups_.find(read_line(root_ / "bus/pci/devices" / device / "numa_node"));
    const bool is_near = group != groups_.end() && groups_.size() > 1;
    it->second = add_object(is_near ? group->second : placed_[0].object, "Bridge");
    it->second.append_attribute("bridge_type") = "0-1";
    const size_t colon = bus.find(':');
    const std::string last = bus.substr(colon + 1);
    it->second.append_attribute("bridge_pci") =
        fmt::format("{}:[{}-{}]", bus.substr(0, colon), last, last).c_str();
    return it->second;
  }

  pugi::xml_node pci_object(pugi::xml_node above, const std::string& device, bool is_leaf) {
    auto [it, is_new] = devices_.try_emplace(device);
    if (!is_new) return it->second;
    it->second = add_object(above, is_leaf ? "PCIDev" : "Bridge");
    if (!is_leaf) it->second.append_attribute("bridge_type") = "1-1";
    it->second.append_attribute("pci_busid") = device.c_str();
    it->second.append_attribute("pci_type") =
        fmt::format(
            "{:04x} [{:04x}:{:04x}] [{:04x}:{:04x}] {:02x}",
            (number_of(device, "class") >> 8) & 0xffff, number_of(device, "vendor") & 0xffff,
            number_of(device, "device") & 0xffff, number_of(device, "subsystem_vendor") & 0xffff,
            number_of(device, "subsystem_device") & 0xffff, number_of(device, "revision") & 0xff)
            .c_str();
    return it->second;
  }

  const fs::path root_;
  const std::string cpuinfo_file_;
  pugi::xml_document document_;
  std::vector<Part> parts_;
  std::map<std::pair<int, std::string>, bool> known_;
  std::vector<Placed> placed_;                     // the machine first
  std::map<std::string, pugi::xml_node> groups_;   // by the number of the NUMA node
  std::map<std::string, pugi::xml_node> devices_;  // by address; root complexes by bus
};

}  // namespace

std::string sysfs_view(const std::string& sysfs_root, const std::string& cpuinfo_file) {
  return View(sysfs_root, cpuinfo_file).write();
}

}  // namespace weir::topo
