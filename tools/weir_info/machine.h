// SPDX-License-Identifier: Apache-2.0
// What a machine (or the current container) allows a process of Weir: processors, memory locking,
// descriptors, shared memory, huge pages, cross-memory attach. The facts are gathered first and
// judged by a pure function, so that the judgement is tested without such machines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace weir::info {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

struct Machine {
  std::string kernel;  // "6.1.0-28-amd64"
  uint32_t cpus_online = 1;
  uint32_t cpus_allowed = 1;               // by affinity (cpuset)
  double cpu_quota = 0;                    // processors that the control group grants; 0: no limit
  uint64_t memory_bytes_max = kUnlimited;  // of the control group
  uint64_t memlock_bytes_max = 0;
  uint64_t descriptors_max = 0;
  uint64_t dev_shm_bytes = 0;  // 0: not mounted
  uint64_t dev_shm_bytes_free = 0;
  bool memfd = false;                // unnamed shared memory with seals can be made
  uint64_t huge_pages_reserved = 0;  // of 2 MiB
  uint64_t huge_pages_free = 0;
  std::string transparent_shmem;    // the bracketed word of shmem_enabled; "" = kernel without it
  std::optional<int> ptrace_scope;  // Yama; nullopt: no Yama
};

// Reads the limits of the calling process, and files below `root` (normally "/"). A value that
// cannot be read keeps its default. Opens and closes a memfd.
Machine gather_machine(const std::filesystem::path& root);

// One line of the report.
struct Finding {
  std::string name;
  std::string value;
  std::string remedy;  // "" when nothing is wrong
};

std::vector<Finding> judge_machine(const Machine& machine);

// "64 MiB", "unlimited"
std::string text_of_bytes(uint64_t bytes);

}  // namespace weir::info
