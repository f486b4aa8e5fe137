// SPDX-License-Identifier: Apache-2.0
// Events: a mark in a stream, with the time at which the stream reached it. A wait is for the
// latest record at the time when the wait is enqueued; later records do not matter. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "hostcuda/core/error.h"
#include "hostcuda/core/shared_mark.h"
#include "hostcuda/core/stream.h"

namespace weir::hostcuda {

struct Node;

// One record of an event, done when its stream has reached it.
class Completion {
 public:
  Completion() = default;
  // Of an event that processes share: done when its `number` is, wherever it was recorded.
  Completion(std::shared_ptr<SharedMark> shared, uint64_t number)
      : shared_(std::move(shared)), number_(number) {}

  void finish();
  bool done() const;
  void wait() const;                      // for the host
  void wait(const Cancel& cancel) const;  // for a worker
  int64_t time_ns() const;                // when done

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable finished_;
  bool done_ = false;
  int64_t time_ns_ = 0;
  const std::shared_ptr<SharedMark> shared_;
  const uint64_t number_ = 0;
};

inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kEventInterprocess = 4;

struct Event {
  unsigned flags = 0;
  int device = 0;
  std::shared_ptr<SharedMark> shared;  // of an event that processes share; then `last` is not used
  std::mutex mutex;                    // of the fields below
  std::shared_ptr<Completion> last;    // null before the first record
  uint64_t capture_id = 0;             // the capture of the latest record; 0: not captured
  std::vector<Node*> captured;         // and there after these nodes

  std::shared_ptr<Completion> renew();  // a record that is not captured
  std::shared_ptr<Completion> current();
};
using EventRef = std::shared_ptr<Event>;

Error create_event(unsigned flags, void** handle);
Error destroy_event(void* handle);
// kInvalidHandle if the event was not made for other processes, or by another one.
Error export_event(const void* event, IpcHandle* handle);
Error open_event(const IpcHandle& handle, void** event);
EventRef find_event(const void* handle);
Error record_event(void* event, void* stream, bool external);
Error wait_event(void* stream, void* event, bool external);
Error query_event(void* event);
Error synchronize_event(void* event);
Error elapsed_ms(void* start, void* end, float* out);
void forget_events(int device);

}  // namespace weir::hostcuda
