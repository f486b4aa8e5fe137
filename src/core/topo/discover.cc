// SPDX-License-Identifier: Apache-2.0
#include "core/topo/discover.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/topo/flat_switch.h"
#include "core/topo/hwloc_library.h"
#include "core/topo/hwloc_xml.h"
#include "core/topo/merge.h"
#include "core/topo/nccl_xml.h"
#include "core/topo/nvml.h"
#include "core/topo/sysfs.h"
#include "core/topo/sysfs_view.h"

namespace weir::topo {
namespace {

constexpr size_t kFileBytesMax = 32u << 20;

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

// Neither joins switches: what the other one adds may be what tells which ones are to be joined.
Result<Topology> discover_as_shown(const DiscoverOptions& options) {
  Result<std::string> xml = hwloc_view(options.hwloc_library);
  const bool is_hwlocs = xml.ok();
  if (!is_hwlocs && xml.status().code() != Code::kUnsupported) return xml.status();
  const std::string text =
      is_hwlocs ? xml.take() : sysfs_view(options.sysfs_root, options.cpuinfo_file);
  Result<Topology> topology = parse_hwloc_xml(text, is_hwlocs ? "hwloc" : options.sysfs_root);
  if (!topology.ok()) return topology.status();
  if (!is_hwlocs) topology.value().add_note("hwloc", xml.status().text() + "; read from /sys");
  WEIR_RETURN_IF_ERROR(enrich_from_sysfs(options.sysfs_root, &topology.value()));
  if (!options.nvml_library.empty()) {
    WEIR_RETURN_IF_ERROR(enrich_from_nvml(options.nvml_library, &topology.value()));
  }
  return topology;
}

Result<Topology> read_as_shown(const std::string& path, TopologyFormat* format) {
  const Result<std::string> text = read_text(path);
  if (!text.ok()) return text.status();
  const Result<TopologyFormat> found = detect_format(text.value(), path);
  if (!found.ok()) return found.status();
  *format = found.value();
  return *format == TopologyFormat::kHwloc ? parse_hwloc_xml(text.value(), path)
                                           : parse_nccl_xml(text.value(), path);
}

}  // namespace

Result<Topology> discover(const DiscoverOptions& options) {
  Result<Topology> topology = discover_as_shown(options);
  if (!topology.ok()) return topology.status();
  return join_flat_switches(topology.take());
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
  TopologyFormat format;
  Result<Topology> topology = read_as_shown(path, &format);
  if (!topology.ok()) return topology.status();
  return join_flat_switches(topology.take());
}

Merge merge_of_setting(std::string_view text) {
  return text == "0" ? Merge::kNever : text == "1" ? Merge::kAlways : Merge::kAuto;
}

Result<Topology> read_machine(const std::string& file, Merge merge, const DiscoverOptions& options,
                              std::string* alone) {
  if (file.empty()) return discover(options);
  TopologyFormat format;
  Result<Topology> given = read_as_shown(file, &format);
  if (!given.ok()) return given.status();
  if (merge == Merge::kAlways || (merge == Merge::kAuto && format == TopologyFormat::kNccl)) {
    const Result<Topology> found = discover_as_shown(options);
    Result<Topology> both =
        found.ok() ? topo::merge(given.value(), found.value()) : Result<Topology>(found.status());
    if (both.ok()) return join_flat_switches(both.take());
    const std::string reason =
        "it cannot be merged with what is found in this machine: " + both.status().text();
    if (merge == Merge::kAlways) {
      return Status(both.status().code(), fmt::format("{}: {}", file, reason));
    }
    if (alone != nullptr) *alone = fmt::format("{} is taken alone: {}", file, reason);
    given.value().add_note(file, "taken alone: " + reason);
  }
  return join_flat_switches(given.take());
}

}  // namespace weir::topo
