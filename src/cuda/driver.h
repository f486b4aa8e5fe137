// SPDX-License-Identifier: Apache-2.0
// The CUDA driver, real or stand-in, of a process that orders its work by streams, and what the
// library does with its contexts and captures. Without a driver these functions cannot be called,
// since they take its table of functions. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/driver_table.h"

namespace weir::cuda {

// nullptr when the process does not use CUDA, or its CUDA lacks a function. `asked`: a caller has
// passed a stream, so that CUDA must be present. Once found, the driver stays.
const Driver* driver(bool asked);

// The driver that was found before, or nullptr; costs nothing.
const Driver* known_driver();

// While a communicator is made: nullptr unless CUDA is loaded and initialized.
const Driver* driver_in_use();

// The device of the calling thread's context; 0 without a context.
int current_device();
// Whether the calling thread has a context.
bool has_context();

// The number of devices where the process has loaded CUDA's driver or runtime, which is initialized
// for this; 0 elsewhere, and where CUDA does not count them.
int device_count_if_loaded();

// The default stream's handles: CUDA takes them for a stream of the current context.
inline bool is_default_stream(Stream stream) {
  return reinterpret_cast<uintptr_t>(stream) <= 2;  // NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD
}

// The context in which a default stream belongs to `device`: that of the calling thread if it is on
// this device, else the device's primary context. nullptr if the thread has no context.
Context context_on(const Driver& driver, int device);

// The primary context of a device, for threads that have no context; nullptr if the process has
// not made it, or there is no such device.
Context primary_context(const Driver& driver, int device);

// PCI address and number of a device, as ranks tell them: "0000:3b:00.0 1"; "": the driver does not
// say.
std::string told_device(const Driver& driver, int device);

// The hardware queues that the streams of a device share in this process
// (CUDA_DEVICE_MAX_CONNECTIONS); 0: each stream has one of its own.
uint32_t hardware_queue_count(const Driver& driver);

// What CUDA says of an error: "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory".
std::string describe_error(const Driver& driver, Result result);

// Enqueues writes to flags and waits for them, in one call where the driver has such a call, and
// empties the list. Calls report(call, result) after each call, up to the first that fails.
template <typename Report>
void enqueue_flags(const Driver& driver, Stream stream, std::vector<BatchEntry>* entries,
                   Report report) {
  if (driver.cuStreamBatchMemOp_v2 != nullptr && entries->size() > 1) {
    report("cuStreamBatchMemOp",
           driver.cuStreamBatchMemOp_v2(stream, static_cast<unsigned>(entries->size()),
                                        entries->data(), 0));
  } else {
    for (const BatchEntry& it : *entries) {
      const bool waits = it.operation == kWaitValue32;
      const auto call = waits ? driver.cuStreamWaitValue32_v2 : driver.cuStreamWriteValue32_v2;
      const Result result = call(stream, it.address, static_cast<uint32_t>(it.value), it.flags);
      report(waits ? "cuStreamWaitValue32" : "cuStreamWriteValue32", result);
      if (result != kSuccess) break;
    }
  }
  entries->clear();
}

// Makes a stream's context current, for as long as this object lives; for the NULL stream
// `context`, or, when that is NULL too, the thread's own. A driver that does not know the stream's
// context in a thread that has none is asked in `context`.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Stream stream, Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  void push(Context wanted);

  const Driver& driver_;
  int pushed_count_ = 0;
};

// Allows calls that a stream capture of this thread forbids, for as long as this object lives.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;
  bool exchanged_ = false;
};

// What a copy on a stream has to know of memory (CUDA's driver API, "API synchronization
// behavior").
enum class MemoryPlace : uint8_t {
  kDevice,   // only the device can access it
  kManaged,  // the host and the device
  kPinned,   // of the host, also if it was registered: a copy within the host makes the calling
             // thread wait until the stream has come to it
  kPlain,    // of the host, and CUDA knows nothing of it: so may any copy
};
// nullptr counts as managed.
MemoryPlace place_of(const Driver& driver, const void* pointer);
inline bool only_on_device(const Driver& driver, const void* pointer) {
  return place_of(driver, pointer) == MemoryPlace::kDevice;
}
// Of memory of a device alone: whether kernels of the current context may use it, because it is of
// this context or, where it is of none (memory made by mapping, and that of pools), on its device.
bool is_on_current_device(const Driver& driver, const void* pointer);
inline bool is_of_host(MemoryPlace place) {
  return place == MemoryPlace::kPinned || place == MemoryPlace::kPlain;
}

}  // namespace weir::cuda
