// SPDX-License-Identifier: Apache-2.0
// Implementation of Pipeline: its state between runs, and one run. Only pipeline*.cc include it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "offload/io/compute_workers.h"
#include "offload/io/pipeline.h"

namespace weir::offload {

struct Pipeline::State {
  // A buffer, and the item that has it.
  struct Slot {
    ArenaBuffer buffer;
    uint64_t item = 0;
    bool working = false;    // the item is between read and write
    uint32_t transfers = 0;  // under way or waiting
    uint32_t submitted = 0;  // under way
  };

  Disk* disk = nullptr;
  PipelineOptions options;
  PipelineLoad load;
  PipelineRates rates;  // of the last run
  std::vector<Slot> slots;
  std::unique_ptr<ComputeWorkers> workers;  // nullptr: the caller computes
};

class Pipeline::Run {
 public:
  Run(State* state, PipelineWork* work, PipelineReport* report);
  Status all();

 private:
  struct Piece {  // one transfer of the disk
    Transfer transfer;
    uint32_t slot = 0;
    uint32_t lane = 0;
    uint64_t begin_ns = 0;
  };
  using Slot = State::Slot;

  bool finished() const { return finished_count_ == item_count_; }

  Status sweep();
  Status admit();
  Status submit();
  Status compute_here();
  Status compute_on_workers();
  Status take_computed(bool wait);
  Status wait_for_disk(uint32_t least);
  Status computed(const ComputeWorkers::Finished& finished);
  Status finish(uint32_t slot);
  Status cut(uint32_t slot, bool write);
  Status handle(const std::vector<Completion>& done);
  void drain();

  uint32_t free_slot() const;
  uint32_t next_piece();  // takes it out of its queue
  void put_back(uint32_t piece);
  uint32_t take_lane(bool write);
  void trace(TraceKind kind, uint32_t lane, uint64_t item, uint64_t begin_ns, uint64_t end_ns,
             uint64_t bytes);
  std::string under_way() const;

  State& s_;
  PipelineWork& work_;
  PipelineReport& report_;
  const uint64_t item_count_;

  uint64_t admitted_count_ = 0;  // items below it have or had a buffer
  uint64_t finished_count_ = 0;
  uint32_t working_ = 0;
  std::deque<uint32_t> to_compute_;  // slots in the order of the sweep, first ones may be ready
  std::vector<Piece> pieces_;
  std::vector<uint32_t> free_pieces_;
  std::deque<uint32_t> reads_;  // pieces that wait for the disk
  std::deque<uint32_t> writes_;
  uint64_t read_bytes_in_flight_ = 0;
  uint64_t write_bytes_in_flight_ = 0;
  uint32_t in_flight_ = 0;
  uint64_t busy_since_ns_ = 0;  // while in_flight_ > 0
  std::vector<bool> lanes_[2];  // of reads, of writes: taken
  std::vector<Completion> done_;
  std::vector<Transfer> batch_;
  std::vector<uint32_t> batch_pieces_;
  std::vector<PipelineTransfer> wanted_;
};

}  // namespace weir::offload
