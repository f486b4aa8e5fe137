// SPDX-License-Identifier: Apache-2.0
// The runtime's copies and fills as the core's operations. Thread-safe.
#pragma once

#include "hostcuda/core/kernels.h"
#include "hostcuda/core/operation.h"
#include "hostcuda/runtime/functions.h"

namespace weir::hostcuda::runtime {

inline CopyOperation row_copy(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind) {
  CopyOperation operation;
  operation.destination = to;
  operation.source = from;
  operation.width_bytes = width;
  operation.height = height;
  operation.destination_pitch = to_pitch;
  operation.source_pitch = from_pitch;
  operation.kind = static_cast<CopyKind>(kind);
  return operation;
}

inline CopyOperation flat_copy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind) {
  return row_copy(to, bytes, from, bytes, bytes, 1, kind);
}

inline FillOperation row_fill(void* address, size_t pitch, int value, size_t width, size_t height) {
  FillOperation operation;
  operation.destination = address;
  operation.pitch_bytes = pitch;
  operation.value = static_cast<unsigned char>(value);
  operation.width = width;
  operation.height = height;
  return operation;
}

inline FillOperation box_fill(const struct cudaPitchedPtr& pitched, int value,
                              const struct cudaExtent& extent) {
  FillOperation operation =
      row_fill(pitched.ptr, pitched.pitch, value, extent.width, extent.height);
  operation.depth = extent.depth;
  operation.slice_bytes = pitched.pitch * pitched.ysize;
  return operation;
}

// kNotSupported for arrays, which only device code reads.
inline Error to_operation(const struct cudaMemcpy3DParms* box, CopyOperation* operation) {
  if (box == nullptr) return Error::kInvalidValue;
  if (box->srcArray != nullptr || box->dstArray != nullptr) return Error::kNotSupported;
  const size_t to_slice = box->dstPtr.pitch * box->dstPtr.ysize;
  const size_t from_slice = box->srcPtr.pitch * box->srcPtr.ysize;
  if (box->dstPtr.ptr == nullptr || box->srcPtr.ptr == nullptr) return Error::kInvalidValue;
  *operation = row_copy(static_cast<char*>(box->dstPtr.ptr) + box->dstPos.z * to_slice +
                            box->dstPos.y * box->dstPtr.pitch + box->dstPos.x,
                        box->dstPtr.pitch,
                        static_cast<const char*>(box->srcPtr.ptr) + box->srcPos.z * from_slice +
                            box->srcPos.y * box->srcPtr.pitch + box->srcPos.x,
                        box->srcPtr.pitch, box->extent.width, box->extent.height, box->kind);
  operation->depth = box->extent.depth;
  operation->destination_slice = to_slice;
  operation->source_slice = from_slice;
  return Error::kSuccess;
}

inline Error to_operation(const struct cudaMemcpy3DPeerParms* box, CopyOperation* operation) {
  if (box == nullptr) return Error::kInvalidValue;
  if (device_at(box->srcDevice) == nullptr || device_at(box->dstDevice) == nullptr) {
    return Error::kInvalidDevice;
  }
  const struct cudaMemcpy3DParms plain = {
      box->srcArray, box->srcPos, box->srcPtr, box->dstArray,
      box->dstPos,   box->dstPtr, box->extent, cudaMemcpyDeviceToDevice};
  return to_operation(&plain, operation);
}

inline Error to_operation(const struct cudaMemsetParams* fill, FillOperation* operation) {
  if (fill == nullptr || fill->dst == nullptr) return Error::kInvalidValue;
  if (fill->elementSize != 1 && fill->elementSize != 2 && fill->elementSize != 4) {
    return Error::kInvalidValue;
  }
  operation->destination = fill->dst;
  operation->pitch_bytes = fill->pitch;
  operation->value = fill->value;
  operation->element_bytes = fill->elementSize;
  operation->width = fill->width;
  operation->height = fill->height;
  return Error::kSuccess;
}

inline LaunchShape shape_of(const dim3& grid, const dim3& block, size_t shared_bytes) {
  return {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes};
}

inline Error to_operation(const struct cudaKernelNodeParams* kernel, KernelOperation* operation) {
  if (kernel == nullptr) return Error::kInvalidValue;
  if (kernel->extra != nullptr) return Error::kNotSupported;
  return make_kernel(kernel->func,
                     shape_of(kernel->gridDim, kernel->blockDim, kernel->sharedMemBytes),
                     kernel->kernelParams, operation);
}

}  // namespace weir::hostcuda::runtime
