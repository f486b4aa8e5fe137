// SPDX-License-Identifier: Apache-2.0
// Which operations on memory of devices may go from device to device, and who says that they do.
// Thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "nccl/direct_choice.h"
#include "nccl/operation.h"

namespace weir::nccl {

// Below so many bytes of the larger buffer, what is told takes longer than what is saved.
inline constexpr size_t kDirectBytesMin = size_t{64} << 10;

// Whether the ranks that take part are to try, by what they agree on. Of a collective the answer changes once
// at most, to false, between two operations of the communicator; of a message never.
bool goes_direct(const Operation& operation);

// For a communicator that is made: whether this process does its part.
DirectChoice direct_choice_here();

// Where it does: whether it can for reductions of `rank_count` ranks, too; if not, why. Loads the
// kernels.
bool can_reduce_direct(int rank_count, std::string* reason);

// Says how a communicator goes, where the environment asks for it.
void explain(const Comm& comm, const std::string& text);

}  // namespace weir::nccl
