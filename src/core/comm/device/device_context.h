// SPDX-License-Identifier: Apache-2.0
// DeviceContext: what a communicator needs of CUDA's driver for messages on memory of its device:
// the device's primary context in the threads that move them, and marks on streams, which tell how
// far the device has come. The driver is the one that the process has loaded. One thread at a time.
#pragma once

#include <memory>
#include <vector>

#include "core/base/status.h"
#include "core/comm/requests/request.h"
#include "cuda/driver_table.h"

namespace weir::comm {

class DeviceContext {
 public:
  static Result<std::unique_ptr<DeviceContext>> open(int device);
  ~DeviceContext();
  DeviceContext(const DeviceContext&) = delete;
  DeviceContext& operator=(const DeviceContext&) = delete;

  int device() const { return device_; }

  // While it lives the context is the thread's current one, and calls are allowed that the capture
  // of a stream by any thread otherwise forbids. With a null context it does nothing.
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

  // A place in the work of a stream, after all that the stream has been given. This object outlives
  // the mark. kUnsupported while the stream is captured into a graph.
  Result<StreamMark> mark(void* stream);
  // The device has done all work before the mark.
  Result<bool> reached(const StreamMark& mark) const;

 private:
  friend struct RemoveMark;

  explicit DeviceContext(const cuda::Driver& driver) : driver_(driver) {}

  const cuda::Driver& driver_;
  int device_ = 0;
  int handle_ = 0;  // the driver's handle of the device
  void* context_ = nullptr;
  std::vector<void*> free_;  // events
};

}  // namespace weir::comm
