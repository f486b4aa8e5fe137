// SPDX-License-Identifier: Apache-2.0
// Reads ncclConfig_t, ncclCollConfig_t, ncclEncryptionConfig_t and ncclSimInfo_t of any version:
// nothing beyond the caller's size is read, and fields newer than its version keep their default. A
// field of a later version that is set is an error, since it asks for something. Thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "nccl/base/outcome.h"
#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {

// The fields of a configuration that Weir uses; the others are checked and have no effect on host
// memory.
struct Config {
  bool blocking = true;
  std::string name;
  // One-sided operations: contexts, signals in each, and whether they are opened with the
  // communicator rather than with its first window.
  int rma_contexts = 1;
  int rma_signals = 1;
  bool rma_eager = false;
  // Fields about the network, which have no effect on Weir's transports; empty: none is set.
  std::string unheard;

  // Whether one-sided operations are opened with the communicator rather than with its first
  // window; NCCL_RMA_EAGER_INIT takes precedence.
  bool opens_signals_at_once() const;
  // Deadline of the operations.
  int64_t timeout_ms() const;
  // For weir_comm_create and its like; points into `name`.
  weir_comm_config_t weir() const;
};

// Of a structure the size and the magic number. `least` reaches behind the version. The size is
// read first: memory may end behind it. An address that is not aligned is read, too.
Outcome check_head(const char* function, const char* what, const void* given, size_t least,
                   unsigned expected, const char* initializer);

// `given` NULL, or a field undefined: `config` keeps its value.
Outcome read_config(const char* function, const ncclConfig_t* given, Config* config);

// The configuration of calls that have none.
Config default_config();

// The options of vendors are read by options.h.
Outcome check_call_config(const char* function, const ncclCollConfig_t* config);
// Of a configuration that has been checked; NULL: there is none.
cudaEvent_t launch_event_of(const ncclCollConfig_t* config);

// The key, which stays the caller's; NULL: no encryption.
Outcome read_encryption(const char* function, const ncclEncryptionConfig_t* config,
                        const char** key);

Outcome check_sim_info(const char* function, const ncclSimInfo_t* info);

}  // namespace weir::nccl
