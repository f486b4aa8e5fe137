// SPDX-License-Identifier: Apache-2.0
// The texts of Weir's core name functions of weir.h and collectives in its words; programs that use
// nccl.h are told of the functions, types and reductions of that header instead. Thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace weir::nccl {

std::string for_callers_of_nccl(std::string text);

// "ncclFloat32" for "float32", "ncclSum" for "sum".
std::string_view argument_of_nccl(std::string_view ours);

}  // namespace weir::nccl
