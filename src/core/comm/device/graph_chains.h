// SPDX-License-Identifier: Apache-2.0
// GraphChains: what the calls in each graph share, kept as long as the graph may be launched. One
// thread at a time, in which a context is current.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/comm/stream/capture.h"
#include "core/comm/stream/stream_watches.h"
#include "cuda/driver.h"

namespace weir::comm {

template <typename Chain>
class GraphChains {
 public:
  // Of the graph that is being captured; made at the first call.
  Status find(const cuda::Driver& driver, const char* function, const Capture& capture,
              std::shared_ptr<Chain>* chain, std::shared_ptr<GraphWatches>* watches) {
    std::erase_if(all_, [](const One& it) { return it.released->load(std::memory_order_acquire); });
    for (const One& it : all_) {
      if (it.capture != capture.number) continue;
      *chain = it.chain;
      *watches = it.watches.lock();
    }
    if (*chain != nullptr) return Status();
    *chain = std::make_shared<Chain>();
    *watches = std::make_shared<GraphWatches>();
    (*watches)->keep(*chain);
    WEIR_RETURN_IF_ERROR(when_graph_is_gone(
        driver, function, capture,
        [released = (*watches)->released()] { released->store(true, std::memory_order_release); }));
    all_.push_back({capture.number, *watches, *chain, (*watches)->released()});
    return Status();
  }

 private:
  struct One {
    uint64_t capture = 0;
    std::weak_ptr<GraphWatches> watches;  // StreamWatches keeps them
    std::shared_ptr<Chain> chain;
    std::shared_ptr<const std::atomic<bool>> released;  // the graph is gone
  };
  std::vector<One> all_;
};

}  // namespace weir::comm
