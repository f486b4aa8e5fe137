// SPDX-License-Identifier: Apache-2.0
// The texts of Weir's core name functions of weir.h; Python programs are told of the package's and
// PyTorch's instead. Thread-safe.
#pragma once

#include <string>

namespace weir::pytorch {

std::string for_python(std::string text);

}  // namespace weir::pytorch
