// SPDX-License-Identifier: Apache-2.0
// How deep a pipeline is: transfers under way and buffers, from measured rates. Pure functions;
// thread-safe.
#pragma once

#include <cstdint>

namespace weir::offload {

enum class ComputeThread : uint8_t {
  kCaller,  // the thread that runs the pipeline computes; transfers go on meanwhile
  kWorker,  // a thread of the pipeline computes, the caller's only feeds the disk
};

// Bytes per second; 0: not known.
struct PipelineRates {
  double disk_bytes_per_s = 0;     // reads and writes together: they share one bandwidth
  double compute_bytes_per_s = 0;  // of an item's buffer
};

struct PipelineShape {
  uint32_t depth = 0;         // transfers under way
  uint32_t buffer_count = 0;  // items between the begin of their reads and the end of their writes
};

// What is under way keeps an NVMe drive busy; more would only wait there.
inline constexpr uint64_t kBusyBytes = uint64_t{4} << 20;
inline constexpr uint32_t kPipelineDepthMax = 256;

// The least depth and buffers that keep the disk busy: kBusyBytes always, and where the caller's
// thread computes also what the disk moves during one item's compute, since nothing is submitted
// then. At least two transfers (one each way) and three buffers (reading, computing, writing).
PipelineShape choose_shape(const PipelineRates& rates, uint64_t buffer_bytes,
                           uint64_t transfer_bytes, ComputeThread thread);

}  // namespace weir::offload
