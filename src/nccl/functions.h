// SPDX-License-Identifier: Apache-2.0
// Every function of NCCL's host API with the version that brought it: one list, from which come the
// table of functions of a library (Table), Weir's own functions (own.h), what a real library lacks,
// and the names of counters. tests/nccl/symbols.txt is the same list for the linker; a test compares
// what the library exports with it. Thread-safe.
#pragma once

#include <cstdint>

#include "nccl/device_api.h"
#include "weir/nccl.h"

// X(name without the prefix, first version)
// clang-format off
#define WEIR_NCCL_FUNCTIONS(X) \
  X(GetVersion, "2.3.5") \
  X(GetUniqueId, "2.3.5") \
  X(GetErrorString, "2.3.5") \
  X(CommInitRank, "2.3.5") \
  X(CommInitAll, "2.3.5") \
  X(CommDestroy, "2.3.5") \
  X(CommCount, "2.3.5") \
  X(CommCuDevice, "2.3.5") \
  X(CommUserRank, "2.3.5") \
  X(Reduce, "2.3.5") \
  X(Bcast, "2.3.5") \
  X(Broadcast, "2.3.5") \
  X(AllReduce, "2.3.5") \
  X(ReduceScatter, "2.3.5") \
  X(AllGather, "2.3.5") \
  X(GroupStart, "2.3.5") \
  X(GroupEnd, "2.3.5") \
  X(CommAbort, "2.4.2") \
  X(CommGetAsyncError, "2.4.2") \
  X(Send, "2.7.3") \
  X(Recv, "2.7.3") \
  X(RedOpCreatePreMulSum, "2.11.4") \
  X(RedOpDestroy, "2.11.4") \
  X(GetLastError, "2.13.4") \
  X(CommInitRankConfig, "2.14.3") \
  X(CommFinalize, "2.14.3") \
  X(CommSplit, "2.18.1") \
  X(MemAlloc, "2.19.1") \
  X(MemFree, "2.19.1") \
  X(CommRegister, "2.19.1") \
  X(CommDeregister, "2.19.1") \
  X(GroupSimulateEnd, "2.22.3") \
  X(CommInitRankScalable, "2.23.4") \
  X(ResetDebugInit, "2.24.3") \
  X(CommShrink, "2.27.3") \
  X(CommWindowRegister, "2.27.3") \
  X(CommWindowDeregister, "2.27.3") \
  X(AlltoAll, "2.28.3") \
  X(Gather, "2.28.3") \
  X(Scatter, "2.28.3") \
  X(DevCommCreate, "2.28.3") \
  X(DevCommDestroy, "2.28.3") \
  X(TeamWorld, "2.28.3") \
  X(TeamLsa, "2.28.3") \
  X(TeamRail, "2.28.3") \
  X(TeamRankToWorld, "2.28.3") \
  X(TeamRankToLsa, "2.28.3") \
  X(LsaBarrierCreateRequirement, "2.28.3") \
  X(LLA2ACalcSlots, "2.28.3") \
  X(LLA2ACreateRequirement, "2.28.3") \
  X(CommRevoke, "2.28.7") \
  X(GinBarrierCreateRequirement, "2.28.7") \
  X(CommGetUniqueId, "2.29.2") \
  X(CommGrow, "2.29.2") \
  X(PutSignal, "2.29.2") \
  X(Signal, "2.29.2") \
  X(WaitSignal, "2.29.2") \
  X(WinGetUserPtr, "2.29.2") \
  X(CommQueryProperties, "2.29.2") \
  X(GetLsaDevicePointer, "2.29.2") \
  X(GetLsaMultimemDevicePointer, "2.29.2") \
  X(GetMultimemDevicePointer, "2.29.2") \
  X(GetPeerDevicePointer, "2.29.2") \
  X(CommSuspend, "2.29.7") \
  X(CommResume, "2.29.7") \
  X(CommMemStats, "2.29.7") \
  X(GinOutboxCreateRequirement, "2.29.7") \
  X(GinInboxA2ACreateRequirement, "2.29.7") \
  X(ParamBind, "2.30.4") \
  X(ParamGet, "2.30.4") \
  X(ParamGetStr, "2.30.4") \
  X(ParamGetI8, "2.30.4") \
  X(ParamGetI16, "2.30.4") \
  X(ParamGetI32, "2.30.4") \
  X(ParamGetI64, "2.30.4") \
  X(ParamGetU8, "2.30.4") \
  X(ParamGetU16, "2.30.4") \
  X(ParamGetU32, "2.30.4") \
  X(ParamGetU64, "2.30.4") \
  X(ParamGetParameter, "2.30.4") \
  X(ParamGetAllParameterKeys, "2.30.4") \
  X(ParamDumpAll, "2.30.4") \
  X(AllReduceConfig, "2.31") \
  X(ReduceScatterConfig, "2.31") \
  X(AllGatherConfig, "2.31") \
  X(AlltoAllConfig, "2.31") \
  X(BroadcastConfig, "2.31") \
  X(ReduceConfig, "2.31") \
  X(GatherConfig, "2.31") \
  X(ScatterConfig, "2.31") \
  X(GetMultimemDeviceLeInfo, "2.31") \
  X(GetCftDeviceLeInfo, "2.31") \
  X(GetPeerDeviceLeInfo, "2.31") \
  X(TeamCft, "2.31") \
  X(TeamCftMultimem, "2.31")
// clang-format on

namespace weir::nccl {

enum class FunctionIndex : uint16_t {
#define WEIR_NCCL_INDEX(name, since) k##name,
  WEIR_NCCL_FUNCTIONS(WEIR_NCCL_INDEX)
#undef WEIR_NCCL_INDEX
      kCount,
};

struct FunctionInfo {
  const char* name;   // "ncclAllReduce"
  const char* since;  // "2.3.5"
};

inline constexpr FunctionInfo kFunctions[] = {
#define WEIR_NCCL_INFO(name, since) {"nccl" #name, since},
    WEIR_NCCL_FUNCTIONS(WEIR_NCCL_INFO)
#undef WEIR_NCCL_INFO
};

inline constexpr const FunctionInfo& info_of(FunctionIndex function) {
  return kFunctions[static_cast<unsigned>(function)];
}

// A library, as a pointer to each of its functions; none is nullptr.
struct Table {
#define WEIR_NCCL_MEMBER(name, since) decltype(&nccl##name) name;
  WEIR_NCCL_FUNCTIONS(WEIR_NCCL_MEMBER)
#undef WEIR_NCCL_MEMBER
};

}  // namespace weir::nccl
