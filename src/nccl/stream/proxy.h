// SPDX-License-Identifier: Apache-2.0
// Proxy: what runs a communicator's operations when its streams have reached them. It has the
// flights that were enqueued, which it runs in the order of the calls, and the recordings: flights in
// graphs, each of which it runs whenever a launch of the graph rings for it. A thread serves while
// there are any; it makes no call to CUDA that waits for a stream of the program's.
//
// Flights of one communicator follow each other in stream order too, whatever their streams, and so
// share one staging (Bank).
//
// Thread-safe, but for banks and queues, which are used under enqueue_lock().
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "nccl/cuda/driver.h"
#include "nccl/direct/device_queue.h"
#include "nccl/stream/flight.h"
#include "nccl/stream/staging.h"

namespace weir::nccl {

// An event of CUDA's, or none.
class StreamEvent {
 public:
  StreamEvent() = default;
  StreamEvent(const cuda::Driver& driver, cuda::Event event) : driver_(&driver), event_(event) {}
  ~StreamEvent() { reset(); }
  StreamEvent(StreamEvent&& other) noexcept
      : driver_(other.driver_), event_(std::exchange(other.event_, nullptr)) {}
  StreamEvent& operator=(StreamEvent&& other) noexcept {
    reset();
    driver_ = other.driver_;
    event_ = std::exchange(other.event_, nullptr);
    return *this;
  }
  cuda::Event get() const { return event_; }

 private:
  void reset() {
    if (event_ != nullptr) (void)driver_->event_destroy(event_);
    event_ = nullptr;
  }
  const cuda::Driver* driver_ = nullptr;
  cuda::Event event_ = nullptr;
};

// What flights that follow each other have in common.
struct Bank {
  std::shared_ptr<Staging> staging;
  uint32_t last_number = 0;
  std::shared_ptr<StreamEvent> last;  // the end of the latest flight
};

// Flights in one graph.
class Recording {
 public:
  explicit Recording(uint64_t the_capture) : capture(the_capture) {}

  const uint64_t capture;  // CUDA's number of the capture
  Bank bank;
  // The graph and all that was made from it is gone.
  std::atomic<bool> released{false};

 private:
  friend class Proxy;
  // Flights that share a staging; flight i has the number i + 1.
  struct Part {
    std::shared_ptr<Staging> staging;
    std::vector<std::shared_ptr<Flight>> flights;
  };
  std::vector<Part> parts_;
};

class Proxy : public std::enable_shared_from_this<Proxy> {
 public:
  Proxy() = default;
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // One thread at a time enqueues, from before the first call to CUDA until after the flight is
  // added.
  std::mutex& enqueue_lock() { return enqueue_lock_; }
  Bank& bank() { return bank_; }
  // For the current context; made at the first call. Under enqueue_lock().
  Outcome queue(const cuda::Driver& driver, const char* function,
                std::shared_ptr<DeviceQueue>* queue);

  // Makes sure that there is a thread, and that it stays until enqueue_ends. Waits while very many
  // flights are enqueued. Throws when there can be no thread.
  void enqueue_begins();
  // A flight that is no recording's, before the first call to CUDA that rings for it: such a call
  // may wait until the stream has gone on, which waits for this flight. It may have been run, and
  // let go of, when the caller is through.
  void add(std::shared_ptr<Flight> flight);
  // `flight` may be empty: it was not added, nor is it recorded. `rings`: how often the stream will
  // ring for it.
  void enqueue_ends(const std::shared_ptr<Flight>& flight, size_t rings,
                    const std::shared_ptr<Recording>& recording);

  // nullptr: nothing was recorded yet in that capture.
  std::shared_ptr<Recording> find_recording(uint64_t capture);
  // From any thread, also one of CUDA's.
  void release(Recording& recording);

  // Returns when all flights that were enqueued have been run, or the communicator is broken.
  void wait_until_idle(const Comm& comm);
  bool idle();

 private:
  struct Rung {
    Flight* flight = nullptr;
    std::shared_ptr<Recording> recording;  // empty: the first that was enqueued
  };
  void serve() noexcept;
  // With the lock.
  Rung find_rung();
  bool has_work() const { return !flights_.empty() || !recordings_.empty() || enqueueing_ > 0; }

  std::mutex enqueue_lock_;
  Bank bank_;
  std::vector<std::shared_ptr<DeviceQueue>> queues_;

  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Flight>> flights_;
  std::vector<std::shared_ptr<Recording>> recordings_;
  int enqueueing_ = 0;
  bool serving_ = false;
};

}  // namespace weir::nccl
