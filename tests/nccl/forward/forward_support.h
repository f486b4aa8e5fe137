// SPDX-License-Identifier: Apache-2.0
// For tests of the way to a real NCCL: the libraries that play it and CUDA's driver, and ranks with
// a device each. What the environment of a test says decides the way, so that each is a run of its
// own.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "nccl/api/functions.h"
#include "nccl/double/nccl_double.h"
#include "nccl/support.h"

namespace weir::nccl::test {

// The functions of the library in WEIR_NCCL_LIBRARY, which the library under test loads too.
class NcclDouble {
 public:
  NcclDouble() {
    int version = 0;
    // NCCL_DOUBLE_FIRST: loaded before the library under test opens it.
    if (std::getenv("NCCL_DOUBLE_FIRST") == nullptr) {
      EXPECT_NCCL(ncclGetVersion(&version));
    }
    library_ = dlopen(std::getenv("WEIR_NCCL_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library_, nullptr) << dlerror();
  }

  template <typename Function>
  Function* get(const char* name) const {
    auto* found = reinterpret_cast<Function*>(dlsym(library_, name));
    EXPECT_NE(found, nullptr) << name;
    return found;
  }
  int calls(const char* name) const { return get<int(const char*)>("nccl_double_calls")(name); }
  int started() const { return get<int()>("nccl_double_started")(); }
  int alive() const { return get<int()>("nccl_double_alive")(); }
  int device_of(ncclComm_t comm) const { return get<int(void*)>("nccl_double_device_of")(comm); }
  std::string name_of(ncclComm_t comm) const {
    return get<const char*(void*)>("nccl_double_name_of")(comm);
  }
  void fail(int rank, ncclResult_t code, bool hang) const {
    get<void(int, int, int)>("nccl_double_fail")(rank, code, hang ? 1 : 0);
  }
  void fail_making(int rank, ncclResult_t code, bool hang) const {
    get<void(int, int, int)>("nccl_double_fail_making")(rank, code, hang ? 1 : 0);
  }

 private:
  void* library_ = nullptr;
};

// As cudaSetDevice for the calling thread; without a driver, nothing.
inline void choose_device(int device) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return;
  auto* choose = reinterpret_cast<int (*)(void*)>(dlsym(driver, "cuCtxSetCurrent"));
  if (choose != nullptr) choose(reinterpret_cast<void*>(static_cast<intptr_t>(device + 1)));
}

// Whether the handle is the real library's own.
inline bool is_real(ncclComm_t comm) {
  uint64_t mark = 0;
  std::memcpy(&mark, static_cast<const void*>(comm), sizeof mark);
  return mark == 0x0280028002800280ull;
}

// One thread a rank, on devices[rank]; `body` gets a communicator that is made, and ends it.
inline void run_on_devices(const std::vector<int>& devices, const Body& body) {
  const ncclUniqueId id = make_id();
  const int n = static_cast<int>(devices.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) {
    threads.emplace_back([&, rank] {
      choose_device(devices[static_cast<size_t>(rank)]);
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRank(&comm, n, id, rank));
      body(rank, comm);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What the library that plays the real one does by itself; its other functions only count their
// calls.
inline bool plays(const std::string& name) {
  static const char* const kPlayed[] = {
      "GetVersion",  "GetUniqueId", "GetErrorString",  "GetLastError",       "CommInitRank",
      "CommInitAll", "CommSplit",   "CommShrink",      "CommInitRankConfig", "CommInitRankScalable",
      "CommGrow",    "CommDestroy", "CommGetUniqueId", "CommAbort",          "CommGetAsyncError",
      "CommCount",   "AllReduce",   "CommUserRank",    "GroupStart",         "GroupEnd",
      "MemAlloc",    "MemFree"};
  return std::find(std::begin(kPlayed), std::end(kPlayed), name) != std::end(kPlayed);
}

// An argument of a type: the communicator, or zeros.
template <typename Type>
Type argument_of([[maybe_unused]] ncclComm_t comm) {
  if constexpr (std::is_same_v<Type, ncclComm_t>) return comm;
  return Type{};
}

template <typename Result, typename... Types>
void call_on(Result (*function)(Types...), [[maybe_unused]] ncclComm_t comm) {
  (void)function(argument_of<Types>(comm)...);
}

// Calls every exported function that the real library only counts, on `comm`: each is one call of
// the real library's function of the same name, and of no other.
inline void expect_every_function_to_be_the_real_ones(const NcclDouble& nccl_double,
                                                      ncclComm_t comm,
                                                      const std::string& but = "") {
  struct Function {
    const char* name;
    void (*call)(ncclComm_t comm);
  };
  static const Function kAll[] = {
#define WEIR_CALL(name, ...) {#name, [](ncclComm_t it) { call_on(&nccl##name, it); }},
      WEIR_NCCL_FUNCTIONS(WEIR_CALL)
#undef WEIR_CALL
  };
  const auto calls = [&] {
    std::vector<int> all;
    for (const Function& it : kAll) {
      all.push_back(nccl_double.calls((std::string("nccl") + it.name).c_str()));
    }
    return all;
  };
  int called = 0;
  for (size_t i = 0; i < std::size(kAll); ++i) {
    if (plays(kAll[i].name) || kAll[i].name == but) continue;
    std::vector<int> expected = calls();
    ++expected[i];
    kAll[i].call(comm);
    EXPECT_EQ(calls(), expected) << kAll[i].name;
    ++called;
  }
  EXPECT_GT(called, 70);
}

// What an all-reduce gives: the real library's sum, or the ranks' own.
inline int sum_on(ncclComm_t comm, int rank) {
  int sum = 0;
  EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
  return sum;
}

}  // namespace weir::nccl::test
