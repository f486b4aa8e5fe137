// SPDX-License-Identifier: Apache-2.0
// How deep a pipeline is: transfers under way and buffers, from measured rates. Pure functions;
// thread-safe.
#pragma once

#include <cstdint>

namespace weir::offload {

// Bytes per second; 0: not known.
struct PipelineRates {
  double disk_bytes_per_s = 0;     // reads and writes together: they share one bandwidth
  double compute_bytes_per_s = 0;  // of an item's buffer
};

struct PipelineShape {
  uint32_t depth = 0;         // transfers under way
  uint32_t buffer_count = 0;  // items between the start of their reads and the end of their writes
};

// Bytes under way on each drive, half of them reads, half writes. More would only queue there.
inline constexpr uint64_t kBusyBytes = uint64_t{12} << 20;
inline constexpr uint32_t kPipelineDepthMax = 256;

struct PipelineLoad {
  uint64_t buffer_bytes = 0;    // of an item
  uint64_t transfer_bytes = 0;  // at most, of one transfer
  uint32_t drive_count = 1;
  uint32_t compute_thread_count = 0;  // 0: the thread that runs the pipeline computes
};

// The least depth and buffers that keep the drives busy: kBusyBytes always, and where the caller's
// thread computes also what they move during one item's compute, since nothing is submitted then.
// At least two transfers (one each way) and three buffers (reading, computing, writing). Each
// compute thread has a buffer, and as many bytes as are being written wait before or after the
// threads, so that a late thread does not empty the queue of the drives.
PipelineShape choose_shape(const PipelineRates& rates, const PipelineLoad& load);

}  // namespace weir::offload
