// SPDX-License-Identifier: Apache-2.0
// The bandwidth of the drives with a step's mix of reads and writes: each directory has its own
// thread, disk and memory, and all run at once, as in a step. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "offload/disk/disk.h"
#include "offload/io/arena.h"

namespace weir::perf {

struct MixRates {
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  double bytes_per_s() const { return read_bytes_per_s + write_bytes_per_s; }
};

class MixProbe {
 public:
  // `file_bytes`: the largest size of each directory's file.
  static Result<std::unique_ptr<MixProbe>> create(const std::vector<std::string>& directories,
                                                  uint64_t file_bytes);
  // A fifth of `time_ms` is the mix itself; most of the rest writes its files for the first time.
  Result<MixRates> run(double read_share, uint64_t time_ms);
  std::string describe() const { return drives_.front().disk->describe(); }

 private:
  struct Drive {
    std::string directory;
    std::unique_ptr<offload::Arena> arena;  // outlives the disk
    std::unique_ptr<offload::Disk> disk;
  };
  std::vector<Drive> drives_;
  uint64_t file_bytes_ = 0;
};

}  // namespace weir::perf
