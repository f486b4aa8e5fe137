// SPDX-License-Identifier: Apache-2.0
// Translation between NCCL's numbers and Weir's: results, data types and reductions, one table
// each. Thread-safe.
#pragma once

#include <cstddef>
#include <optional>

#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {

// `aborted_here`: this process aborted the communicator itself, so that WEIR_ERROR_ABORTED says
// nothing about a peer.
ncclResult_t to_nccl(weir_result_t result, bool aborted_here = false);

// NCCL's own words for the result, static; never nullptr. What Weir has to say about an error is
// in ncclGetLastError.
const char* describe(ncclResult_t result);

// Empty when there is no such number.
std::optional<weir_datatype_t> to_weir(ncclDataType_t type);
std::optional<weir_redop_t> to_weir(ncclRedOp_t op);

size_t element_bytes(weir_datatype_t type);

}  // namespace weir::nccl
