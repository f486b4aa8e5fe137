// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/operation.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "hostcuda/core/capture.h"
#include "hostcuda/core/memory.h"

namespace weir::hostcuda {

namespace {

constexpr int kSpins = 2000;
constexpr auto kFirstNap = std::chrono::microseconds(5);
constexpr auto kLongestNap = std::chrono::microseconds(200);

template <class T>
bool holds(T current, T value, unsigned condition) {
  switch (condition) {
    case 0:  // greater or equal, modulo the range of the numbers
      return static_cast<std::make_signed_t<T>>(current - value) >= 0;
    case 1:
      return current == value;
    case 2:
      return (current & value) != 0;
    default:
      return static_cast<T>(~(current | value)) != 0;
  }
}

template <class T>
void wait_value(const ValueOperation& operation, const Cancel& cancel) {
  const T* const address = static_cast<const T*>(operation.address);
  const T value = static_cast<T>(operation.value);
  const unsigned condition = operation.flags & 3u;
  for (int i = 0; i < kSpins; ++i) {
    if (holds(__atomic_load_n(address, __ATOMIC_SEQ_CST), value, condition)) return;
    if (i % 64 == 63) std::this_thread::yield();
  }
  auto nap = kFirstNap;
  while (!cancel.load()) {
    if (holds(__atomic_load_n(address, __ATOMIC_SEQ_CST), value, condition)) return;
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, kLongestNap);
  }
}

void run(const ValueBatch& batch, const Cancel& cancel) {
  for (const ValueOperation& operation : batch.operations) {
    switch (operation.type) {
      case ValueOperation::Type::kWait32:
        wait_value<uint32_t>(operation, cancel);
        break;
      case ValueOperation::Type::kWait64:
        wait_value<uint64_t>(operation, cancel);
        break;
      case ValueOperation::Type::kWrite32:
        if (cancel.load()) return;
        __atomic_store_n(static_cast<uint32_t*>(operation.address),
                         static_cast<uint32_t>(operation.value), __ATOMIC_SEQ_CST);
        break;
      case ValueOperation::Type::kWrite64:
        if (cancel.load()) return;
        __atomic_store_n(static_cast<uint64_t*>(operation.address), operation.value,
                         __ATOMIC_SEQ_CST);
        break;
      case ValueOperation::Type::kFlush:
      case ValueOperation::Type::kBarrier:
        std::atomic_thread_fence(std::memory_order_seq_cst);
        break;
    }
  }
}

void run(const CopyOperation& operation) {
  const char* const source = operation.staged != nullptr
                                 ? operation.staged->data()
                                 : static_cast<const char*>(operation.source);
  auto* const destination = static_cast<char*>(operation.destination);
  for (size_t z = 0; z < operation.depth; ++z) {
    for (size_t y = 0; y < operation.height; ++y) {
      std::memmove(destination + z * operation.destination_slice + y * operation.destination_pitch,
                   source + z * operation.source_slice + y * operation.source_pitch,
                   operation.width_bytes);
    }
  }
}

void run(const FillOperation& operation) {
  for (size_t i = 0; i < operation.height * operation.depth; ++i) {
    char* const row = static_cast<char*>(operation.destination) +
                      i / operation.height * operation.slice_bytes +
                      i % operation.height * operation.pitch_bytes;
    if (operation.element_bytes == 1) {
      std::memset(row, static_cast<int>(operation.value & 0xff), operation.width);
      continue;
    }
    for (size_t x = 0; x < operation.width; ++x) {
      std::memcpy(row + x * operation.element_bytes, &operation.value, operation.element_bytes);
    }
  }
}

void run(const KernelOperation& operation, const Device& device, const Cancel& cancel) {
  std::vector<void*> arguments;
  for (const auto& argument : operation.arguments) {
    arguments.push_back(const_cast<char*>(argument.data()));
  }
  weir_hostcuda_launch launch = operation.launch;
  launch.device = device.index;
  launch.argument_count = arguments.size();
  launch.arguments = arguments.data();
  if (operation.waits != nullptr) {
    operation.waits(launch, cancel);
  } else {
    operation.function(&launch, operation.context);
  }
}

size_t extent(size_t width, size_t height, size_t depth, size_t pitch, size_t slice) {
  return (depth - 1) * slice + (height - 1) * pitch + width;
}

size_t source_bytes(const CopyOperation& operation) {
  return extent(operation.width_bytes, operation.height, operation.depth, operation.source_pitch,
                operation.source_slice);
}
size_t destination_bytes(const CopyOperation& operation) {
  return extent(operation.width_bytes, operation.height, operation.depth,
                operation.destination_pitch, operation.destination_slice);
}
size_t bytes_of(const FillOperation& operation) {
  return extent(operation.width * operation.element_bytes, operation.height, operation.depth,
                operation.pitch_bytes, operation.slice_bytes);
}
// What a memory operation accesses; no bytes for those that access nothing.
size_t bytes_of(ValueOperation::Type type) {
  switch (type) {
    case ValueOperation::Type::kWait32:
    case ValueOperation::Type::kWrite32:
      return 4;
    case ValueOperation::Type::kWait64:
    case ValueOperation::Type::kWrite64:
      return 8;
    default:
      return 0;
  }
}

// A use of memory that is not there: it may be gone since the operation was enqueued, or its graph
// made.
struct Missing {
  const char* use;
  const void* address;
  size_t bytes;
};

std::optional<Missing> find_missing(const CopyOperation& operation) {
  if (operation.width_bytes == 0 || operation.height == 0 || operation.depth == 0) return {};
  size_t bytes = source_bytes(operation);
  if (operation.staged == nullptr &&
      check_presence(operation.source, bytes, kRead) != Error::kSuccess) {
    return Missing{"copy from", operation.source, bytes};
  }
  bytes = destination_bytes(operation);
  if (check_presence(operation.destination, bytes, kWrite) != Error::kSuccess) {
    return Missing{"copy to", operation.destination, bytes};
  }
  return {};
}
std::optional<Missing> find_missing(const FillOperation& operation) {
  if (operation.width == 0 || operation.height == 0 || operation.depth == 0) return {};
  const size_t bytes = bytes_of(operation);
  if (check_presence(operation.destination, bytes, kWrite) == Error::kSuccess) return {};
  return Missing{"fill of", operation.destination, bytes};
}
std::optional<Missing> find_missing(const ValueBatch& batch) {
  for (const ValueOperation& operation : batch.operations) {
    const size_t bytes = bytes_of(operation.type);
    const bool waits = operation.type == ValueOperation::Type::kWait32 ||
                       operation.type == ValueOperation::Type::kWait64;
    if (bytes != 0 &&
        check_presence(operation.address, bytes, waits ? kRead : kWrite) != Error::kSuccess) {
      return Missing{waits ? "wait for the value of" : "write of the value of", operation.address,
                     bytes};
    }
  }
  return {};
}

void fail(Device& device, const Missing& missing) {
  std::fprintf(stderr,
               "hostcuda: device %d: %s %zu bytes at %p: they were freed, unmapped or are not "
               "accessible when the stream comes there; synchronize before memory goes, and launch "
               "no graph that uses it; all calls for the device fail from now on\n",
               device.index, missing.use, missing.bytes, missing.address);
  device.fail();
}

enum class Place { kPageable, kPinned, kDevice, kManaged };

Place place_of(const void* address) {
  const auto found = find_allocation(address);
  if (!found.has_value()) return Place::kPageable;
  if (found->on_host()) return Place::kPinned;
  return found->kind == MemoryKind::kManaged ? Place::kManaged : Place::kDevice;
}

bool direction_fits(CopyKind kind, Place source, Place destination) {
  const auto reachable = [](Place place) { return place != Place::kPageable; };
  const auto host = [](Place place) { return place != Place::kDevice; };
  switch (kind) {
    case CopyKind::kHostToHost:
      return host(source) && host(destination);
    case CopyKind::kHostToDevice:
      return host(source) && reachable(destination);
    case CopyKind::kDeviceToHost:
      return reachable(source) && host(destination);
    case CopyKind::kDeviceToDevice:
      return reachable(source) && reachable(destination);
    case CopyKind::kDefault:
      return true;
  }
  return false;
}

// What synchronous calls need before they may enqueue.
Error check_synchronous(const StreamRef& stream) {
  if (in_host_function()) return Error::kNotPermitted;
  if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
  return check_unsafe();
}

Error enqueue_and_wait(const StreamRef& stream, Operation operation) {
  Device* const device = &stream->device();
  Position position;
  const Error error = enqueue(
      stream,
      [operation = std::move(operation), device](const Cancel& cancel) {
        execute(operation, *device, cancel);
      },
      &position);
  if (error != Error::kSuccess) return error;
  stream->wait(position.index);
  return device->failure();
}

}  // namespace

