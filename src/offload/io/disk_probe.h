// SPDX-License-Identifier: Apache-2.0
// probe_disk: how fast a directory reads, writes and does both at once, in bounded time and space.
// Same thread rule as the Disk that it uses; nothing else may use that disk meanwhile.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"
#include "offload/disk/disk.h"

namespace weir::offload {

class Arena;

struct DiskProbeOptions {
  std::string directory;
  uint64_t transfer_bytes = uint64_t{1} << 20;  // multiple of kDiskAlignment
  uint32_t depth = 8;                           // at most the disk's
  // Size of the file, at most half of the free space. The arena gives depth * transfer_bytes.
  uint64_t file_bytes = uint64_t{256} << 20;
  uint64_t time_ms = 1000;       // of all phases together, except the last transfers of each
  double read_share = 0.5;       // of the mixed phase's bytes, 0 to 1
  uint64_t timeout_ms = 30'000;  // without one transfer that completes
};

// Bytes per second.
struct DiskRates {
  double read_bytes_per_s = 0;
  double write_bytes_per_s = 0;
  double mixed_bytes_per_s = 0;  // both directions together
  double mixed_read_bytes_per_s = 0;
  double mixed_write_bytes_per_s = 0;
  uint64_t file_bytes = 0;  // that were used
};

// The file is unlinked before the first transfer, so that nothing is left whatever happens.
Result<DiskRates> probe_disk(Disk* disk, Arena* arena, const DiskProbeOptions& options);

}  // namespace weir::offload
