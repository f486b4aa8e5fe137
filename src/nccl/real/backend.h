// SPDX-License-Identifier: Apache-2.0
// Backend: the functions that the exported functions of this process may call: Weir's own, and a
// real NCCL's where one may be used. Determined once, at the first call that needs it. Thread-safe.
#pragma once

#include <string>

#include "nccl/api/functions.h"
#include "nccl/real/library.h"
#include "nccl/real/requested_options.h"

namespace weir::nccl {

struct Backend {
  RequestedBackend requested = RequestedBackend::kAuto;
  bool disabled = false;  // WEIR_DISABLE: everything goes to the real library
  const Table* own = nullptr;
  const Table* real = nullptr;           // nullptr: there is none, or none may be used
  const RealLibrary* library = nullptr;  // of `real`
  std::string reason;                    // why there is none
};

const Backend& backend();

// backend().real for warm calls, set together with it.
inline const Table* real_table = nullptr;

}  // namespace weir::nccl
