// SPDX-License-Identifier: Apache-2.0
// Reading ncclConfig_t, ncclCollConfig_t and ncclSimInfo_t as a caller of any version passes them:
// nothing beyond the caller's size is read, and fields newer than its version keep their default.
// Thread-safe.
#pragma once

#include <string>

#include "nccl/outcome.h"
#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {

// What Weir uses of a configuration; the rest is checked and has no effect on host memory.
struct Config {
  bool blocking = true;
  std::string name;
  // One-sided operations: contexts, signals in each, and whether they are opened with the
  // communicator rather than with its first window.
  int rma_contexts = 1;
  int rma_signals = 1;
  bool rma_eager = false;
  // What it asks of the network, which Weir's transports are not asked by a communicator; empty: nothing.
  std::string unheard;

  // With the communicator rather than with its first window, as NCCL_RMA_EAGER_INIT says before all.
  bool opens_signals_at_once() const;
  // Deadline of the operations.
  int64_t timeout_ms() const;
  // For weir_comm_create and its like; points into `name`.
  weir_comm_config_t weir() const;
};

// `given` may be NULL: then, and where a field is undefined, `config` stays as it is.
Outcome read_config(const char* function, const ncclConfig_t* given, Config* config);

// Where no configuration was given.
Config default_config();

// Leaves the options of vendors to options.h.
Outcome check_call_config(const char* function, const ncclCollConfig_t* config);

Outcome check_sim_info(const char* function, const ncclSimInfo_t* info);

}  // namespace weir::nccl
