// SPDX-License-Identifier: Apache-2.0
// StreamWatches: the calls of a communicator that are work of streams alone and have not ended, and
// the thread that looks at them (stream_watch.h). The thread exists while there are such calls, or
// graphs with such calls. It makes no call to CUDA that waits.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/comm/stream/stream_watch.h"
#include "cuda/driver_table.h"

namespace weir::comm {

// The watches of the calls in one graph. They stay until the graph, and all that was made from it,
// is gone.
class GraphWatches {
 public:
  // From any thread, also one of CUDA's.
  void release() { released_->store(true, std::memory_order_release); }
  // True: released. For those that must not be the last to hold this object.
  const std::shared_ptr<std::atomic<bool>>& released() const { return released_; }
  // Stays as long as this object.
  void keep(std::shared_ptr<void> what) { kept_ = std::move(what); }

 private:
  friend class StreamWatches;
  const std::shared_ptr<std::atomic<bool>> released_ = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<void> kept_;
  std::vector<std::shared_ptr<StreamWatch>> all_;
};

class StreamWatches : public std::enable_shared_from_this<StreamWatches> {
 public:
  // `on_end`: called without a lock when calls have ended, whose watches still exist; may be empty.
  explicit StreamWatches(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
  StreamWatches(const StreamWatches&) = delete;
  StreamWatches& operator=(const StreamWatches&) = delete;

  // From before the call is enqueued until it has ended or, if it did not come to be, until `drop`;
  // those of a graph as long as that may be launched. `graph`: nullptr outside of graphs. Throws
  // when no thread can be started.
  void watch(const cuda::Driver& driver, std::shared_ptr<StreamWatch> it,
             const std::shared_ptr<GraphWatches>& graph);
  void drop(const std::shared_ptr<StreamWatch>& it, const std::shared_ptr<GraphWatches>& graph);

  // Outside of graphs: all have ended, or may not run yet.
  bool are_quiet() const;
  // They will never end: the program has reset the device.
  void lose_all();

 private:
  void serve() noexcept;
  // With the lock.
  std::vector<std::shared_ptr<StreamWatch>> take_ended();
  std::vector<std::shared_ptr<StreamWatch>> now() const;  // those to be looked at now
  std::vector<std::shared_ptr<GraphWatches>> take_released();
  bool has_work() const { return !calls_[0].empty() || !calls_[1].empty() || !graphs_.empty(); }

  const std::function<void()> on_end_;
  mutable std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<StreamWatch>> calls_[StreamWatch::kOrders];
  std::vector<std::shared_ptr<GraphWatches>> graphs_;
  bool serving_ = false;
};

}  // namespace weir::comm
