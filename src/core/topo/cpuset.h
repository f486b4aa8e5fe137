// SPDX-License-Identifier: Apache-2.0
// CpuSet: a set of logical processors by the operating system's number, read and written in the
// notations of Linux, hwloc and NCCL. A value; not synchronized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace weir::topo {

class CpuSet {
 public:
  // Larger numbers are rejected, so that no input can demand much memory.
  static constexpr uint32_t kCpuCountMax = 65536;

  // "00000000,00ffffff" (sysfs, NCCL) or "0x3,,0xffffffff" (hwloc): groups of 32 bits in base 16,
  // the most significant first; an empty group is zero.
  static Result<CpuSet> parse_mask(std::string_view text);
  // "0-3,8,10-11"; "" is the empty set.
  static Result<CpuSet> parse_list(std::string_view text);

  // `cpu` < kCpuCountMax.
  void add(uint32_t cpu);
  void add(const CpuSet& other);
  bool contains(uint32_t cpu) const;
  bool contains(const CpuSet& other) const;
  bool intersects(const CpuSet& other) const;
  bool empty() const { return words_.empty(); }
  size_t count() const;
  std::vector<uint32_t> cpus() const;  // ascending

  std::string list() const;  // "0-3,8"
  std::string mask() const;  // "00000000,00ffffff", at least one group

  bool operator==(const CpuSet&) const = default;

 private:
  void trim();
  std::vector<uint64_t> words_;  // word 0 holds CPUs 0 to 63; the last one is never zero
};

}  // namespace weir::topo
