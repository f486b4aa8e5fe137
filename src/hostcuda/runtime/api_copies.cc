// SPDX-License-Identifier: Apache-2.0
// Copies and fills.
#include "hostcuda/core/memory.h"
#include "hostcuda/core/operation.h"
#include "hostcuda/runtime/boxes.h"
#include "hostcuda/runtime/call.h"

using namespace weir::hostcuda;           // NOLINT: this file is their C interface
using namespace weir::hostcuda::runtime;  // NOLINT

namespace {

constexpr cudaStream_t kLegacy = nullptr;

template <class Box>
Error copy_box(const Box* box, cudaStream_t stream, bool synchronous) {
  CopyOperation operation;
  const Error error = to_operation(box, &operation);
  return error == Error::kSuccess ? copy(std::move(operation), stream, synchronous) : error;
}

Error check_devices(int first, int second) {
  return device_at(first) == nullptr || device_at(second) == nullptr ? Error::kInvalidDevice
                                                                     : Error::kSuccess;
}

}  // namespace

WEIR_CUDART cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes,
                                   enum cudaMemcpyKind kind) {
  return device_call([&] { return copy(flat_copy(to, from, bytes, kind), kLegacy, true); });
}

WEIR_CUDART cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                        enum cudaMemcpyKind kind, cudaStream_t stream) {
  return device_call([&] { return copy(flat_copy(to, from, bytes, kind), stream, false); });
}

WEIR_CUDART cudaError_t cudaMemcpyPeer(void* to, int to_device, const void* from, int from_device,
                                       size_t bytes) {
  return device_call([&] {
    const Error error = check_devices(to_device, from_device);
    if (error != Error::kSuccess) return error;
    return copy(flat_copy(to, from, bytes, cudaMemcpyDeviceToDevice), kLegacy, true);
  });
}

WEIR_CUDART cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from,
                                            int from_device, size_t bytes, cudaStream_t stream) {
  return device_call([&] {
    const Error error = check_devices(to_device, from_device);
    if (error != Error::kSuccess) return error;
    return copy(flat_copy(to, from, bytes, cudaMemcpyDeviceToDevice), stream, false);
  });
}

WEIR_CUDART cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                                     size_t width, size_t height, enum cudaMemcpyKind kind) {
  return device_call([&] {
    return copy(row_copy(to, to_pitch, from, from_pitch, width, height, kind), kLegacy, true);
  });
}

WEIR_CUDART cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from,
                                          size_t from_pitch, size_t width, size_t height,
                                          enum cudaMemcpyKind kind, cudaStream_t stream) {
  return device_call([&] {
    return copy(row_copy(to, to_pitch, from, from_pitch, width, height, kind), stream, false);
  });
}

WEIR_CUDART cudaError_t cudaMemcpy3D(const struct cudaMemcpy3DParms* box) {
  return device_call([&] { return copy_box(box, kLegacy, true); });
}

WEIR_CUDART cudaError_t cudaMemcpy3DAsync(const struct cudaMemcpy3DParms* box,
                                          cudaStream_t stream) {
  return device_call([&] { return copy_box(box, stream, false); });
}

WEIR_CUDART cudaError_t cudaMemcpy3DPeer(const struct cudaMemcpy3DPeerParms* box) {
  return device_call([&] { return copy_box(box, kLegacy, true); });
}

WEIR_CUDART cudaError_t cudaMemcpy3DPeerAsync(const struct cudaMemcpy3DPeerParms* box,
                                              cudaStream_t stream) {
  return device_call([&] { return copy_box(box, stream, false); });
}

WEIR_CUDART cudaError_t cudaMemset3D(struct cudaPitchedPtr pitched, int value,
                                     struct cudaExtent extent) {
  return device_call([&] { return fill(box_fill(pitched, value, extent), kLegacy, true); });
}

WEIR_CUDART cudaError_t cudaMemset3DAsync(struct cudaPitchedPtr pitched, int value,
                                          struct cudaExtent extent, cudaStream_t stream) {
  return device_call([&] { return fill(box_fill(pitched, value, extent), stream, false); });
}

WEIR_CUDART cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  return device_call([&] { return fill(row_fill(address, 0, value, bytes, 1), kLegacy, true); });
}

WEIR_CUDART cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes,
                                        cudaStream_t stream) {
  return device_call([&] { return fill(row_fill(address, 0, value, bytes, 1), stream, false); });
}

WEIR_CUDART cudaError_t cudaMemset2D(void* address, size_t pitch, int value, size_t width,
                                     size_t height) {
  return device_call(
      [&] { return fill(row_fill(address, pitch, value, width, height), kLegacy, true); });
}

WEIR_CUDART cudaError_t cudaMemset2DAsync(void* address, size_t pitch, int value, size_t width,
                                          size_t height, cudaStream_t stream) {
  return device_call(
      [&] { return fill(row_fill(address, pitch, value, width, height), stream, false); });
}

WEIR_CUDART cudaError_t cudaMemPrefetchAsync(const void* address, size_t bytes,
                                             struct cudaMemLocation, unsigned int flags,
                                             cudaStream_t stream) {
  return device_call([&] {
    const auto found = find_allocation(address);
    if (flags != 0 || !found.has_value() || found->kind != MemoryKind::kManaged) {
      return Error::kInvalidValue;
    }
    const Error error = check_range(address, bytes);
    return error == Error::kSuccess ? issue(stream, EmptyOperation{}) : error;
  });
}
