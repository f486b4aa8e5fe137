// SPDX-License-Identifier: Apache-2.0
// A stream: a queue of work and the thread that does it, in order. Work may wait for a point in
// another stream, for an event or for a value in memory; enqueueing never blocks the caller. A
// destroyed stream finishes its work first. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "hostcuda/core/error.h"
#include "hostcuda/core/stream_attributes.h"

namespace weir::hostcuda {

struct Device;
class Capture;
class Stream;
using StreamRef = std::shared_ptr<Stream>;

// True once the device is reset: work that waits gives up, work that has not begun is skipped.
using Cancel = std::atomic<bool>;
using Work = std::function<void(const Cancel&)>;

// A point in a stream: what had been enqueued when it was taken.
struct Position {
  StreamRef stream;
  uint64_t index = 0;
};

enum class StreamKind : uint8_t { kLegacy, kPerThread, kBlocking, kNonBlocking };

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(Device& device, StreamKind kind, int priority);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Appends work that starts after what came before it and after all of `after`. The caller holds
  // the device's order lock (enqueue() below does).
  Error submit(std::vector<Position> after, Work work);
  uint64_t submitted() const;
  bool reached(uint64_t index) const;
  void wait(uint64_t index) const;                        // for the host
  void wait(uint64_t index, const Cancel& cancel) const;  // for a worker
  // No further work comes; the worker ends when it has done the rest.
  void retire();
  bool retired() const;
  void cancel();

  Device& device() const { return device_; }
  StreamKind kind() const { return kind_; }
  bool blocking() const { return kind_ != StreamKind::kNonBlocking; }  // with the legacy stream
  int priority() const { return priority_; }
  void set_priority(int priority) { priority_ = priority; }
  StreamAttributes attributes() const;
  void set_attributes(const StreamAttributes& attributes);
  uint64_t id() const { return id_; }

  // The capture that the stream is part of, or nullptr; written under the capture lock.
  std::atomic<Capture*> capture{nullptr};

 private:
  struct Item {
    std::vector<Position> after;
    Work work;
  };
  void run();

  Device& device_;
  const StreamKind kind_;
  std::atomic<int> priority_;
  const uint64_t id_;
  mutable std::mutex mutex_;
  mutable std::condition_variable has_work_;
  mutable std::condition_variable progressed_;
  std::deque<Item> queue_;
  uint64_t submitted_ = 0;
  uint64_t completed_ = 0;
  bool started_ = false;
  bool retired_ = false;
  StreamAttributes attributes_;
  Cancel cancelled_{false};
};

// Enqueues in the order that CUDA defines for the legacy default stream: its work waits for all
// blocking streams of the device, and they wait for it.
Error enqueue(const StreamRef& stream, Work work, Position* position = nullptr);

// The positions for which a host call on the stream must wait.
std::vector<Position> pending(const StreamRef& stream);
std::vector<Position> pending(Device& device);

}  // namespace weir::hostcuda
