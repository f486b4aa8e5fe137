// SPDX-License-Identifier: Apache-2.0
// Pipeline: read, compute, write over a list of items with bounded buffers and every stage
// overlapped: while one item is computed, reads of the next and writes of the last are under way.
//
// An item has one buffer. Its reads fill parts of it, compute changes it, its writes take parts of
// it. Computes begin in the order of the sweep, as many at a time as there are threads for them; an
// item's writes are submitted after its compute and never before. The first error stops submission,
// transfers under way are reaped, and the error is returned.
//
// One thread at a time, that of the Disk; the Disk and the Arena must outlive the pipeline, and
// nothing else may use the disk while it runs.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "offload/disk/disk.h"
#include "offload/io/arena.h"
#include "offload/io/pipeline_shape.h"
#include "offload/io/trace.h"

namespace weir::offload {

// Offsets and bytes are multiples of kDiskAlignment. Any length: the pipeline splits it.
struct PipelineTransfer {
  FileId file = 0;
  uint64_t offset_bytes = 0;         // in the file
  uint64_t buffer_offset_bytes = 0;  // in the item's buffer
  uint64_t bytes = 0;
};

// What the caller implements. Items are numbered 0 to item_count - 1.
class PipelineWork {
 public:
  virtual ~PipelineWork() = default;
  virtual uint64_t item_count() const = 0;
  // Appends the item's reads; there may be none. Asked once per sweep, some items ahead of compute.
  virtual Status reads(uint64_t item, std::vector<PipelineTransfer>* transfers) = 0;
  // Every read of the item is in `buffer`. With compute threads it runs on one of them, beside the
  // functions of other items.
  virtual Status compute(uint64_t item, unsigned char* buffer) = 0;
  // Whether the item is computed only after all items before it in the sweep.
  virtual bool computes_after_all(uint64_t) const { return false; }
  // Appends the item's writes; there may be none. Asked once, after the item's compute.
  virtual Status writes(uint64_t item, std::vector<PipelineTransfer>* transfers) = 0;
  // All writes of the item have completed (which is not yet durable). On the caller's thread.
  virtual Status written(uint64_t) { return Status(); }
};

struct PipelineOptions {
  uint64_t buffer_bytes = 0;  // of one item: a multiple of kDiskAlignment
  uint32_t buffer_count = 0;  // of items between read and write; 0: choose_shape
  uint32_t depth = 0;  // transfers under way; 0: choose_shape, from what the last run measured
  uint64_t transfer_bytes = uint64_t{1} << 20;  // longer transfers are cut
  uint32_t compute_thread_count = 0;            // of the pipeline; 0: the caller's thread computes
  std::vector<int> compute_cores;               // that they run on, one each; empty: on any
  uint32_t drive_count = 1;                     // that the items are striped over
  PipelineRates rates;                          // for the first run; 0 where not known
  uint64_t timeout_ms = 30'000;                 // without one transfer that completes
  uint32_t trace_events_max = 0;                // 0: no trace
};

// Of one run.
struct PipelineReport {
  uint64_t item_count = 0;  // whose writes completed
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t transfer_count = 0;
  uint64_t computed_bytes = 0;  // of buffers
  uint64_t wall_ns = 0;
  uint64_t compute_ns = 0;
  uint64_t compute_exposed_ns = 0;  // of that, with the disk idle at least in part: an upper bound
  uint64_t disk_wait_ns = 0;        // the caller's thread had nothing to do but wait for the disk
  uint64_t compute_wait_ns = 0;     // it had nothing to do but wait for compute threads
  uint64_t disk_busy_ns = 0;        // transfers were under way
  uint64_t overlapped_compute_count = 0;  // computes that began with transfers under way
  uint32_t in_flight_max = 0;
  uint32_t depth = 0;
  uint32_t buffer_count = 0;
  Trace trace;

  // Share of compute during which the disk worked, 0 to 1; 1 when nothing was computed.
  double compute_hidden() const;
  // What choose_shape takes.
  PipelineRates rates() const;
};

class Pipeline {
 public:
  // Allocates all buffers at once: kNoMemory, before anything has started, when the arena has too
  // little.
  static Result<std::unique_ptr<Pipeline>> create(Disk* disk, Arena* arena,
                                                  const PipelineOptions& options);
  // Buffers of transfers that could not be reaped are never given back to the arena.
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  // One sweep over all items, from the first one. `report` (may be nullptr) is filled after an
  // error too.
  Status run(PipelineWork* work, PipelineReport* report);

  // Bytes of the arena that create allocates.
  static uint64_t memory_bytes(const PipelineOptions& options);

 private:
  class Run;
  struct State;
  explicit Pipeline(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace weir::offload