void execute(const Operation& operation, Device& device, const Cancel& cancel) {
  if (cancel.load()) return;
  if (const auto* copied = std::get_if<CopyOperation>(&operation)) {
    if (const auto missing = find_missing(*copied)) return fail(device, *missing);
    run(*copied);
  } else if (const auto* filled = std::get_if<FillOperation>(&operation)) {
    if (const auto missing = find_missing(*filled)) return fail(device, *missing);
    run(*filled);
  } else if (const auto* values = std::get_if<ValueBatch>(&operation)) {
    if (const auto missing = find_missing(*values)) return fail(device, *missing);
    run(*values, cancel);
  } else if (const auto* host = std::get_if<HostOperation>(&operation)) {
    const HostFunctionScope scope(device);
    host->function(host->data);
  } else if (const auto* kernel = std::get_if<KernelOperation>(&operation)) {
    run(*kernel, device, cancel);
  }
}

Error issue(const void* handle, Operation operation) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (in_host_function()) return Error::kNotPermitted;
  if (stream->capture.load() != nullptr) return capture_operation(stream, std::move(operation));
  if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
  Device* const device = &stream->device();
  return enqueue(stream, [operation = std::move(operation), device](const Cancel& cancel) {
    execute(operation, *device, cancel);
  });
}

Error copy(CopyOperation operation, const void* handle, bool synchronous) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (static_cast<int>(operation.kind) < 0 || operation.kind > CopyKind::kDefault) {
    return Error::kInvalidCopyDirection;
  }
  if (synchronous) {
    if (const Error error = check_synchronous(stream); error != Error::kSuccess) return error;
  } else if (in_host_function()) {
    return Error::kNotPermitted;
  }
  if (operation.width_bytes == 0 || operation.height == 0 || operation.depth == 0) {
    return Error::kSuccess;
  }
  if (operation.source == nullptr || operation.destination == nullptr) return Error::kInvalidValue;
  const bool rows = operation.height > 1 || operation.depth > 1;
  if (rows && (operation.source_pitch < operation.width_bytes ||
               operation.destination_pitch < operation.width_bytes)) {
    return Error::kInvalidPitch;
  }
  if (check_range(operation.source, source_bytes(operation), kRead) != Error::kSuccess ||
      check_range(operation.destination, destination_bytes(operation), kWrite) != Error::kSuccess ||
      find_missing(operation).has_value()) {
    return Error::kInvalidValue;
  }
  const Place source = place_of(operation.source);
  const Place destination = place_of(operation.destination);
  if (!direction_fits(operation.kind, source, destination)) return Error::kInvalidValue;
  if (stream->capture.load() != nullptr) {
    return capture_operation(stream, std::move(operation));
  }
  const bool from_host = source == Place::kPageable || source == Place::kPinned;
  const bool to_host = destination == Place::kPageable || destination == Place::kPinned;
  bool waits = destination == Place::kPageable || (from_host && to_host);
  if (synchronous) waits = from_host || to_host;
  if (waits) {
    if (const Error error = check_implicit(stream); error != Error::kSuccess) return error;
    return enqueue_and_wait(stream, std::move(operation));
  }
  if (source == Place::kPageable) {
    // The caller may change its memory as soon as this call returns.
    const auto* const first = static_cast<const char*>(operation.source);
    operation.staged =
        std::make_shared<const std::vector<char>>(first, first + source_bytes(operation));
  }
  return issue(handle, std::move(operation));
}

