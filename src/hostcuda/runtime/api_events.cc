// SPDX-License-Identifier: Apache-2.0
// Events.
#include <cstring>

#include "hostcuda/core/event.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

WEIR_CUDART cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, 0);
}

WEIR_CUDART cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return device_call([&] {
    if (event == nullptr) return Error::kInvalidValue;
    void* handle = nullptr;
    const Error error = create_event(flags, &handle);
    *event = static_cast<cudaEvent_t>(handle);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return device_call([&] { return destroy_event(event); });
}

WEIR_CUDART cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return device_call([&] { return record_event(event, stream, false); });
}

WEIR_CUDART cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                                 unsigned int flags) {
  return device_call(
      [&] { return flags > 1 ? Error::kInvalidValue : record_event(event, stream, flags == 1); });
}

WEIR_CUDART cudaError_t cudaEventQuery(cudaEvent_t event) {
  return device_call([&] { return query_event(event); });
}

WEIR_CUDART cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return device_call([&] { return synchronize_event(event); });
}

WEIR_CUDART cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  return device_call(
      [&] { return ms == nullptr ? Error::kInvalidValue : elapsed_ms(start, end, ms); });
}

WEIR_CUDART cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return device_call([&] {
    if (handle == nullptr) return Error::kInvalidValue;
    IpcHandle made{};
    const Error error = export_event(event, &made);
    static_assert(sizeof made == sizeof *handle);
    if (error == Error::kSuccess) std::memcpy(handle, &made, sizeof made);
    return error;
  });
}

WEIR_CUDART cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return device_call([&] {
    if (event == nullptr) return Error::kInvalidValue;
    IpcHandle given{};
    std::memcpy(&given, &handle, sizeof given);
    void* opened = nullptr;
    const Error error = open_event(given, &opened);
    *event = static_cast<cudaEvent_t>(opened);
    return error;
  });
}
