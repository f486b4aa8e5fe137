// SPDX-License-Identifier: Apache-2.0
#include "weir_info/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <sstream>

namespace weir::info {
namespace {

constexpr uint64_t kMiB = 1u << 20;
constexpr uint64_t kSharedBytesMin = 256 * kMiB;

std::string first_line_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::optional<uint64_t> number_in(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "always within_size [advise] never" -> "advise"
std::string bracketed_word_of(const std::string& line) {
  const size_t open = line.find('[');
  const size_t close = line.find(']', open == std::string::npos ? 0 : open);
  if (open == std::string::npos || close == std::string::npos) return "";
  return line.substr(open + 1, close - open - 1);
}

// The control group (version 2) of this process, as a folder below `root`; limits of its ancestors
// apply as well.
std::vector<std::filesystem::path> control_groups(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::/", 0) != 0) continue;
    const std::filesystem::path mount = root / "sys/fs/cgroup";
    groups.push_back(mount);
    std::filesystem::path group = mount;
    for (const auto& part : std::filesystem::path(line.substr(4))) {
      if (part.empty() || part == "..") continue;
      group /= part;
      groups.push_back(group);
    }
  }
  return groups;
}

// cpu.max is "max 100000" or "150000 100000": microseconds of processor time per period.
double cpu_quota_in(const std::string& line) {
  std::istringstream words(line);
  std::string quota, period;
  words >> quota >> period;
  const auto used = number_in(quota), of = number_in(period);
  if (!used || !of || *of == 0) return 0;
  return static_cast<double>(*used) / static_cast<double>(*of);
}

uint64_t limit_of(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return 0;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur;
}

uint32_t allowed_cpus() {
  // Larger machines than cpu_set_t's 1024 processors need a dynamic set.
  for (int cpus = 1024; cpus <= 1 << 20; cpus *= 4) {
    cpu_set_t* set = CPU_ALLOC(cpus);
    if (set == nullptr) return 0;
    const size_t bytes = CPU_ALLOC_SIZE(cpus);
    const bool known = sched_getaffinity(0, bytes, set) == 0;
    const int count = known ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (known) return static_cast<uint32_t>(count);
  }
  return 0;
}

bool can_make_sealed_memfd() {
  const int descriptor = memfd_create("weir-info", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor < 0) return false;
  close(descriptor);
  return true;
}

}  // namespace

Machine gather_machine(const std::filesystem::path& root) {
  Machine machine;
  utsname name{};
  if (uname(&name) == 0) machine.kernel = name.release;
  machine.cpus_online = static_cast<uint32_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  machine.cpus_allowed = allowed_cpus();
  if (machine.cpus_allowed == 0) machine.cpus_allowed = machine.cpus_online;

  for (const auto& group : control_groups(root)) {
    const double quota = cpu_quota_in(first_line_of(group / "cpu.max"));
    if (quota > 0 && (machine.cpu_quota == 0 || quota < machine.cpu_quota))
      machine.cpu_quota = quota;
    const auto memory = number_in(first_line_of(group / "memory.max"));
    if (memory) machine.memory_bytes_max = std::min(machine.memory_bytes_max, *memory);
  }

  machine.memlock_bytes_max = limit_of(RLIMIT_MEMLOCK);
  machine.descriptors_max = limit_of(RLIMIT_NOFILE);
  struct statvfs shm {};
  if (statvfs((root / "dev/shm").c_str(), &shm) == 0) {
    machine.dev_shm_bytes = static_cast<uint64_t>(shm.f_frsize) * shm.f_blocks;
    machine.dev_shm_bytes_free = static_cast<uint64_t>(shm.f_frsize) * shm.f_bavail;
  }
  machine.memfd = can_make_sealed_memfd();

  const auto huge = root / "sys/kernel/mm/hugepages/hugepages-2048kB";
  machine.huge_pages_reserved = number_in(first_line_of(huge / "nr_hugepages")).value_or(0);
  machine.huge_pages_free = number_in(first_line_of(huge / "free_hugepages")).value_or(0);
  machine.transparent_shmem =
      bracketed_word_of(first_line_of(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  const auto scope = number_in(first_line_of(root / "proc/sys/kernel/yama/ptrace_scope"));
  if (scope) machine.ptrace_scope = static_cast<int>(*scope);
  return machine;
}

std::string text_of_bytes(uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  const bool whole = value >= 10 || value == std::floor(value);
  return fmt::format("{:.{}f} {}", value, whole ? 0 : 1, kUnits[unit]);
}

std::vector<Finding> judge_machine(const Machine& machine) {
  std::vector<Finding> findings;
  const auto add = [&](std::string name, std::string value, std::string remedy) {
    findings.push_back({std::move(name), std::move(value), std::move(remedy)});
  };

  add("kernel", machine.kernel, "");

  const bool throttled = machine.cpu_quota > 0 && machine.cpu_quota < machine.cpus_allowed;
  std::string cpus = fmt::format("{} of {}", machine.cpus_allowed, machine.cpus_online);
  if (machine.cpu_quota > 0) cpus += fmt::format(", quota {:.2f}", machine.cpu_quota);
  add("processors allowed", cpus,
      throttled ? "waiting ranks that spin use up the quota: give the container whole processors "
                  "(docker run --cpuset-cpus), or set WEIR_SPIN_US=0"
                : "");

  add("memory of the control group", text_of_bytes(machine.memory_bytes_max),
      machine.memory_bytes_max < 512 * kMiB
          ? "staging memory counts against it: lower WEIR_STAGING_BYTES, or raise the limit "
            "(docker run --memory)"
          : "");

  add("unnamed shared memory", machine.memfd ? "yes" : "no",
      machine.memfd ? ""
                    : "memfd_create is refused: allow it in the seccomp profile of the container");
  std::string shm =
      machine.dev_shm_bytes == 0 ? "not mounted" : text_of_bytes(machine.dev_shm_bytes);
  if (machine.dev_shm_bytes > 0) shm += ", " + text_of_bytes(machine.dev_shm_bytes_free) + " free";
  std::string shm_remedy;
  if (machine.dev_shm_bytes < kSharedBytesMin) {
    shm_remedy =
        "enough for Weir; the real NCCL shares memory there, and PyTorch's loaders do: docker "
        "run --shm-size=1g, or mount -o remount,size=1G /dev/shm";
  } else if (machine.dev_shm_bytes_free < kSharedBytesMin) {
    shm_remedy =
        "enough for Weir; the real NCCL shares memory there, and PyTorch's loaders do: remove what "
        "ended programs left (ls -lt /dev/shm), or make it larger: mount -o remount,size=… "
        "/dev/shm";
  }
  add("/dev/shm", shm, shm_remedy);

  add("descriptors",
      machine.descriptors_max == kUnlimited ? "unlimited"
                                            : fmt::format("{}", machine.descriptors_max),
      machine.descriptors_max < 1024 ? "each communicator needs a few per peer: ulimit -n 65536 "
                                       "(docker run --ulimit nofile=65536, LimitNOFILE=65536 in "
                                       "systemd)"
                                     : "");

  add("locked memory", text_of_bytes(machine.memlock_bytes_max),
      machine.memlock_bytes_max < 64 * kMiB
          ? "enough for shared memory and TCP; network cards and registered disk buffers need "
            "more: "
            "ulimit -l unlimited (docker run --ulimit memlock=-1, LimitMEMLOCK=infinity in systemd)"
          : "");

  std::string remedy;
  if (machine.huge_pages_free == 0 &&
      (machine.transparent_shmem.empty() || machine.transparent_shmem == "never" ||
       machine.transparent_shmem == "deny"))
    remedy =
        "large messages run somewhat slower: sysctl vm.nr_hugepages=256, or "
        "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
  add("huge pages",
      fmt::format(
          "{} of {} reserved ones free; transparent for shared memory: {}", machine.huge_pages_free,
          machine.huge_pages_reserved,
          machine.transparent_shmem.empty() ? "not in this kernel" : machine.transparent_shmem),
      remedy);

  const int scope = machine.ptrace_scope.value_or(0);
  add("cross-memory attach",
      machine.ptrace_scope ? fmt::format("ptrace_scope {}", scope) : "not restricted",
      scope >= 2 ? "single-copy between processes is off: sysctl kernel.yama.ptrace_scope=1" : "");
  return findings;
}

}  // namespace weir::info
