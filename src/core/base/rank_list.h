// SPDX-License-Identifier: Apache-2.0
// Ranks as people write them: "rank 3", "ranks 3, 5-7". Values; thread-safe.
#pragma once

#include <string>
#include <vector>

#include "core/base/types.h"

namespace weir {

// `ranks` ascending, without duplicates. Three and more neighbours become a range, and after 16
// items the text ends with "and N more". Empty: "no rank".
std::string describe_ranks(const std::vector<Rank>& ranks);

}  // namespace weir
