// SPDX-License-Identifier: Apache-2.0
// StateHome: where the chunks of an optimizer's state are, in memory or on drives, and the way to
// them: visits of chunks, streamed where they lie on drives; commits; the way back.
//
// Without directories every chunk is in memory. With directories every chunk has its place in the
// store; those that the memory budget has room for stay in memory as well, are not read, and are
// written by commits alone. bf16 copies of half-master formats are in memory always, and written by
// commits. So the store always has the whole committed state, and going back to it means reading
// it.
//
// Chunks of one visit are computed at the same time, each by one of the threads. If the caller gave
// the disk, the caller's thread computes them all, so that a simulated disk sees the same order
// each time.
//
// After opening, the committed state is read as a whole before anything is written over the epoch
// before, and damage takes the state back to that epoch (ensure_whole). While nothing else uses the
// drives a Scrubber reads them, so that damage is found early; a disk that the caller gave is never
// scrubbed.
//
// A visited step stays open in the store until the next one begins, so that it can still be
// committed. One thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "offload/disk/disk.h"
#include "offload/io/pipeline.h"
#include "offload/kernels/worker_pool.h"
#include "offload/optimizer/budget.h"
#include "offload/optimizer/options.h"
#include "offload/optimizer/placement.h"
#include "offload/store/scrubber.h"
#include "offload/store/store.h"

namespace weir::offload {

// A chunk and its state bytes, which may be changed when the visit is one that changes. Called from
// several threads at once.
using ChunkBody = std::function<Status(uint64_t chunk, unsigned char* state)>;

enum class Visit : uint8_t {
  kRead,    // nothing is written
  kChange,  // chunks on drives are written back; those in memory are changed there
  kCommit,  // kChange, and all chunks and copies are written, for the commit that follows
};

class ChunkSource;

class StateHome {
 public:
  // New state of zeros. kNoMemory when the budget is too small; the text says by how much.
  static Result<std::unique_ptr<StateHome>> create(const OptimizerOptions& options,
                                                   const std::vector<ParameterGroup>& groups);
  // The committed state.
  static Result<std::unique_ptr<StateHome>> open(const OptimizerOptions& options,
                                                 const std::vector<ParameterGroup>& groups);
  ~StateHome();

  const Placement& placement() const { return placement_; }
  WorkerPool& pool() { return *pool_; }
  Budget& budget() { return budget_; }
  bool on_drives() const { return store_ != nullptr; }
  Store& store() { return *store_; }
  Disk& disk() { return *disk_; }
  // nullptr: on drives only.
  unsigned char* resident(uint64_t chunk) const { return resident_[chunk].data(); }
  uint64_t resident_count() const;
  // The group's bf16 copy; nullptr for kFloat32.
  uint16_t* copy(uint32_t group) const;
  // The second slot of memory, with undo_in_memory and without directories.
  bool has_second() const { return has_second_; }
  unsigned char* second(uint64_t chunk) const { return second_[chunk].data(); }
  uint16_t* second_copy(uint32_t group) const;
  void swap_slots();

  // Calls the body for each of the chunks of state, in this order.
  Status visit(std::span<const uint64_t> chunks, Visit kind, const ChunkBody& body,
               PipelineReport* report = nullptr);

  // Fills a whole new state from another source, with memory of its own beyond the budget while it
  // runs. The source reads files of `disk`, which with directories is this object's own disk.
  Status fill(Disk* disk, ChunkSource* source);

  // ---- With directories ----
  // A step begins from the newest state; visits since the last commit stay uncommitted.
  Status begin_step(uint64_t step);
  bool has_open_step() const { return open_step_; }
  // Whether nothing was committed yet.
  bool is_new() const { return store_->committed() == nullptr; }
  uint64_t committed_step() const;
  // Writes the chunks that the open step has not written and commits it. After an error the step is
  // still open, and commit may be called again, unless the store is poisoned then.
  Status commit();
  bool is_poisoned() const { return poisoned_ || store_->is_poisoned(); }
  // Goes back to the last committed state, in memory too.
  Status abandon();
  // Reads the chunks in memory from the committed state.
  Status reload();
  // Reads, with all threads, the part of the committed state not read since opening, before a step
  // overwrites the previous epoch. Damage takes the state back to that epoch, in memory too: then
  // *went_back is true, and store().fallback() names the state given up. An error when there is no
  // state to go back to.
  Status ensure_whole(bool* went_back);
  // Refused where the committed state is known to be bad; reads only the bad chunks again.
  Status check_committed();
  void describe_store(StoreReport* report) const;
  // Moves one more chunk from memory to its drive, if any is left, and frees its memory.
  Result<bool> evict_one();

  // In a process forked from the one that made it: closes the disk's open files.
  void leave_to_parent();

  std::string describe() const;

 private:
  class Sweep;
  class Filling;
  StateHome(const OptimizerOptions& options, Placement placement);
  Status take_memory(const std::vector<ParameterGroup>& groups);
  Status open_stream(uint64_t bytes);
  Status start_pool();
  bool scrubs() const;
  Status start_scrub();
  // Called whenever another state may have become the committed one.
  void watch_committed();
  void take_over_scrub();
  Status verify_unread();
  Status load_committed();
  Status run(Sweep* sweep, PipelineReport* report);
  std::vector<uint64_t> unwritten() const;
  PipelineOptions pipeline_options() const;
  uint32_t thread_count() const;

  OptimizerOptions options_;
  Placement placement_;
  Budget budget_;
  std::unique_ptr<Arena> fill_arena_;
  std::unique_ptr<Disk> own_disk_;
  Disk* disk_ = nullptr;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<WorkerPool> pool_;
  std::vector<ArenaBuffer> resident_;  // by chunk of state
  std::vector<ArenaBuffer> second_;
  std::vector<ArenaBuffer> copies_;  // by group
  std::vector<ArenaBuffer> second_copies_;
  bool has_second_ = false;
  bool open_step_ = false;
  bool poisoned_ = false;
  std::vector<uint8_t> written_;  // by chunk, 1: in the open step
  uint64_t verify_bytes_ = 0;     // read by ensure_whole
  uint64_t verify_ns_ = 0;
  ArenaBuffer scrub_buffer_;
  std::unique_ptr<Scrubber> scrubber_;  // may be none
  uint64_t watched_writing_ = 0;        // of the state that it reads; 0: none
};

}  // namespace weir::offload
