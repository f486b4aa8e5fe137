// SPDX-License-Identifier: Apache-2.0
// What streams and graphs do, as data: the same operation is enqueued in a stream, or becomes a
// node of the graph that the stream captures. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <weir/hostcuda.h>

#include "hostcuda/core/error.h"
#include "hostcuda/core/event.h"
#include "hostcuda/core/stream.h"

namespace weir::hostcuda {

class Graph;
class GraphMemory;
class Pool;

enum class CopyKind : int {
  kHostToHost = 0,
  kHostToDevice = 1,
  kDeviceToHost = 2,
  kDeviceToDevice = 3,
  kDefault = 4,
};

// A box of bytes; a plain copy has height and depth 1.
struct CopyOperation {
  void* destination = nullptr;
  const void* source = nullptr;
  size_t width_bytes = 0;
  size_t height = 1;
  size_t depth = 1;
  size_t destination_pitch = 0;
  size_t source_pitch = 0;
  size_t destination_slice = 0;
  size_t source_slice = 0;
  CopyKind kind = CopyKind::kDefault;
  std::shared_ptr<const std::vector<char>> staged;  // instead of `source`
};

struct FillOperation {
  void* destination = nullptr;
  size_t pitch_bytes = 0;
  uint32_t value = 0;
  unsigned element_bytes = 1;  // 1, 2 or 4
  size_t width = 0;            // in elements
  size_t height = 1;
  size_t depth = 1;
  size_t slice_bytes = 0;  // from one layer of rows to the next
};

struct HostOperation {
  void (*function)(void*) = nullptr;
  void* data = nullptr;
};

// The numbers of CUDA's CUstreamBatchMemOpType and its flags.
struct ValueOperation {
  enum class Type : unsigned {
    kWait32 = 1,
    kWrite32 = 2,
    kFlush = 3,
    kWait64 = 4,
    kWrite64 = 5,
    kBarrier = 6,
  };
  Type type = Type::kBarrier;
  void* address = nullptr;
  uint64_t value = 0;
  unsigned flags = 0;
};
struct ValueBatch {
  std::vector<ValueOperation> operations;
};
inline constexpr size_t kValueBatchMax = 255;

struct KernelOperation {
  const void* symbol = nullptr;
  std::string name;
  weir_hostcuda_kernel function = nullptr;
  void* context = nullptr;
  // Of a kernel that waits for others: instead of `function`; returns once it is cancelled.
  void (*waits)(const weir_hostcuda_launch& launch, const Cancel& cancel) = nullptr;
  weir_hostcuda_launch launch{};
  std::vector<std::vector<char>> arguments;  // copies of the launch's arguments
};

struct RecordOperation {
  EventRef event;
};
struct AwaitOperation {
  EventRef event;
};
struct FreeOperation {
  void* address = nullptr;
};
struct AllocateOperation {
  void* address = nullptr;
  size_t bytes = 0;
  std::shared_ptr<GraphMemory> memory;
};
struct ChildOperation {
  std::shared_ptr<Graph> graph;
};
struct EmptyOperation {};

using Operation = std::variant<EmptyOperation, CopyOperation, FillOperation, HostOperation,
                               ValueBatch, KernelOperation, RecordOperation, AwaitOperation,
                               AllocateOperation, FreeOperation, ChildOperation>;

// Executes an operation that depends on nothing else; the caller handles records and waits of
// events.
void execute(const Operation& operation, Device& device, const Cancel& cancel);

// Enqueues on the stream of the handle, or adds a node to the graph that it captures.
Error issue(const void* stream, Operation operation);

// Each checks its arguments, and blocks where CUDA documents that it does.
Error copy(CopyOperation operation, const void* stream, bool synchronous);
Error fill(FillOperation operation, const void* stream, bool synchronous);
Error host_function(const void* stream, HostOperation operation);
Error value_batch(const void* stream, ValueBatch batch);

}  // namespace weir::hostcuda
