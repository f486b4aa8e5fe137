// SPDX-License-Identifier: Apache-2.0
// How communicators are made: each function checks its arguments, opens the handle that the caller
// gets at once, and returns the work that completes it. Thread-safe.
#pragma once

#include <vector>

#include "nccl/base/outcome.h"
#include "nccl/comm/config.h"
#include "nccl/own/group.h"
#include "weir/nccl.h"

namespace weir::nccl {

Outcome make_unique_id(const char* function, ncclUniqueId* id);
weir_unique_id_t to_weir_id(const ncclUniqueId& id);

// `ids`: at least one, the same on all ranks.
Outcome make_init(const char* function, ncclComm_t* out, int rank_count,
                  const std::vector<ncclUniqueId>& ids, int rank, int device,
                  const ncclConfig_t* config, Setup* setup);
// `color` NCCL_SPLIT_NOCOLOR: the setup makes none.
Outcome make_split(const char* function, const Parent& parent, int color, int key, ncclComm_t* out,
                   const ncclConfig_t* config, Setup* setup);
Outcome make_shrink(const char* function, const Parent& parent, std::vector<int> excluded,
                    int flags, ncclComm_t* out, const ncclConfig_t* config, Setup* setup);
// `parent` empty: the calling rank is new and passes the id. The old ranks agree on the id of the
// one rank that made one for this communicator, whatever they pass; if none has, or several have,
// they use the id that they pass.
Outcome make_grow(const char* function, const Parent& parent, int rank_count,
                  const ncclUniqueId* id, int rank, ncclComm_t* out, const ncclConfig_t* config,
                  Setup* setup);

}  // namespace weir::nccl
