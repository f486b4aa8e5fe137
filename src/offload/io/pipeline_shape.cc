// SPDX-License-Identifier: Apache-2.0
#include "offload/io/pipeline_shape.h"

#include <algorithm>
#include <cmath>

namespace weir::offload {

PipelineShape choose_shape(const PipelineRates& rates, const PipelineLoad& load) {
  const uint64_t buffer_bytes = std::max<uint64_t>(1, load.buffer_bytes);
  const uint64_t transfer = std::max<uint64_t>(1, std::min(load.transfer_bytes, buffer_bytes));
  double busy_bytes = static_cast<double>(kBusyBytes) * std::max(1u, load.drive_count);
  const bool known = rates.disk_bytes_per_s > 0 && rates.compute_bytes_per_s > 0;
  if (load.compute_thread_count == 0 && known)
    busy_bytes +=
        static_cast<double>(buffer_bytes) / rates.compute_bytes_per_s * rates.disk_bytes_per_s;
  const double depth = std::ceil(busy_bytes / static_cast<double>(transfer));
  PipelineShape shape;
  shape.depth =
      static_cast<uint32_t>(std::clamp(depth, 2.0, static_cast<double>(kPipelineDepthMax)));
  // Half of the bytes under way are reads, half writes; each half ends in the middle of an item.
  const uint64_t half_bytes = (uint64_t{shape.depth} * transfer + 1) / 2;
  const uint64_t half_items = (half_bytes + buffer_bytes - 1) / buffer_bytes;
  const uint64_t computing =
      load.compute_thread_count == 0 ? 1 : load.compute_thread_count + half_items;
  shape.buffer_count = static_cast<uint32_t>(2 * half_items + computing);
  return shape;
}

}  // namespace weir::offload
