// SPDX-License-Identifier: Apache-2.0
// Weir's options of one call (weir/nccl_options.h), and the sibling communicators that run calls
// whose options belong to a communicator: determinism and transport. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "nccl/base/outcome.h"
#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {

class Comm;

struct CallOptions {
  int64_t timeout_ms = 0;  // 0: the communicator's
  bool deterministic = false;
  std::string transport;  // "": the communicator's

  bool need_sibling() const { return deterministic || !transport.empty(); }
  // The name of the sibling.
  std::string sibling() const { return (deterministic ? "deterministic " : "") + transport; }
};

// Reads Weir's options from the list.
Outcome read_options(const char* function, const ncclConfigExt_t* list, CallOptions* options);

// Collective: makes the sibling for these options, if the communicator has none yet.
Outcome make_sibling(const char* function, Comm& comm, const CallOptions& options);

}  // namespace weir::nccl
