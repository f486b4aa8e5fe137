// SPDX-License-Identifier: Apache-2.0
// DeviceContext: what a communicator needs of CUDA's driver for messages on memory of its device: the device's
// primary context in the threads that move them, and marks on streams, by which it learns that the device
// has come so far. The driver is the one that the process has loaded. One thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "core/base/status.h"
#include "cuda/driver_table.h"

namespace weir::comm {

class DeviceContext {
 public:
  // A place in the work of a stream; valid until it is removed.
  using Mark = void*;

  static Result<std::unique_ptr<DeviceContext>> open(int device);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  int device() const { return device_; }

  // For as long as it lives the context is the thread's current one, and calls are allowed that the capture
  // of a stream by any thread otherwise forbids. Of null it does nothing.
  class Scope {
   public:
    explicit Scope(const DeviceContext* context) : context_(context) {
      if (context_ != nullptr) [[unlikely]]
        enter();
    }
    ~Scope() {
      if (context_ != nullptr) [[unlikely]]
        leave();
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    void enter();
    void leave();

    const DeviceContext* context_;
    int mode_ = 0;
    bool exchanged_ = false;
    bool pushed_ = false;
  };

  // Behind all that `stream` has been given. kUnsupported while it is captured into a graph.
  Result<Mark> mark(void* stream);
  // The device has done all that lies before it.
  Result<bool> reached(Mark mark) const;
  void remove(Mark mark);

 private:
  explicit DeviceContext(const cuda::Driver& driver) : driver_(driver) {}

  const cuda::Driver& driver_;
  int device_ = 0;
  int handle_ = 0;  // the driver's for it
  void* context_ = nullptr;
  std::vector<void*> free_;  // events
};

}  // namespace weir::comm
