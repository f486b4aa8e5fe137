// SPDX-License-Identifier: Apache-2.0
// scan_chunks: reads chunks of one slot, each once, several at a time, outside the pipeline of a
// step. Same thread as the Disk.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "offload/disk/disk.h"

namespace weir::offload {

struct ScanRange {
  std::vector<FileId> files;         // of the slot, directory by directory
  std::span<const uint64_t> chunks;  // which to read
  uint64_t chunk_bytes = 0;
  uint64_t timeout_ms = 60'000;  // without any completion
};

// `status` is that of the read; the bytes are valid only when it is ok. Called in any order. An
// error that the visitor returns ends the scan with that error.
using ChunkVisitor =
    std::function<Status(uint64_t chunk, const Status& status, const unsigned char* bytes)>;

Status scan_chunks(Disk& disk, const ScanRange& range, const ChunkVisitor& visit);

}  // namespace weir::offload
