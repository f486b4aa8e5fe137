// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/machine.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <set>
#include <sstream>

namespace weir::perf {
namespace {

// Used when the machine does not report it: a common size, large enough that rotating buffers
// exceed most caches.
constexpr size_t kCacheBytesAssumed = 32u << 20;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// The value after "key :" in a file of such lines.
std::string value_of(const char* path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

size_t kilobytes(const std::string& text) {
  std::istringstream in(text);
  size_t value = 0;
  char unit = 'K';
  in >> value >> unit;
  return value * (unit == 'M' ? size_t{1} << 20 : size_t{1} << 10);
}

size_t last_level_cache_bytes(const std::vector<int>& cpus) {
  std::set<std::string> seen;
  size_t total = 0;
  for (const int cpu : cpus) {
    std::string shared;
    size_t bytes = 0;
    int level_best = 0;
    for (int index = 0; index < 8; ++index) {
      const std::string folder =
          fmt::format("/sys/devices/system/cpu/cpu{}/cache/index{}/", cpu, index);
      const std::string level = first_line(folder + "level");
      if (level.empty()) break;
      const int value = level[0] - '0';
      if (value <= level_best) continue;
      level_best = value;
      bytes = kilobytes(first_line(folder + "size"));
      shared = fmt::format("{}:{}", value, first_line(folder + "shared_cpu_list"));
    }
    if (bytes > 0 && seen.insert(shared).second) total += bytes;
  }
  return total > 0 ? total : kCacheBytesAssumed;
}

}  // namespace

Machine describe_machine() {
  Machine machine;
  utsname names{};
  if (uname(&names) == 0) {
    machine.host = names.nodename;
    machine.kernel = fmt::format("{} {}", names.sysname, names.release);
  }
  machine.processor = value_of("/proc/cpuinfo", "model name");
  if (machine.processor.empty()) machine.processor = "unknown";
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) machine.cpus.push_back(cpu);
    }
  }
  if (machine.cpus.empty()) machine.cpus.push_back(0);
  machine.last_level_cache_bytes = last_level_cache_bytes(machine.cpus);
  machine.memory_available_bytes = kilobytes(value_of("/proc/meminfo", "MemAvailable"));
  return machine;
}

bool pin_this_thread(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

int current_cpu() { return sched_getcpu(); }

size_t resident_bytes() {
  std::istringstream pages(first_line("/proc/self/statm"));
  size_t size = 0;
  size_t resident = 0;
  pages >> size >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

std::string timestamp() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local);
  return text;
}

}  // namespace weir::perf
