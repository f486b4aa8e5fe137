// SPDX-License-Identifier: Apache-2.0
// The choice between the real NCCL and Weir's own transports for a communicator: each rank says
// what it can do and what was requested there, and every rank draws the same conclusion from all
// answers. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "nccl/cuda/device_query.h"
#include "nccl/real/backend.h"

namespace weir::nccl {

// What a rank tells the others, as it lies in memory. A rank with another layout sends another
// number of bytes, which Weir refuses.
struct Candidate {
  static constexpr size_t kReasonBytes = 160;

  uint32_t requested = 0;          // RequestedBackend
  uint32_t able = 0;               // 1: a real library is behind it, and it has the device
  int32_t version = 0;             // of the real library
  int32_t device = 0;              // ordinal, for the text
  DeviceId device_id{};            // equal on two ranks: they share the device
  char reason[kReasonBytes] = {};  // why not able

  void say(std::string_view why);
};
static_assert(sizeof(Candidate) == 32 + Candidate::kReasonBytes);

struct Choice {
  bool real = false;
  bool impossible = false;  // what is forced is not possible: an error, and no communicator
  std::string reason;       // of the choice or of the error
};

// Of this process, for a communicator on `device`.
Candidate candidate_of(const Backend& backend, int device);

// `all` by rank; what they hold is not trusted.
Choice choose(std::span<const Candidate> all);

}  // namespace weir::nccl
