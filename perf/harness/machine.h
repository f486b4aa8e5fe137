// SPDX-License-Identifier: Apache-2.0
// The facts about the machine that the perf tools need, from /proc, /sys and the affinity mask.
// Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace weir::perf {

struct Machine {
  std::string host;
  std::string processor;              // "AMD EPYC 9555 64-Core Processor"; or "unknown"
  std::string kernel;                 // "Linux 6.1.0"
  std::vector<int> cpus;              // that this process may use, ascending
  size_t last_level_cache_bytes = 0;  // sum over the distinct caches of these cpus
  size_t memory_available_bytes = 0;  // 0: unknown
};

Machine describe_machine();

// Binds the calling thread to one cpu. False if the kernel refuses.
bool pin_this_thread(int cpu);
// The cpu that the calling thread runs on now, -1 if unknown.
int current_cpu();
// Memory of this process that is in RAM now; 0 if unknown.
size_t resident_bytes();
// "2026-01-31 12:00:00", local time.
std::string timestamp();

}  // namespace weir::perf
