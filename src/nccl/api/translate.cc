// SPDX-License-Identifier: Apache-2.0
#include "nccl/api/translate.h"

namespace weir::nccl {

namespace {

struct ResultRow {
  weir_result_t weir;
  ncclResult_t nccl;
};

// A late peer and a dead peer get the same code here, and programs built against headers older than
// ncclTimeout know only ncclRemoteError: the text tells which it is.
constexpr ResultRow kResults[] = {
    {WEIR_OK, ncclSuccess},
    {WEIR_IN_PROGRESS, ncclInProgress},
    {WEIR_ERROR_INVALID_ARGUMENT, ncclInvalidArgument},
    {WEIR_ERROR_INVALID_USAGE, ncclInvalidUsage},
    {WEIR_ERROR_UNSUPPORTED, ncclInvalidUsage},
    {WEIR_ERROR_NO_MEMORY, ncclSystemError},
    {WEIR_ERROR_SYSTEM, ncclSystemError},
    {WEIR_ERROR_MISMATCH, ncclInvalidUsage},
    {WEIR_ERROR_TIMEOUT, ncclRemoteError},
    {WEIR_ERROR_PEER_LOST, ncclRemoteError},
    {WEIR_ERROR_ABORTED, ncclRemoteError},
    {WEIR_ERROR_REFUSED, ncclRemoteError},
    {WEIR_ERROR_INTERNAL, ncclInternalError},
};

struct TypeRow {
  ncclDataType_t nccl;
  weir_datatype_t weir;
  size_t bytes;
};

constexpr TypeRow kTypes[] = {
    {ncclInt8, WEIR_INT8, 1},
    {ncclUint8, WEIR_UINT8, 1},
    {ncclInt32, WEIR_INT32, 4},
    {ncclUint32, WEIR_UINT32, 4},
    {ncclInt64, WEIR_INT64, 8},
    {ncclUint64, WEIR_UINT64, 8},
    {ncclFloat16, WEIR_FLOAT16, 2},
    {ncclFloat32, WEIR_FLOAT32, 4},
    {ncclFloat64, WEIR_FLOAT64, 8},
    {ncclBfloat16, WEIR_BFLOAT16, 2},
    {ncclFloat8e4m3, WEIR_FLOAT8_E4M3, 1},
    {ncclFloat8e5m2, WEIR_FLOAT8_E5M2, 1},
};
static_assert(sizeof kTypes / sizeof kTypes[0] == ncclNumTypes);

// The lookup below uses the type as an index.
constexpr bool types_are_in_order() {
  for (int i = 0; i < ncclNumTypes; ++i) {
    if (kTypes[i].nccl != i || kTypes[i].weir != i) return false;
  }
  return true;
}
static_assert(types_are_in_order());

struct OpRow {
  ncclRedOp_t nccl;
  weir_redop_t weir;
};

constexpr OpRow kOps[] = {
    {ncclSum, WEIR_SUM}, {ncclProd, WEIR_PROD}, {ncclMax, WEIR_MAX},
    {ncclMin, WEIR_MIN}, {ncclAvg, WEIR_AVG},
};
static_assert(sizeof kOps / sizeof kOps[0] == ncclNumOps);

// NCCL's words, which tools look for.
constexpr const char* kDescriptions[] = {
    "no error",
    "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
    "unhandled system error (run with NCCL_DEBUG=INFO for details)",
    "internal error - please report this issue to the NCCL developers",
    "invalid argument (run with NCCL_DEBUG=WARN for details)",
    "invalid usage (run with NCCL_DEBUG=WARN for details)",
    "remote process exited or there was a network error",
    "NCCL operation in progress",
    "timeout",
};
static_assert(sizeof kDescriptions / sizeof kDescriptions[0] == ncclNumResults);

}  // namespace

ncclResult_t to_nccl(weir_result_t result, bool aborted_here) {
  if (result == WEIR_ERROR_ABORTED && aborted_here) return ncclInternalError;
  for (const ResultRow& row : kResults) {
    if (row.weir == result) return row.nccl;
  }
  return ncclInternalError;
}

const char* describe(ncclResult_t result) {
  const auto index = static_cast<unsigned>(result);
  return index < ncclNumResults ? kDescriptions[index] : "unknown result code";
}

std::optional<weir_datatype_t> to_weir(ncclDataType_t type) {
  const auto index = static_cast<unsigned>(type);
  if (index >= ncclNumTypes) return std::nullopt;
  return kTypes[index].weir;
}

std::optional<weir_redop_t> to_weir(ncclRedOp_t op) {
  for (const OpRow& row : kOps) {
    if (row.nccl == op) return row.weir;
  }
  return std::nullopt;
}

size_t element_bytes(weir_datatype_t type) { return kTypes[static_cast<size_t>(type)].bytes; }

}  // namespace weir::nccl
