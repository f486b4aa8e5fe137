// SPDX-License-Identifier: Apache-2.0
// The real NCCL as the transport uses it: one library per process, opened when it is first needed
// and kept. Thread-safe.
#pragma once

#include <string>

#include "weir/nccl.h"

namespace weir::plugins::nccl {

struct Library {
// clang-format off
#define WEIR_NCCL_PLUGIN_NEEDED(X) \
  X(GetVersion) X(GetUniqueId) X(GetErrorString) X(GetLastError) \
  X(CommInitRankConfig) X(CommFinalize) X(CommDestroy) X(CommAbort) X(CommGetAsyncError) \
  X(GroupStart) X(GroupEnd) X(AllReduce) X(Reduce) X(Broadcast) X(ReduceScatter) X(AllGather) \
  X(Send) X(Recv) X(RedOpCreatePreMulSum) X(RedOpDestroy)
// clang-format on
#define WEIR_NCCL_PLUGIN_OPTIONAL(X) X(AlltoAll) X(Gather) X(Scatter)  // since 2.28
#define WEIR_NCCL_PLUGIN_MEMBER(name) decltype(&nccl##name) name = nullptr;
  WEIR_NCCL_PLUGIN_NEEDED(WEIR_NCCL_PLUGIN_MEMBER)
  WEIR_NCCL_PLUGIN_OPTIONAL(WEIR_NCCL_PLUGIN_MEMBER)
#undef WEIR_NCCL_PLUGIN_MEMBER

  int version = 0;  // as ncclGetVersion gives it
  std::string path;
  std::string found_by;

  std::string text() const;  // "NCCL 2.28.9, /usr/lib/libnccl.so.2 (the loader's cache)"
};

// `explicit_path`: WEIR_NCCL_LIBRARY, or NULL; the first call decides. nullptr: `reason` says why.
const Library* library(const char* explicit_path, std::string* reason);

std::string version_text(int version);

}  // namespace weir::plugins::nccl
