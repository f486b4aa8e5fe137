// SPDX-License-Identifier: Apache-2.0
// How the ranks of a new group agree on Weir's unique id, through PyTorch's store. The store may
// outlive the ranks: torchrun keeps one over all restarts of a job, so that it holds what ranks
// that have died have left. So an id counts only once rank 0 has answered to this very start of
// each rank.
#pragma once

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "weir/weir.h"

namespace weir::pytorch {

// Of the ranks that are to meet, those whose process has ended, as far as that is known. May be
// empty: nothing is.
using DeadRanks = std::function<std::vector<int>()>;

// Collective over the `size` callers with the same store. Throws DistBackendError, which names the
// ranks that have not come within `timeout`, or that `dead` says cannot come. `members`: the ranks
// in the default group of all, for texts; empty: the same.
weir_unique_id_t meet(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout,
                      const char* what, const DeadRanks& dead, const std::vector<int>& members);
// By rank 0, once all ranks are in the communicator of the id: what the meeting has left in the
// store goes.
void forget_meeting(c10d::Store& store, const weir_unique_id_t& id);
// A part of the store that no other start of a group uses.
c10::intrusive_ptr<c10d::Store> part_of_meeting(const c10::intrusive_ptr<c10d::Store>& store,
                                                const weir_unique_id_t& id);

}  // namespace weir::pytorch
