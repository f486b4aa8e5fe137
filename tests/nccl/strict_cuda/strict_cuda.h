// SPDX-License-Identifier: Apache-2.0
// A strict libcuda.so.1 for tests of stream order: a thread of its own carries out what streams
// hold, memory of the device cannot be touched by the host (its addresses fault), calls that a
// stream capture forbids fail and spoil the capture, and a launch queue has an end (world.h). Only
// what the tests and libnccl.so.2 call is there; of kernels, those of that library, which reach
// memory of their own device and of those made accessible. Thread-safe.
#pragma once

#include "support/cuda_prototypes.h"

#define STRICT_CUDA_API extern "C" __attribute__((visibility("default"))) weir::cuda::Result

namespace weir::cuda {
using GraphExec = void*;
inline constexpr Result kErrorInvalidValue = 1;
inline constexpr Result kErrorNotInitialized = 3;
inline constexpr Result kErrorInvalidContext = 201;
inline constexpr Result kErrorNotFound = 500;
inline constexpr Result kErrorCaptureUnsupported = 900;
inline constexpr Result kErrorCaptureInvalidated = 901;
inline constexpr Result kErrorCaptureIsolation = 905;
inline constexpr Result kErrorInjected = 999;
}  // namespace weir::cuda

// Functions that the table of the driver's functions does not have.
STRICT_CUDA_API cuGraphInstantiateWithFlags(weir::cuda::GraphExec* exec, weir::cuda::Graph graph,
                                            unsigned long long flags);
STRICT_CUDA_API cuGraphDestroy(weir::cuda::Graph graph);
STRICT_CUDA_API cuGraphExecDestroy(weir::cuda::GraphExec exec);

// What follows no other driver has: the symbols are weak, and a test that needs them asks for them
// with WEIR_NEEDS_STRICT_CUDA (support/driver_needs.h).
#define STRICT_CUDA_TESTS extern "C" __attribute__((visibility("default"), weak))

// The call of `function` after `calls` more of them fails, once, with kErrorInjected.
STRICT_CUDA_TESTS void strict_cuda_fail(const char* function, int calls);
// A copy is carried out so long after it was enqueued, at the earliest.
STRICT_CUDA_TESTS void strict_cuda_slow(int copy_ms);
// User objects that are alive: one for each recording that a graph holds.
STRICT_CUDA_TESTS int strict_cuda_user_objects();
// Events that exist.
STRICT_CUDA_TESTS int strict_cuda_events();
// Copies that have been carried out between a device and memory of the host.
STRICT_CUDA_TESTS int strict_cuda_host_copies();
// The same within a device and between devices, by a thread that uses this one.
STRICT_CUDA_TESTS int strict_cuda_device_copies(int device);
// Kernels that have been carried out.
STRICT_CUDA_TESTS int strict_cuda_kernels();
// Of the kernels that copy from several devices at once, the latest one of a device: the devices
// that it has copied from, in the order of the copies. Returns how many; 0: there was none.
STRICT_CUDA_TESTS int strict_cuda_copied_from(int device, int* from, int capacity);
// A hardware queue, or a stream that has one of its own, has room for so many calls; 1024 at first.
STRICT_CUDA_TESTS void strict_cuda_queue(int calls);
// The context of a device is lost: its streams do nothing more, and calls with them return `error`.
STRICT_CUDA_TESTS void strict_cuda_lose(int device, int error);
// What the first launch of a kernel does that is loaded lazily: waits for the device with the
// context's lock.
STRICT_CUDA_TESTS void strict_cuda_load_lazily();
