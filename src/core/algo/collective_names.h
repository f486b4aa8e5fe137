// SPDX-License-Identifier: Apache-2.0
// Names of collectives for errors. Thread-safe.
#pragma once

#include <string>

namespace weir::algo {

// The collectives that have algorithms, and their v-variants: "all_reduce, broadcast, …".
std::string known_collectives();

}  // namespace weir::algo
