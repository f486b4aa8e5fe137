// SPDX-License-Identifier: Apache-2.0
// The texts of Weir's core name functions of weir.h, and ranks of the group that failed; Python
// programs are told of the package's and PyTorch's functions instead, and of the ranks of the
// default group in addition. Thread-safe.
#pragma once

#include <string>
#include <vector>

namespace weir::pytorch {

std::string for_python(std::string text);

// `members`: the ranks in the default group of a group's ranks; empty: it is the default group.
// Where they differ, the text ends with those of the ranks that it names.
std::string with_default_ranks(std::string text, const std::vector<int>& members);

}  // namespace weir::pytorch
