// SPDX-License-Identifier: Apache-2.0
// The one table of NCCL's host functions. A new function has its declaration in weir/nccl.h (or in
// weir/nccl_device.h), a row here, and Weir's implementation in own/*.cc; a function of another
// kind of route is also written in entry/*.cc. Generated from the rows: the exported functions and
// their twins, Weir's own functions (own.h), the look-up in a real library and the error for a
// function that it lacks, the names of the counters, the recorded calls, the version script of the
// linker and the names that tests look for (CMakeLists.txt). Thread-safe.
#pragma once

#include <cstdint>

#define WEIR_NCCL_NO_DEFAULTS
#include "weir/nccl.h"
#include "weir/nccl_device.h"

// X(name without the prefix, first version, number of arguments, route, recorded as). The route
// says which function the exported function calls:
//   Communicator  that of the library which serves the communicator among the arguments
//   Window        that of the library which made the window, which is the first argument
//   Library       the real library's, where one is behind this library and has the function, else
//                 Weir's
//   Written       by hand in entry/*.cc
// Recorded calls are those of real/recording.h; a put or signal is recorded as a message.
// clang-format off
#define WEIR_NCCL_FUNCTIONS(X) \
  X(GetVersion,                   "2.3.5",   1, Library,      Nothing) \
  X(GetUniqueId,                  "2.3.5",   1, Written,      Nothing) \
  X(GetErrorString,               "2.3.5",   1, Written,      Nothing) \
  X(CommInitRank,                 "2.3.5",   4, Written,      Nothing) \
  X(CommInitAll,                  "2.3.5",   3, Written,      Nothing) \
  X(CommDestroy,                  "2.3.5",   1, Written,      Nothing) \
  X(CommCount,                    "2.3.5",   2, Communicator, Nothing) \
  X(CommCuDevice,                 "2.3.5",   2, Communicator, Nothing) \
  X(CommUserRank,                 "2.3.5",   2, Communicator, Nothing) \
  X(Reduce,                       "2.3.5",   8, Communicator, Collective(Reduce)) \
  X(Bcast,                        "2.3.5",   6, Communicator, Collective(Broadcast)) \
  X(Broadcast,                    "2.3.5",   7, Communicator, Collective(Broadcast)) \
  X(AllReduce,                    "2.3.5",   7, Communicator, Collective(AllReduce)) \
  X(ReduceScatter,                "2.3.5",   7, Communicator, Collective(ReduceScatter)) \
  X(AllGather,                    "2.3.5",   6, Communicator, Collective(AllGather)) \
  X(GroupStart,                   "2.3.5",   0, Written,      Nothing) \
  X(GroupEnd,                     "2.3.5",   0, Written,      Nothing) \
  X(CommAbort,                    "2.4.2",   1, Written,      Nothing) \
  X(CommGetAsyncError,            "2.4.2",   2, Written,      Nothing) \
  X(Send,                         "2.7.3",   6, Communicator, Message(Send)) \
  X(Recv,                         "2.7.3",   6, Communicator, Message(Recv)) \
  X(RedOpCreatePreMulSum,         "2.11.4",  5, Communicator, Nothing) \
  X(RedOpDestroy,                 "2.11.4",  2, Communicator, Nothing) \
  X(GetLastError,                 "2.13.4",  1, Written,      Nothing) \
  X(CommInitRankConfig,           "2.14.3",  5, Written,      Nothing) \
  X(CommFinalize,                 "2.14.3",  1, Communicator, Nothing) \
  X(CommSplit,                    "2.18.1",  5, Written,      Nothing) \
  X(MemAlloc,                     "2.19.1",  2, Written,      Nothing) \
  X(MemFree,                      "2.19.1",  1, Written,      Nothing) \
  X(CommRegister,                 "2.19.1",  4, Communicator, Nothing) \
  X(CommDeregister,               "2.19.1",  2, Communicator, Nothing) \
  X(GroupSimulateEnd,             "2.22.3",  1, Written,      Nothing) \
  X(CommInitRankScalable,         "2.23.4",  6, Written,      Nothing) \
  X(ResetDebugInit,               "2.24.3",  0, Written,      Nothing) \
  X(CommShrink,                   "2.27.3",  6, Written,      Nothing) \
  X(CommWindowRegister,           "2.27.3",  5, Communicator, Nothing) \
  X(CommWindowDeregister,         "2.27.3",  2, Communicator, Nothing) \
  X(AlltoAll,                     "2.28.3",  6, Communicator, Collective(AllToAll)) \
  X(Gather,                       "2.28.3",  7, Communicator, Collective(Gather)) \
  X(Scatter,                      "2.28.3",  7, Communicator, Collective(Scatter)) \
  X(DevCommCreate,                "2.28.3",  3, Communicator, Nothing) \
  X(DevCommDestroy,               "2.28.3",  2, Communicator, Nothing) \
  X(TeamWorld,                    "2.28.3",  1, Communicator, Nothing) \
  X(TeamLsa,                      "2.28.3",  1, Communicator, Nothing) \
  X(TeamRail,                     "2.28.3",  1, Communicator, Nothing) \
  X(TeamRankToWorld,              "2.28.3",  3, Communicator, Nothing) \
  X(TeamRankToLsa,                "2.28.3",  3, Communicator, Nothing) \
  X(LsaBarrierCreateRequirement,  "2.28.3",  4, Library,      Nothing) \
  X(LLA2ACalcSlots,               "2.28.3",  2, Library,      Nothing) \
  X(LLA2ACreateRequirement,       "2.28.3",  4, Library,      Nothing) \
  X(CommRevoke,                   "2.28.7",  2, Communicator, Nothing) \
  X(GinBarrierCreateRequirement,  "2.28.7",  5, Communicator, Nothing) \
  X(CommGetUniqueId,              "2.29.2",  2, Written,      Nothing) \
  X(CommGrow,                     "2.29.2",  6, Written,      Nothing) \
  X(PutSignal,                    "2.29.2", 11, Communicator, Message(PutSignal)) \
  X(Signal,                       "2.29.2",  6, Communicator, Message(Signal)) \
  X(WaitSignal,                   "2.29.2",  4, Communicator, Message(WaitSignal)) \
  X(WinGetUserPtr,                "2.29.2",  3, Communicator, Nothing) \
  X(CommQueryProperties,          "2.29.2",  2, Communicator, Nothing) \
  X(GetLsaDevicePointer,          "2.29.2",  4, Window,       Nothing) \
  X(GetLsaMultimemDevicePointer,  "2.29.2",  3, Window,       Nothing) \
  X(GetMultimemDevicePointer,     "2.29.2",  4, Window,       Nothing) \
  X(GetPeerDevicePointer,         "2.29.2",  4, Window,       Nothing) \
  X(CommSuspend,                  "2.29.7",  2, Communicator, Nothing) \
  X(CommResume,                   "2.29.7",  1, Communicator, Nothing) \
  X(CommMemStats,                 "2.29.7",  3, Communicator, Nothing) \
  X(GinOutboxCreateRequirement,   "2.29.7",  4, Library,      Nothing) \
  X(GinInboxA2ACreateRequirement, "2.29.7",  5, Library,      Nothing) \
  X(ParamBind,                    "2.30.4",  2, Library,      Nothing) \
  X(ParamGet,                     "2.30.4",  4, Library,      Nothing) \
  X(ParamGetStr,                  "2.30.4",  2, Library,      Nothing) \
  X(ParamGetI8,                   "2.30.4",  2, Library,      Nothing) \
  X(ParamGetI16,                  "2.30.4",  2, Library,      Nothing) \
  X(ParamGetI32,                  "2.30.4",  2, Library,      Nothing) \
  X(ParamGetI64,                  "2.30.4",  2, Library,      Nothing) \
  X(ParamGetU8,                   "2.30.4",  2, Library,      Nothing) \
  X(ParamGetU16,                  "2.30.4",  2, Library,      Nothing) \
  X(ParamGetU32,                  "2.30.4",  2, Library,      Nothing) \
  X(ParamGetU64,                  "2.30.4",  2, Library,      Nothing) \
  X(ParamGetParameter,            "2.30.4",  3, Library,      Nothing) \
  X(ParamGetAllParameterKeys,     "2.30.4",  2, Library,      Nothing) \
  X(ParamDumpAll,                 "2.30.4",  0, Library,      Nothing) \
  X(AllReduceConfig,              "2.31",    8, Communicator, Collective(AllReduce)) \
  X(ReduceScatterConfig,          "2.31",    8, Communicator, Collective(ReduceScatter)) \
  X(AllGatherConfig,              "2.31",    7, Communicator, Collective(AllGather)) \
  X(AlltoAllConfig,               "2.31",    7, Communicator, Collective(AllToAll)) \
  X(BroadcastConfig,              "2.31",    8, Communicator, Collective(Broadcast)) \
  X(ReduceConfig,                 "2.31",    9, Communicator, Collective(Reduce)) \
  X(GatherConfig,                 "2.31",    8, Communicator, Collective(Gather)) \
  X(ScatterConfig,                "2.31",    8, Communicator, Collective(Scatter)) \
  X(GetMultimemDeviceLeInfo,      "2.31",    4, Window,       Nothing) \
  X(GetCftDeviceLeInfo,           "2.31",    6, Window,       Nothing) \
  X(GetPeerDeviceLeInfo,          "2.31",    5, Window,       Nothing) \
  X(TeamCft,                      "2.31",    2, Communicator, Nothing) \
  X(TeamCftMultimem,              "2.31",    1, Communicator, Nothing) \
  X(SetEncryption,                "2.32",    1, Written,      Nothing)
// clang-format on

namespace weir::nccl {

enum class FunctionIndex : uint16_t {
#define WEIR_NCCL_INDEX(name, ...) k##name,
  WEIR_NCCL_FUNCTIONS(WEIR_NCCL_INDEX)
#undef WEIR_NCCL_INDEX
      kCount,
};

struct FunctionInfo {
  const char* name;   // "ncclAllReduce"
  const char* since;  // "2.3.5"
};

inline constexpr FunctionInfo kFunctions[] = {
#define WEIR_NCCL_INFO(name, since, ...) {"nccl" #name, since},
    WEIR_NCCL_FUNCTIONS(WEIR_NCCL_INFO)
#undef WEIR_NCCL_INFO
};

inline constexpr const FunctionInfo& info_of(FunctionIndex function) {
  return kFunctions[static_cast<unsigned>(function)];
}

// A library, as a pointer to each of its functions; none is nullptr.
struct Table {
#define WEIR_NCCL_MEMBER(name, ...) decltype(&nccl##name) name;
  WEIR_NCCL_FUNCTIONS(WEIR_NCCL_MEMBER)
#undef WEIR_NCCL_MEMBER
};

}  // namespace weir::nccl
