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
#include <utility>
#include <vector>

#include "core/comm/stream/stream_call.h"
#include "core/comm/stream/stream_watch.h"

namespace weir::comm {

class CollectiveWatch : public StreamWatch {
 public:
  CollectiveWatch(WatchedCall watched, const StreamCall& call)
      : StreamWatch(std::move(watched)),
        words_(call.words()),
        way_(call.way()),
        bytes_(call.bytes()),
        has_root_(call.has_root()),
        writers_(call.writers()) {}

  size_t order() const override { return 0; }
  // Tells the peers.
  void note_begun() override;
  void note_running() override;

 private:
  void note_ended() override;
  uint64_t progress_mark() const override { return memory().progress_mark(); }
  void release() override;
  bool finds_fault() override;
  bool finds_fault_in(uint64_t number);
  // All ranks have given the number to this call: not to one in a graph, nor where some ranks
  // launch a graph and others make calls.
  bool is_numbered() const;
  std::vector<Rank> needed_of(const std::vector<Rank>& gone) const override { return gone; }
  std::vector<Rank> awaited() const override;
  std::string late_text(const std::vector<Rank>& culprits) const override;
  // Or where calls are not numbered alike.
  std::string late_text_of_graph(const std::vector<Rank>& culprits) const;
  void record_wait(uint64_t since_ns) const override;
  // Those that have made no such call; if all have, those whose streams have not come to it. Of a
  // graph it is not known.
  std::vector<Rank> late_ranks() const override;
  std::vector<Rank> absent_ranks() const;  // that have made no such call

  const CallWords words_;
  const CallWay way_;
  const uint64_t bytes_;
  const bool has_root_;
  const std::vector<Rank> writers_;
  bool is_captured_ = false;
  std::atomic<uint64_t> number_{0};  // StreamMemory::next_call; 0: not begun, or in a graph
};

}  // namespace weir::comm
