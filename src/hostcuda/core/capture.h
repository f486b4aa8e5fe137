// SPDX-License-Identifier: Apache-2.0
// Stream capture: work that is enqueued in a capturing stream becomes nodes of a graph. Streams
// join by waiting for an event that was recorded in the capture. Calls that CUDA forbids meanwhile
// fail with CUDA's error and invalidate the capture as in CUDA. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hostcuda/core/device.h"
#include "hostcuda/core/error.h"
#include "hostcuda/core/event.h"
#include "hostcuda/core/operation.h"
#include "hostcuda/core/stream.h"

namespace weir::hostcuda {

struct Executable;

// The numbers of CUDA's cudaStreamCaptureMode and cudaStreamCaptureStatus.
enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

// `graph` null: a new one; otherwise nodes are added to it, the first after `after`.
Error begin_capture(const void* stream, CaptureMode mode, void* graph, const void* const* after,
                    size_t count);
Error end_capture(const void* stream, void** graph);

struct CaptureInfo {
  CaptureStatus status = CaptureStatus::kNone;
  uint64_t id = 0;
  void* graph = nullptr;
  void* const* after = nullptr;  // valid until the next call on the stream
  size_t after_count = 0;
};
Error capture_info(const void* stream, CaptureInfo* info);
Error update_capture(const void* stream, const void* const* nodes, size_t count, bool replace);

CaptureMode exchange_thread_mode(CaptureMode mode);

// ---- For the rest of the core -------------------------------------------------------------------

// Adds a node to the graph that `stream` captures.
Error capture_operation(const StreamRef& stream, Operation operation);
// A graph that is launched into a capturing stream becomes a child graph.
Error capture_executable(const StreamRef& stream, const Executable& executable);
Error capture_record(const StreamRef& stream, Event& event);
// Sets *handled when the wait concerns a capture. Otherwise it is an ordinary wait.
Error capture_wait(const StreamRef& stream, const EventRef& event, bool external, bool* handled);

// For calls that CUDA documents as potentially unsafe.
Error check_unsafe();
// For what cannot be captured at all.
Error refuse_capture(const StreamRef& stream);
// For work in the legacy stream, which would wait for a capturing stream.
Error check_implicit(const StreamRef& stream);
// For calls that query or wait for a stream or a whole device.
Error check_wait(const StreamRef& stream);
Error check_device_wait(const Device& device);
// The stream is destroyed: its capture becomes invalid, or ends if the stream began it.
void abandon_capture(const StreamRef& stream);

}  // namespace weir::hostcuda
