// SPDX-License-Identifier: Apache-2.0
// NCCL's functions as Weir itself does them (api_*.cc), on communicators of its own. The exported
// functions of the same names (entry_*.cc) choose between these and a real NCCL's. Thread-safe.
#pragma once

#include "nccl/functions.h"

namespace weir::nccl {

namespace own {
#define WEIR_NCCL_OWN(name, since) decltype(::nccl##name) name;
WEIR_NCCL_FUNCTIONS(WEIR_NCCL_OWN)
#undef WEIR_NCCL_OWN
}  // namespace own

inline constexpr Table kOwnTable = {
#define WEIR_NCCL_OWN(name, since) own::name,
    WEIR_NCCL_FUNCTIONS(WEIR_NCCL_OWN)
#undef WEIR_NCCL_OWN
};

}  // namespace weir::nccl
