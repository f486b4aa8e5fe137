// SPDX-License-Identifier: Apache-2.0
// The makers of communicators: each checks its arguments, opens the handle that the caller gets at
// once, and returns the work that fills it. Thread-safe.
#pragma once

#include <vector>

#include "nccl/config.h"
#include "nccl/group.h"
#include "nccl/outcome.h"
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
// `parent` empty: the calling rank is new and passes the id. The old ranks find the id among themselves: it
// is that of the rank which made it for this communicator, whatever they pass; where none has, or
// several have, the one that they pass.
Outcome make_grow(const char* function, const Parent& parent, int rank_count,
                  const ncclUniqueId* id, int rank, ncclComm_t* out, const ncclConfig_t* config,
                  Setup* setup);

}  // namespace weir::nccl
