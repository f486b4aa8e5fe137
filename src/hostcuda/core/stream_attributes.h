// SPDX-License-Identifier: Apache-2.0
// The attributes of streams, in CUDA's numbers and layouts (cudaLaunchAttributeID and the union
// cudaLaunchAttributeValue of 64 bytes, which the driver has under other names). Streams keep and
// return them; the priority is also what cudaStreamGetPriority returns. Nothing is scheduled by
// them. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "hostcuda/core/error.h"

namespace weir::hostcuda {

inline constexpr size_t kAttributeBytes = 64;

// Of cudaLaunchAttributeID, those that are valid for streams.
enum class StreamAttribute : int {
  kAccessPolicyWindow = 1,
  kSynchronizationPolicy = 3,
  kPriority = 8,
  kMemSyncDomainMap = 9,
  kMemSyncDomain = 10,
  kNvlinkUtilCentricScheduling = 16,
};

struct AccessPolicyWindow {
  void* base = nullptr;
  size_t bytes = 0;
  float hit_ratio = 0;
  int hit = 0;  // cudaAccessProperty
  int miss = 0;
};

// What a stream keeps, but for its priority.
struct StreamAttributes {
  AccessPolicyWindow window;
  int synchronization_policy = 1;  // cudaSyncPolicyAuto
  unsigned char default_domain = 0;
  unsigned char remote_domain = 1;
  int domain = 0;
  unsigned nvlink_centric = 0;
};

// `value`: kAttributeBytes. kInvalidValue for an attribute that is none of a stream, which is named
// once on stderr, and for values that CUDA does not document.
Error set_stream_attribute(const void* stream, int attribute, const void* value);
Error get_stream_attribute(const void* stream, int attribute, void* value);
// kInvalidValue if the streams belong to different devices.
Error copy_stream_attributes(const void* to, const void* from);

}  // namespace weir::hostcuda
