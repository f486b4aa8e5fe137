// SPDX-License-Identifier: Apache-2.0
// What the environment says of who is to do the work, and whether a real NCCL is looked for at all. For the
// library and for weir-info doctor. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace weir::nccl {

enum class Wish : uint8_t { kAuto, kWeir, kNccl };  // WEIR_BACKEND

struct Wishes {
  Wish wish = Wish::kAuto;
  bool disabled = false;  // WEIR_DISABLE: everything goes to the real library
  std::string library;    // WEIR_NCCL_LIBRARY; "": it is searched for
};

Wishes wishes_of_environment();

// Looks whether CUDA's driver is there where that decides. False: `reason` says why not.
bool looks_for_real(const Wishes& wishes, std::string* reason);

// Whether a variable is 1, true or on.
bool is_on(const char* name);

}  // namespace weir::nccl
