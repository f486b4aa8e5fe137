// SPDX-License-Identifier: Apache-2.0
// The texts of Weir's core name functions of weir.h and collectives in its words; programs that use
// nccl.h are told of the functions, types and reductions of that header instead. Thread-safe.
#pragma once

#include <string>

namespace weir::nccl {

std::string for_callers_of_nccl(std::string text);

}  // namespace weir::nccl
