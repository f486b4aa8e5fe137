// SPDX-License-Identifier: Apache-2.0
#include "core/topo/caches.h"

#include <fmt/format.h>
#include <sched.h>

#include "core/topo/cpuset.h"
#include "core/topo/sysfs_files.h"

namespace weir::topo {

CpuCaches caches_of(uint32_t cpu, const std::string& sysfs_root) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(sysfs_root) / fmt::format("devices/system/cpu/cpu{}", cpu);
  const auto cpus_in = [](const fs::path& file) {
    Result<CpuSet> cpus = CpuSet::parse_list(read_line(file));
    return cpus.ok() ? cpus.take() : CpuSet();
  };
  CpuSet core = cpus_in(folder / "topology/thread_siblings_list");
  core.add(cpu);
  CpuCaches caches;
  uint64_t last_level = 0;
  for (const std::string& index : entries(folder / "cache")) {
    const fs::path cache = folder / "cache" / index;
    const uint64_t level = bytes_in(read_line(cache / "level"));
    const uint64_t bytes = bytes_in(read_line(cache / "size"));
    if (level == 0 || level > 8 || bytes == 0 || bytes > kCacheBytesMax) continue;
    if (read_line(cache / "type") == "Instruction") continue;
    caches.known = true;
    if (level == 2) caches.l2_bytes = bytes;
    const bool shared = !core.contains(cpus_in(cache / "shared_cpu_list"));
    if (level > last_level && (level >= 3 || shared)) {
      last_level = level;
      caches.last_bytes = bytes;
    }
  }
  return caches;
}

CpuCaches own_caches() {
  const int cpu = sched_getcpu();
  return cpu < 0 ? CpuCaches() : caches_of(static_cast<uint32_t>(cpu));
}

}  // namespace weir::topo
