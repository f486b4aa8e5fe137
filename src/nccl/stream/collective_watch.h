// SPDX-License-Identifier: Apache-2.0
// CollectiveWatch: the watch of a collective that is work of the stream alone (StreamCall). All
// ranks number these calls alike, and tell each other what they have called.
//
// Used as StreamWatch is.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nccl/direct/stream_call.h"
#include "nccl/stream/stream_watch.h"

namespace weir::nccl {

class CollectiveWatch : public StreamWatch {
 public:
  CollectiveWatch(const Operation& operation, std::shared_ptr<StreamMemory> memory, Words words,
                  uint32_t number, bool in_graph);

  size_t order() const override { return 0; }
  // Tells the peers.
  void note_begun() override;
  void note_ended() override;

 private:
  uint64_t progress_mark() const override { return memory_->progress_mark(); }
  void release() override;
  bool finds_fault() override;
  std::vector<Rank> needed_of(const std::vector<Rank>& gone) const override { return gone; }
  std::string late_text() const override;
  void record_wait(uint64_t since_ns) const override;
  // Those that have made no such call.
  std::vector<Rank> late_ranks() const;

  const CallWords words_;
  std::atomic<uint64_t> call_{0};  // StreamMemory::next_call; 0: not begun, or in a graph
};

}  // namespace weir::nccl
