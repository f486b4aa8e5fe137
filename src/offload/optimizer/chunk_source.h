// SPDX-License-Identifier: Apache-2.0
// ChunkSource: the source from which a new state is filled. Chunks of state are filled in runs of
// `run_length` consecutive chunks; the data of each run is read once. `check` and `fill` are called
// from several threads at once, for different runs.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "offload/io/pipeline.h"

namespace weir::offload {

class ChunkSource {
 public:
  virtual ~ChunkSource() = default;
  virtual uint64_t run_length() const = 0;
  // The most bytes that the reads of any run need; a multiple of kDiskAlignment.
  virtual uint64_t buffer_bytes() const = 0;
  // Appends the reads of a run into a buffer of buffer_bytes().
  virtual Status reads(uint64_t run, std::vector<PipelineTransfer>* transfers) = 0;
  // Checks that the buffer holds what it should.
  virtual Status check(uint64_t run, const unsigned char* buffer) = 0;
  // Makes a chunk of the run.
  virtual Status fill(uint64_t run, uint64_t chunk, const unsigned char* buffer,
                      unsigned char* state) = 0;
};

}  // namespace weir::offload
