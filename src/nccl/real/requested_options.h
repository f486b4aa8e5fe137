// SPDX-License-Identifier: Apache-2.0
// What the environment requests: whether the real NCCL or Weir does the work, and whether a real
// NCCL is looked for at all. For the library and for weir-info doctor. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace weir::nccl {

enum class RequestedBackend : uint8_t { kAuto, kWeir, kNccl };  // WEIR_BACKEND

struct RequestedOptions {
  RequestedBackend backend = RequestedBackend::kAuto;
  bool disabled = false;  // WEIR_DISABLE: everything goes to the real library
  std::string library;    // WEIR_NCCL_LIBRARY; "": it is searched for
};

RequestedOptions requested_options_of_environment();

// Whether to look for a real NCCL; when neither is requested, CUDA's driver decides. False:
// `reason` says why not.
bool looks_for_real(const RequestedOptions& requested, std::string* reason);

// Whether a variable is 1, true or on.
bool is_on(const char* name);

}  // namespace weir::nccl
