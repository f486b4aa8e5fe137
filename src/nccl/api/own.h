// SPDX-License-Identifier: Apache-2.0
// Weir's own implementations of NCCL's functions, on Weir's communicators; own/*.cc defines them.
// The exported functions of the same names (entry/*.cc) choose between these and a real NCCL's.
// Thread-safe.
#pragma once

#include "nccl/api/functions.h"

namespace weir::nccl {

namespace own {
#define WEIR_NCCL_OWN(name, ...) decltype(::nccl##name) name;
WEIR_NCCL_FUNCTIONS(WEIR_NCCL_OWN)
#undef WEIR_NCCL_OWN
}  // namespace own

inline constexpr Table kOwnTable = {
#define WEIR_NCCL_OWN(name, ...) own::name,
    WEIR_NCCL_FUNCTIONS(WEIR_NCCL_OWN)
#undef WEIR_NCCL_OWN
};

}  // namespace weir::nccl
