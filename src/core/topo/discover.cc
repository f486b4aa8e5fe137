// SPDX-License-Identifier: Apache-2.0
#include "core/topo/discover.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <hwloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>

#include "core/topo/hwloc_xml.h"
#include "core/topo/nccl_xml.h"
#include "core/topo/nvml.h"
#include "core/topo/sysfs.h"

namespace weir::topo {
namespace {

constexpr size_t kFileBytesMax = 32u << 20;

// Plugins that may or may not be installed beside hwloc. A runtime of CUDA, OpenCL or Level Zero
// that is started here would not survive the user's fork(); the display server is of no interest;
// Weir reads PCI and NVML facts from sysfs and the driver itself, so that the result does not
// depend on the plugins.
constexpr const char* kComponentsLeftOut[] = {"cuda", "opencl", "levelzero", "gl", "nvml", "pci"};

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using HwlocTopology = std::unique_ptr<std::remove_pointer_t<hwloc_topology_t>, DestroyTopology>;

// hwloc's view of this machine as XML.
Result<std::string> hwloc_view() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return system_error("hwloc_topology_init");
  const HwlocTopology topology(raw);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  hwloc_topology_set_type_filter(raw, HWLOC_OBJ_BRIDGE, HWLOC_TYPE_FILTER_KEEP_ALL);
  for (const char* component : kComponentsLeftOut) {
    // Fails for a component that this hwloc does not have, which does not matter.
    hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  if (hwloc_topology_load(raw) != 0) return system_error("hwloc_topology_load");
  char* text = nullptr;
  int length = 0;
  if (hwloc_topology_export_xmlbuffer(raw, &text, &length, 0) != 0) {
    return system_error("hwloc_topology_export_xmlbuffer");
  }
  std::string xml(text, static_cast<size_t>(length));
  hwloc_free_xmlbuffer(raw, text);
  while (!xml.empty() && xml.back() == '\0') xml.pop_back();  // the length counts the terminator
  return xml;
}

struct CloseFile {
  int fd;
  ~CloseFile() { close(fd); }
};

Result<std::string> read_text(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error(path);
  const CloseFile closer{fd};
  struct stat info;
  if (fstat(fd, &info) != 0) return system_error(path);
  if (S_ISDIR(info.st_mode)) return invalid_argument(path + ": a directory, not a topology file");
  std::string text;
  char block[65536];
  while (true) {
    const ssize_t count = read(fd, block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error(path);
    if (count == 0) return text;
    text.append(block, static_cast<size_t>(count));
    if (text.size() > kFileBytesMax) {
      return invalid_argument(fmt::format("{}: more than {} bytes, too large for a topology file",
                                          path, kFileBytesMax));
    }
  }
}

// Comments, declarations and white space before the first element are skipped.
std::string_view first_element(std::string_view text) {
  while (true) {
    const size_t start = text.find('<');
    if (start == std::string_view::npos) return {};
    text.remove_prefix(start);
    std::string_view end = ">";
    if (text.starts_with("<!--")) {
      end = "-->";
    } else if (!text.starts_with("<?") && !text.starts_with("<!")) {
      return text.substr(1, text.find_first_of(" \t\r\n/>", 1) - 1);
    }
    const size_t stop = text.find(end);
    if (stop == std::string_view::npos) return {};
    text.remove_prefix(stop + end.size());
  }
}

}  // namespace

Result<Topology> discover(const DiscoverOptions& options) {
  Result<std::string> xml = hwloc_view();
  if (!xml.ok()) return xml.status();
  Result<Topology> topology = parse_hwloc_xml(xml.value(), "hwloc");
  if (!topology.ok()) return topology.status();
  WEIR_RETURN_IF_ERROR(enrich_from_sysfs(options.sysfs_root, &topology.value()));
  if (!options.nvml_library.empty()) {
    WEIR_RETURN_IF_ERROR(enrich_from_nvml(options.nvml_library, &topology.value()));
  }
  return topology;
}

Result<TopologyFormat> detect_format(std::string_view text, std::string_view name) {
  const std::string_view element = first_element(text);
  if (element == "topology") return TopologyFormat::kHwloc;
  if (element == "system") return TopologyFormat::kNccl;
  if (element.empty()) {
    return invalid_argument(
        fmt::format("{}: no XML element in {} bytes; an hwloc or NCCL topology "
                    "file is expected",
                    name, text.size()));
  }
  return invalid_argument(
      fmt::format("{}: starts with <{:.40}>; hwloc topologies start with <topology>, "
                  "NCCL's with <system>",
                  name, element));
}

Result<Topology> read_file(const std::string& path) {
  const Result<std::string> text = read_text(path);
  if (!text.ok()) return text.status();
  const Result<TopologyFormat> format = detect_format(text.value(), path);
  if (!format.ok()) return format.status();
  return format.value() == TopologyFormat::kHwloc ? parse_hwloc_xml(text.value(), path)
                                                  : parse_nccl_xml(text.value(), path);
}

}  // namespace weir::topo
