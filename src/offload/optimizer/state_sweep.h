// SPDX-License-Identifier: Apache-2.0
// StateHome::Sweep: the pipeline's work on the chunks of one visit. Only state_home*.cc include it.
#pragma once

#include <atomic>
#include <functional>
#include <vector>

#include "offload/optimizer/state_home.h"

namespace weir::offload {

class StateHome::Sweep : public PipelineWork {
 public:
  enum class Kind : uint8_t {
    kVisit,   // as visit() says; `body` may be empty
    kLoad,    // drives -> memory
    kVerify,  // drives -> a check
  };
  Sweep(StateHome* home, Kind kind, Visit visit, const ChunkBody* body)
      : home_(*home), kind_(kind), visit_(visit), body_(body) {}

  std::vector<uint64_t> chunks;
  std::function<void(uint64_t done)> progress;  // kVerify: chunks done, now and then

  uint64_t item_count() const override { return chunks.size(); }
  Status reads(uint64_t item, std::vector<PipelineTransfer>* transfers) override;
  Status compute(uint64_t item, unsigned char* buffer) override;
  Status writes(uint64_t item, std::vector<PipelineTransfer>* transfers) override;
  bool computes_after_all(uint64_t item) const override;
  Status written(uint64_t item) override;

 private:
  bool is_copy(uint64_t chunk) const { return chunk >= home_.placement_.state_count(); }
  bool in_memory(uint64_t chunk) const {
    return is_copy(chunk) || home_.resident_[chunk].data() != nullptr;
  }
  bool is_read(uint64_t chunk) const;
  bool is_written(uint64_t chunk) const;
  // The memory of a chunk that is kept in memory.
  unsigned char* memory(uint64_t chunk, uint64_t* bytes) const;

  StateHome& home_;
  const Kind kind_;
  const Visit visit_;
  const ChunkBody* body_;
  std::atomic<uint64_t> done_{0};
};

}  // namespace weir::offload
