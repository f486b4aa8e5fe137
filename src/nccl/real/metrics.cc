// SPDX-License-Identifier: Apache-2.0
#include "nccl/real/metrics.h"

#include <chrono>
#include <type_traits>

#include "nccl/api/translate.h"
#include "nccl/real/backend.h"
#include "nccl/real/counters.h"

namespace weir::nccl {

namespace {

// The tables that the counting functions call.
const Table* g_own = nullptr;
const Table* g_real = nullptr;

// From a call's arguments: the communicator, and count times the size of the type that follows it.
struct Described {
  ncclComm_t comm = nullptr;
  uint64_t bytes = 0;
  bool has_bytes = false;

  size_t count = 0;
  bool after_count = false;

  template <typename Argument>
  void add(const Argument& argument) {
    if constexpr (std::is_same_v<Argument, ncclComm_t>) {
      if (comm == nullptr) comm = argument;
    }
    if constexpr (std::is_same_v<Argument, ncclDataType_t>) {
      const auto type = to_weir(argument);
      if (after_count && type.has_value()) {
        bytes = count * element_bytes(*type);
        has_bytes = true;
      }
    }
    after_count = std::is_same_v<Argument, size_t>;
    if constexpr (std::is_same_v<Argument, size_t>) count = argument;
  }
};

// Counts a call, and asks a communicator for its rank when it is new.
void count(FunctionIndex function, bool real, const Described& described, bool failed,
           std::chrono::steady_clock::duration took) {
  Call call;
  call.function = function;
  call.real = real;
  call.comm = described.comm;
  call.bytes = described.bytes;
  call.failed = failed;
  call.nanoseconds =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(took).count());
  const bool asks_for_identity = count_call(call);
  if (!asks_for_identity || !described.has_bytes || failed) return;
  const Table& table = real ? *g_real : *g_own;
  int rank = -1, rank_count = -1;
  if (table.CommUserRank(described.comm, &rank) == ncclSuccess &&
      table.CommCount(described.comm, &rank_count) == ncclSuccess) {
    name_communicator(described.comm, rank, rank_count);
  }
}

constexpr bool ends_communicator(FunctionIndex function) {
  return function == FunctionIndex::kCommDestroy || function == FunctionIndex::kCommAbort;
}

// Within a call of the real library, which may call its own exports.
thread_local bool t_inside_real = false;

template <auto member, FunctionIndex function, bool real>
struct Counted;

template <typename Result, typename... Arguments, Result (*Table::*member)(Arguments...),
          FunctionIndex function, bool real>
struct Counted<member, function, real> {
  static Result call(Arguments... arguments) {
    if (t_inside_real) return ((real ? *g_real : *g_own).*member)(arguments...);

    Described described;
    (described.add(arguments), ...);
    const Table& table = real ? *g_real : *g_own;
    const auto begin = std::chrono::steady_clock::now();
    const auto done = [&](bool failed) {
      count(function, real, described, failed, std::chrono::steady_clock::now() - begin);
      if (ends_communicator(function)) end_communicator(described.comm);
    };
    t_inside_real = real;
    if constexpr (std::is_void_v<Result>) {
      (table.*member)(arguments...);
      t_inside_real = false;
      done(false);
    } else {
      const Result result = (table.*member)(arguments...);
      t_inside_real = false;
      if constexpr (std::is_same_v<Result, ncclResult_t>) {
        done(result != ncclSuccess && result != ncclInProgress);
      } else {
        done(false);
      }
      return result;
    }
  }
};

template <bool real>
constexpr Table counted_table() {
  return {
#define WEIR_NCCL_COUNTED(name, ...) Counted<&Table::name, FunctionIndex::k##name, real>::call,
      WEIR_NCCL_FUNCTIONS(WEIR_NCCL_COUNTED)
#undef WEIR_NCCL_COUNTED
  };
}

constexpr Table kCountedOwn = counted_table<false>();
constexpr Table kCountedReal = counted_table<true>();

}  // namespace

void wrap_with_metrics(const std::string& path, Backend* backend) {
  if (path.empty()) return;
  start_counting(path);
  g_own = backend->own;
  backend->own = &kCountedOwn;
  if (backend->real == nullptr) return;
  g_real = backend->real;
  backend->real = &kCountedReal;
}

}  // namespace weir::nccl
