// SPDX-License-Identifier: Apache-2.0
// libnccl.so.2 loaded as programs load it: by path or by name, now and local, as Python does.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "weir/nccl.h"

namespace weir::nccl::test {
namespace {

// The names of the table of functions.
std::vector<std::string> listed() {
  std::vector<std::string> names;
  std::ifstream file(WEIR_NCCL_SYMBOLS);
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string version, name;
    words >> version >> name;
    names.push_back(name);
  }
  return names;
}

template <typename Function>
Function* function(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Two ranks of this thread sum up, through the functions of a library.
void expect_that_it_works(void* library) {
  auto* init_all = function<decltype(ncclCommInitAll)>(library, "ncclCommInitAll");
  auto* start = function<decltype(ncclGroupStart)>(library, "ncclGroupStart");
  auto* end = function<decltype(ncclGroupEnd)>(library, "ncclGroupEnd");
  auto* reduce = function<decltype(ncclAllReduce)>(library, "pncclAllReduce");
  auto* destroy = function<decltype(ncclCommDestroy)>(library, "ncclCommDestroy");
  auto* text = function<decltype(ncclGetLastError)>(library, "ncclGetLastError");
  ASSERT_TRUE(init_all && start && end && reduce && destroy && text) << dlerror();
  ncclComm_t comms[2] = {};
  int values[2] = {3, 4};
  ASSERT_EQ(init_all(comms, 2, nullptr), ncclSuccess) << text(nullptr);
  EXPECT_EQ(start(), ncclSuccess);
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(reduce(&values[r], &values[r], 1, ncclInt, ncclSum, comms[r], nullptr), ncclSuccess);
  }
  EXPECT_EQ(end(), ncclSuccess) << text(nullptr);
  EXPECT_EQ(values[0], 7);
  EXPECT_EQ(values[1], 7);
  for (ncclComm_t comm : comms) EXPECT_EQ(destroy(comm), ncclSuccess);
}

TEST(NcclLoader, ByPathNowAndLocalAndASecondTime) {
  for (int time = 0; time < 2; ++time) {
    void* library = dlopen(WEIR_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    expect_that_it_works(library);
    EXPECT_EQ(dlclose(library), 0);
  }
}

TEST(NcclLoader, ByNameThroughTheLibraryPath) {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  expect_that_it_works(library);
  EXPECT_EQ(dlclose(library), 0);
}

TEST(NcclLoader, TheNameIsFoundOnceThePathIsLoaded) {
  void* library = dlopen(WEIR_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  void* same = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
  EXPECT_EQ(same, library) << "the SONAME is libnccl.so.2";
}

TEST(NcclLoader, EveryListedFunctionAndItsTwinAreThere) {
  void* library = dlopen(WEIR_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const std::vector<std::string> names = listed();
  EXPECT_GE(names.size(), 90u);
  for (const std::string& name : names) {
    void* found = dlsym(library, name.c_str());
    EXPECT_NE(found, nullptr) << name;
    EXPECT_EQ(dlsym(library, ("p" + name).c_str()), found) << "twin of " << name;
  }
}

// What programs that are built against NCCL look up or link, by their sources. A name that is
// missing fails at load.
struct Wanted {
  const char* program;
  const char* names;  // without "nccl"
};
constexpr Wanted kWanted[] = {
    {"PyTorch 2.6",
     "AllGather AllReduce Bcast Broadcast CommAbort CommCount CommDeregister CommDestroy "
     "CommFinalize CommGetAsyncError CommInitAll CommInitRank CommInitRankConfig CommRegister "
     "CommSplit CommUserRank GetErrorString GetLastError GetUniqueId GetVersion GroupEnd "
     "GroupStart Recv RedOpCreatePreMulSum RedOpDestroy Reduce ReduceScatter Send"},
    {"later PyTorch",
     "CommInitRankScalable CommShrink CommWindowRegister CommWindowDeregister MemAlloc MemFree "
     "DevCommCreate DevCommDestroy CommRevoke CommGetUniqueId CommGrow CommSuspend CommResume "
     "CommMemStats WinGetUserPtr PutSignal Signal WaitSignal GetLsaMultimemDevicePointer"},
    {"vLLM, SGLang",
     "GetErrorString GetVersion GetUniqueId CommInitRank AllReduce Reduce AllGather ReduceScatter "
     "Broadcast Send Recv GroupStart GroupEnd CommDestroy CommWindowRegister "
     "CommWindowDeregister CommQueryProperties"},
    {"CuPy",
     "GetVersion GetUniqueId GetErrorString CommInitRank CommInitAll CommDestroy CommAbort "
     "CommGetAsyncError CommCuDevice CommUserRank CommCount AllReduce Reduce Broadcast Bcast "
     "ReduceScatter AllGather Send Recv GroupStart GroupEnd"},
    {"JAX (XLA)",
     "GetVersion GetUniqueId GetErrorString GetLastError CommInitRank CommInitRankConfig "
     "CommInitRankScalable CommSplit CommCount CommUserRank CommAbort CommDestroy CommFinalize "
     "CommGetAsyncError CommRegister CommDeregister CommWindowRegister CommWindowDeregister "
     "MemAlloc MemFree AllReduce AllGather ReduceScatter Reduce Broadcast Send Recv GroupStart "
     "GroupEnd"},
    {"TensorRT-LLM",
     "GetVersion GetUniqueId GetErrorString CommInitRank CommInitRankConfig CommCount "
     "CommUserRank CommDestroy CommAbort CommGetAsyncError AllReduce AllGather ReduceScatter "
     "Broadcast Reduce Send Recv GroupStart GroupEnd MemAlloc MemFree CommWindowRegister "
     "CommWindowDeregister"},
};

TEST(NcclLoader, WhatFrameworksAskForIsThere) {
  void* library = dlopen(WEIR_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  for (const Wanted& wanted : kWanted) {
    std::istringstream names(wanted.names);
    int count = 0;
    for (std::string name; names >> name; ++count) {
      EXPECT_NE(dlsym(library, ("nccl" + name).c_str()), nullptr)
          << wanted.program << ": nccl" << name;
    }
    EXPECT_GT(count, 15) << wanted.program;
  }
}

TEST(NcclLoader, NothingOfWeirsOwnApiIsExported) {
  void* library = dlopen(WEIR_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  EXPECT_EQ(dlsym(library, "weir_comm_create"), nullptr);
}

}  // namespace
}  // namespace weir::nccl::test
