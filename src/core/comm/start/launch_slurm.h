// SPDX-License-Identifier: Apache-2.0
// Slurm's list of task counts, "4(x2),3": two machines with four tasks each, then one with three
// (srun(1), SLURM_STEP_TASKS_PER_NODE). Pure; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace weir::comm {

// Tasks of the `node_index`-th machine; nothing when the list is malformed or shorter.
std::optional<uint64_t> slurm_tasks_of_node(std::string_view list, uint64_t node_index);

}  // namespace weir::comm
