// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/stream_attributes.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "hostcuda/core/device.h"
#include "hostcuda/core/facts.h"

namespace weir::hostcuda {

namespace {

constexpr int kWindowBytesMax = 109;  // of cudaDeviceAttr
constexpr int kDomainCount = 126;

// In the order of their numbers.
constexpr const char* kNames[] = {
    "Ignore",
    "AccessPolicyWindow",
    "Cooperative",
    "SynchronizationPolicy",
    "ClusterDimension",
    "ClusterSchedulingPolicyPreference",
    "ProgrammaticStreamSerialization",
    "ProgrammaticEvent",
    "Priority",
    "MemSyncDomainMap",
    "MemSyncDomain",
    "PreferredClusterDimension",
    "LaunchCompletionEvent",
    "DeviceUpdatableKernelNode",
    "PreferredSharedMemoryCarveout",
    "15",
    "NvlinkUtilCentricScheduling",
};

Error refuse(int attribute) {
  static std::atomic<bool> told{false};
  if (!told.exchange(true)) {
    const bool named = attribute >= 0 && static_cast<size_t>(attribute) < std::size(kNames);
    std::fprintf(stderr, "hostcuda: the launch attribute %d (%s) is none of a stream\n", attribute,
                 named ? kNames[attribute] : "unknown");
  }
  return Error::kInvalidValue;
}

template <class T>
T read(const void* value, size_t offset = 0) {
  T result;
  std::memcpy(&result, static_cast<const char*>(value) + offset, sizeof result);
  return result;
}

template <class T>
void write(void* value, const T& from, size_t offset = 0) {
  std::memcpy(static_cast<char*>(value) + offset, &from, sizeof from);
}

int fact(const Device& device, int attribute) {
  int value = 0;
  (void)device_attribute(device, attribute, &value);
  return value;
}

Error set_window(const Device& device, const void* value, AccessPolicyWindow* out) {
  const auto window = read<AccessPolicyWindow>(value);
  const auto bytes_max = static_cast<size_t>(fact(device, kWindowBytesMax));
  const bool fits = window.bytes <= bytes_max && window.hit_ratio >= 0 && window.hit_ratio <= 1;
  const bool known = window.hit >= 0 && window.hit <= 2 && window.miss >= 0 && window.miss <= 1;
  if (!fits || !known) return Error::kInvalidValue;
  *out = window;
  return Error::kSuccess;
}

template <class T>
Error set_number(const void* value, T first, T last, T* out) {
  const auto number = read<T>(value);
  if (number < first || number > last) return Error::kInvalidValue;
  *out = number;
  return Error::kSuccess;
}

}  // namespace

Error set_stream_attribute(const void* handle, int attribute, const void* value) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  const Device& device = stream->device();
  StreamAttributes all = stream->attributes();
  Error error = Error::kSuccess;
  switch (static_cast<StreamAttribute>(attribute)) {
    case StreamAttribute::kAccessPolicyWindow:
      error = set_window(device, value, &all.window);
      break;
    case StreamAttribute::kSynchronizationPolicy:
      error = set_number(value, 1, 4, &all.synchronization_policy);
      break;
    case StreamAttribute::kPriority:
      stream->set_priority(std::clamp(read<int>(value), kPriorityHigh, kPriorityLow));
      return Error::kSuccess;
    case StreamAttribute::kMemSyncDomainMap: {
      const auto of_default = read<unsigned char>(value);
      const auto of_remote = read<unsigned char>(value, 1);
      if (std::max(of_default, of_remote) >= fact(device, kDomainCount)) {
        return Error::kInvalidValue;
      }
      all.default_domain = of_default;
      all.remote_domain = of_remote;
      break;
    }
    case StreamAttribute::kMemSyncDomain:
      error = set_number(value, 0, 1, &all.domain);
      break;
    case StreamAttribute::kNvlinkUtilCentricScheduling:
      error = set_number(value, 0U, 1U, &all.nvlink_centric);
      break;
    default:
      return refuse(attribute);
  }
  if (error == Error::kSuccess) stream->set_attributes(all);
  return error;
}

Error get_stream_attribute(const void* handle, int attribute, void* value) {
  const StreamRef stream = find_stream(handle);
  if (stream == nullptr) return Error::kInvalidHandle;
  const StreamAttributes all = stream->attributes();
  unsigned char found[kAttributeBytes] = {};
  switch (static_cast<StreamAttribute>(attribute)) {
    case StreamAttribute::kAccessPolicyWindow:
      write(found, all.window);
      break;
    case StreamAttribute::kSynchronizationPolicy:
      write(found, all.synchronization_policy);
      break;
    case StreamAttribute::kPriority:
      write(found, stream->priority());
      break;
    case StreamAttribute::kMemSyncDomainMap:
      write(found, all.default_domain);
      write(found, all.remote_domain, 1);
      break;
    case StreamAttribute::kMemSyncDomain:
      write(found, all.domain);
      break;
    case StreamAttribute::kNvlinkUtilCentricScheduling:
      write(found, all.nvlink_centric);
      break;
    default:
      return refuse(attribute);
  }
  std::memcpy(value, found, sizeof found);
  return Error::kSuccess;
}

Error copy_stream_attributes(const void* to, const void* from) {
  const StreamRef target = find_stream(to);
  const StreamRef source = find_stream(from);
  if (target == nullptr || source == nullptr) return Error::kInvalidHandle;
  if (&target->device() != &source->device()) return Error::kInvalidValue;
  target->set_attributes(source->attributes());
  target->set_priority(source->priority());
  return Error::kSuccess;
}

}  // namespace weir::hostcuda
