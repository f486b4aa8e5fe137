// SPDX-License-Identifier: Apache-2.0
#include "nccl/real/found_functions.h"

#include <dlfcn.h>

namespace weir::nccl {

namespace {

// A library without these cannot be used.
constexpr FunctionIndex kNeeded[] = {
    FunctionIndex::kGetVersion,  FunctionIndex::kGetUniqueId, FunctionIndex::kCommInitRank,
    FunctionIndex::kCommDestroy, FunctionIndex::kCommAbort,   FunctionIndex::kCommGetAsyncError,
    FunctionIndex::kGroupStart,  FunctionIndex::kGroupEnd,    FunctionIndex::kAllReduce,
};

}  // namespace

bool find_functions(void* library, RealFunctions* functions, std::string* reason) {
  for (unsigned i = 0; i < static_cast<unsigned>(FunctionIndex::kCount); ++i) {
    functions->found[i] = dlsym(library, kFunctions[i].name);
  }
  for (const FunctionIndex function : kNeeded) {
    if (functions->of(function) != nullptr) continue;
    *reason = std::string("has no function ") + info_of(function).name;
    return false;
  }
  const auto get_version =
      reinterpret_cast<decltype(Table::GetVersion)>(functions->of(FunctionIndex::kGetVersion));
  if (get_version(&functions->version) == ncclSuccess && functions->version > 0) return true;
  *reason = "ncclGetVersion fails";
  return false;
}

}  // namespace weir::nccl