Error fill(FillOperation operation, const void* handle, bool synchronous) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  if (synchronous) {
    if (const Error error = check_synchronous(stream); error != Error::kSuccess) return error;
  }
  if (operation.width == 0 || operation.height == 0 || operation.depth == 0) {
    return Error::kSuccess;
  }
  const size_t width_bytes = operation.width * operation.element_bytes;
  if ((operation.height > 1 || operation.depth > 1) && operation.pitch_bytes < width_bytes) {
    return Error::kInvalidValue;
  }
  const Place place = place_of(operation.destination);
  if (place == Place::kPageable) return Error::kInvalidValue;
  if (check_range(operation.destination, bytes_of(operation), kWrite) != Error::kSuccess ||
      find_missing(operation).has_value()) {
    return Error::kInvalidValue;
  }
  if (synchronous && place != Place::kDevice) return enqueue_and_wait(stream, operation);
  return issue(handle, operation);
}

Error host_function(const void* stream, HostOperation operation) {
  if (operation.function == nullptr) return Error::kInvalidValue;
  return issue(stream, operation);
}

Error value_batch(const void* stream, ValueBatch batch) {
  if (batch.operations.empty() || batch.operations.size() > kValueBatchMax) {
    return Error::kInvalidValue;
  }
  for (const ValueOperation& operation : batch.operations) {
    size_t bytes = 0;
    unsigned access = kWrite;
    unsigned flags = 0;
    switch (operation.type) {
      case ValueOperation::Type::kWait32:
      case ValueOperation::Type::kWait64:
        bytes = operation.type == ValueOperation::Type::kWait32 ? 4 : 8;
        flags = 3u | 1u << 30;
        access = kRead;
        break;
      case ValueOperation::Type::kWrite32:
      case ValueOperation::Type::kWrite64:
        bytes = operation.type == ValueOperation::Type::kWrite32 ? 4 : 8;
        flags = 1;
        break;
      case ValueOperation::Type::kBarrier:
        flags = 1;
        break;
      case ValueOperation::Type::kFlush:
        break;
      default:
        return Error::kInvalidValue;
    }
    if ((operation.flags & ~flags) != 0) return Error::kInvalidValue;
    if (bytes == 0) continue;
    if (reinterpret_cast<uintptr_t>(operation.address) % bytes != 0) return Error::kInvalidValue;
    // As in CUDA, ordinary host memory has no device address.
    if (place_of(operation.address) == Place::kPageable ||
        check_range(operation.address, bytes, access) != Error::kSuccess) {
      return Error::kInvalidValue;
    }
  }
  return issue(stream, std::move(batch));
}

}  // namespace weir::hostcuda
