// SPDX-License-Identifier: Apache-2.0
// GraphOrder: the order of calls that share scratch and flags, where some of them are in graphs.
// Only CUDA knows when a graph is launched; so each launch waits, by an event that graphs and other
// calls share, for what was launched or enqueued last, and marks its own end. As NCCL orders the
// operations of a communicator (NCCL_GRAPH_MIXING_SUPPORT).
//
// It costs nothing until the first capture. One thread at a time, in which a context is current.
#pragma once

#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/comm/stream/stream_event.h"
#include "cuda/driver.h"

namespace weir::comm {

class GraphOrder {
 public:
  // What keeps the events of a graph as long as it may be launched.
  using Kept = std::vector<std::shared_ptr<StreamEvent>>;

  // Before the first call in a graph, in its stream. `latest`: the end of the latest call in no
  // graph, or nullptr.
  Status enter_graph(const cuda::Driver& driver, const char* function, cuda::Stream stream,
                     const std::shared_ptr<StreamEvent>& latest, Kept* kept);
  // Behind each call in a graph.
  Status leave_graph(const char* function, cuda::Stream stream) const;
  // Before and behind each call that is in none.
  Status wait(const char* function, cuda::Stream stream) const;
  Status record(const char* function, cuda::Stream stream) const;

 private:
  std::shared_ptr<StreamEvent> event_;  // once there was a graph
};

}  // namespace weir::comm
