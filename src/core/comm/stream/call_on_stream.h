// SPDX-License-Identifier: Apache-2.0
// CallOnStream: the calls to CUDA that one operation makes on the program's stream, and what became
// of them. The first that fails is kept, and after it none is made.
//
// Not thread-safe; used by the thread that enqueues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "cuda/driver.h"

namespace weir::comm {

// A copy that the stream has a thread of the host make. It must stay until the stream has passed
// it; in a graph, as long as that may be launched.
struct HostCopy {
  void* to;
  const void* from;
  size_t bytes;
};

class CallOnStream {
 public:
  // `function`: of the program's call, for texts.
  CallOnStream(const cuda::Driver& driver, const char* function, cuda::Stream stream)
      : driver_(driver), function_(function), stream_(stream) {}

  const cuda::Driver& driver() const { return driver_; }
  const char* function() const { return function_; }
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  // Something is on the stream.
  bool begun() const { return begun_; }

  // The stream waits until the flag has the value, or sets it. Collected until `flush`, which the
  // other calls here begin with.
  void wait(cuda::DevicePointer flag, uint32_t value);
  void write(cuda::DevicePointer flag, uint32_t value);
  void flush();

  void copy(void* to, const void* from, size_t bytes);
  // By a thread of the host: plain memory of the host, for which a copy of CUDA's would make the
  // calling thread wait until the stream has come to it.
  void copy_on_host(HostCopy* copy);
  void call_on_host(void (*work)(void*), void* argument);
  void launch(cuda::Function kernel, unsigned blocks, unsigned threads, void* arguments);

  // Writes a flag after an error, when the stream has passed what it holds. False: CUDA refuses
  // that, too.
  bool write_after_error(cuda::DevicePointer flag, uint32_t value);

 private:
  void hold(const char* call, cuda::Result result);
  void add(uint32_t operation, cuda::DevicePointer flag, uint32_t value, unsigned flags);
  bool ready();

  const cuda::Driver& driver_;
  const char* const function_;
  const cuda::Stream stream_;
  std::vector<cuda::BatchEntry> entries_;
  bool begun_ = false;
  Status status_;
};

inline cuda::DevicePointer address(const void* pointer) {
  return static_cast<cuda::DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace weir::comm
