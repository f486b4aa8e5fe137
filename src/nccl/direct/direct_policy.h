// SPDX-License-Identifier: Apache-2.0
// Which operations on memory of devices are tried from device to device, and how that is explained.
// Thread-safe.
#pragma once

#include <cstddef>
#include <string>

#include "nccl/direct/direct_choice.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

// Below this size of the larger buffer the exchange of addresses takes longer than the copies that
// it saves.
inline constexpr size_t kDirectBytesMin = size_t{64} << 10;

// Whether the ranks that take part try it, as they have agreed. For collectives the answer changes
// at most once, to false, between two operations of the communicator; for messages it never
// changes.
bool goes_direct(const Operation& operation);

// While a communicator is made: whether this process takes part.
DirectChoice direct_choice_here();

// If it does: whether it can also reduce among `rank_count` ranks; if not, why. Loads the kernels.
bool can_reduce_direct(int rank_count, int device, std::string* reason);

// Writes `text` to the log, and with WEIR_EXPLAIN to stderr.
void explain(const Comm& comm, const std::string& text);

}  // namespace weir::nccl
