// SPDX-License-Identifier: Apache-2.0
// StreamEvent: an event of CUDA's that orders streams, or none. Not thread-safe; several threads
// may use different objects.
//
// It is destroyed where a context is current. Other threads, which are those that watch calls and
// must not wait for CUDA, leave the event to the next thread that records one.
#pragma once

#include <utility>

#include "core/base/status.h"
#include "cuda/driver.h"

namespace weir::comm {

class StreamEvent {
 public:
  StreamEvent() = default;
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

  // All that the stream has been given so far. `function`: of the program's call, for texts.
  static Status record(const cuda::Driver& driver, const char* function, cuda::Stream stream,
                       StreamEvent* event);
  // One that is not recorded yet, for which nothing waits.
  static Status make(const cuda::Driver& driver, const char* function, StreamEvent* event);
  // Of one that was made: what the stream has been given by now, instead of what it was.
  Status record_again(const char* function, cuda::Stream stream) const;
  // The stream waits for it.
  Status wait(const char* function, cuda::Stream stream) const;
  // The same in a stream that is captured, for an event outside of the capture: at each launch the
  // graph waits for what was recorded last by then, and each launch is a record.
  Status wait_at_launch(const char* function, cuda::Stream stream) const;
  Status record_at_launch(const char* function, cuda::Stream stream) const;
  // What `later` is given from now on comes after all that `earlier` has been given so far.
  static Status follow(const cuda::Driver& driver, const char* function, cuda::Stream later,
                       cuda::Stream earlier);

 private:
  void reset();

  const cuda::Driver* driver_ = nullptr;
  cuda::Event event_ = nullptr;
};

}  // namespace weir::comm
