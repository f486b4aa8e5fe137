// SPDX-License-Identifier: Apache-2.0
#include "nccl/forward/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

namespace weir::nccl {

namespace {

std::string reason_of(const Candidate& it) {
  return std::string(it.reason, strnlen(it.reason, sizeof it.reason));
}

bool wants(const Candidate& it, RequestedBackend requested) {
  return it.requested == static_cast<uint32_t>(requested);
}

}  // namespace

void Candidate::say(std::string_view why) {
  const size_t bytes = std::min(why.size(), sizeof reason - 1);
  std::memcpy(reason, why.data(), bytes);
  reason[bytes] = '\0';
}

Candidate candidate_of(const Backend& backend, int device) {
  Candidate it;
  it.requested = static_cast<uint32_t>(backend.requested);
  it.device = device;
  if (backend.real == nullptr) {
    it.say(backend.reason);
    return it;
  }
  it.version = backend.library->version();
  if (backend.requested == RequestedBackend::kNccl) {
    it.able = 1;  // the library itself reports what is missing
    return it;
  }
  std::string why;
  const int count = cuda_device_count(&why);
  if (count == 0) {
    it.say(why);
  } else if (device >= count || !cuda_device_id(device, &it.device_id)) {
    it.say(fmt::format("there is no device {}: the CUDA driver has {}", device, count));
  } else {
    it.able = 1;
  }
  return it;
}

Choice choose(std::span<const Candidate> all) {
  Choice choice;
  const auto say = [&](std::string reason) {
    choice.reason = std::move(reason);
    return choice;
  };
  int forces = -1;    // the first rank with WEIR_BACKEND=nccl
  int declines = -1;  // the first rank with WEIR_BACKEND=weir
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (forces < 0 && wants(all[rank], RequestedBackend::kNccl)) forces = static_cast<int>(rank);
    if (declines < 0 && wants(all[rank], RequestedBackend::kWeir))
      declines = static_cast<int>(rank);
  }
  if (forces >= 0 && declines >= 0) {
    choice.impossible = true;
    return say(fmt::format(
        "WEIR_BACKEND is nccl on rank {} and weir on rank {}: set it to the same on all ranks",
        forces, declines));
  }
  if (declines >= 0) return say(fmt::format("WEIR_BACKEND=weir on rank {}", declines));
  choice.impossible = forces >= 0;  // until every check has passed
  const std::string forced = forces >= 0 ? "WEIR_BACKEND=nccl, but " : "";
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].able != 1) {
      return say(fmt::format("{}on rank {} {}", forced, rank, reason_of(all[rank])));
    }
  }
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].version == all[0].version) continue;
    return say(fmt::format("{}the real NCCL is {} on rank 0 and {} on rank {}", forced,
                           version_text(all[0].version), version_text(all[rank].version), rank));
  }
  // A user that forces NCCL may know that the library can share devices.
  if (forces < 0) {
    std::map<DeviceId, size_t> owners;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const auto [owner, is_new] = owners.emplace(all[rank].device_id, rank);
      if (!is_new) {
        return say(fmt::format("ranks {} and {} share a GPU (device {} of rank {})", owner->second,
                               rank, all[rank].device, rank));
      }
    }
  }
  choice.real = true;
  choice.impossible = false;
  return say(forces >= 0 ? fmt::format("WEIR_BACKEND=nccl on rank {}", forces)
                         : "every rank has a GPU of its own and the same NCCL");
}

}  // namespace weir::nccl
