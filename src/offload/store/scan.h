// SPDX-License-Identifier: Apache-2.0
// scan_chunks: reads every chunk of one slot once, several at a time, outside the pipeline of a
// step. Same thread as the Disk.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "offload/disk/disk.h"

namespace weir::offload {

struct ScanRange {
  std::vector<FileId> files;  // of the slot, directory by directory
  uint64_t chunk_count = 0;
  uint64_t chunk_bytes = 0;
  uint64_t timeout_ms = 60'000;  // without any completion
};

// `status` is the read's own; the bytes count only when it is ok. Called in any order. An error that
// the visitor returns ends the scan with it.
using ChunkVisitor =
    std::function<Status(uint64_t chunk, const Status& status, const unsigned char* bytes)>;

Status scan_chunks(Disk& disk, const ScanRange& range, const ChunkVisitor& visit);

}  // namespace weir::offload
