// SPDX-License-Identifier: Apache-2.0
// Backend: what stands behind the exported functions of this process, found out once, when the first
// of them needs it: Weir's own functions, and a real NCCL where there is one that may be used.
// Thread-safe.
#pragma once

#include <string>

#include "nccl/functions.h"
#include "nccl/real_library.h"
#include "nccl/wishes.h"

namespace weir::nccl {

struct Backend {
  Wish wish = Wish::kAuto;
  bool disabled = false;  // WEIR_DISABLE: everything goes to the real library
  const Table* own = nullptr;
  const Table* real = nullptr;           // nullptr: there is none, or none may be used
  const RealLibrary* library = nullptr;  // of `real`
  std::string reason;                    // why there is none
};

const Backend& backend();

}  // namespace weir::nccl
