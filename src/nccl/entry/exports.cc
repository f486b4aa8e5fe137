// SPDX-License-Identifier: Apache-2.0
// The exported functions that only choose which function of the same name is called: all functions
// of the table in api/functions.h except those written by hand in the other files of this folder.
#include <cstddef>
#include <tuple>
#include <type_traits>

#include "nccl/comm/comm.h"
#include "nccl/entry/entry.h"

namespace weir::nccl {

namespace {

template <typename Function>
struct Signature;

template <typename TheResult, typename... TheArguments>
struct Signature<TheResult(TheArguments...)> {
  using Result = TheResult;
  template <size_t index>
  using Argument = std::tuple_element_t<index, std::tuple<TheArguments...>>;
};

template <typename... Arguments>
ncclComm_t communicator_among(Arguments... arguments) {
  static_assert((std::is_same_v<Arguments, ncclComm_t> + ...) == 1);
  ncclComm_t comm = nullptr;
  const auto look = [&](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), ncclComm_t>) comm = argument;
  };
  (look(arguments), ...);
  return comm;
}

// `argument`, or `comm` in place of a communicator.
template <typename Argument>
Argument with_communicator(Argument argument, ncclComm_t comm) {
  if constexpr (std::is_same_v<Argument, ncclComm_t>) {
    return comm;
  } else {
    (void)comm;
    return argument;
  }
}

template <auto member, FunctionIndex, typename... Arguments>
auto call_by_communicator(Arguments... arguments) {
  const Route way = route(communicator_among(arguments...));
  return (way.table->*member)(with_communicator(arguments, way.comm)...);
}

// The window is the only argument that identifies the library: Weir knows those of its own
// communicators.
template <auto member, FunctionIndex, typename... Rest>
auto call_by_window(ncclWindow_t window, Rest... rest) {
  const Backend& it = backend();
  const bool is_real = it.disabled || (it.real != nullptr && !find_window(window).has_value());
  return ((is_real ? it.real : it.own)->*member)(window, rest...);
}

template <auto member, FunctionIndex function, typename... Arguments>
auto call_by_library(Arguments... arguments) {
  return (table_without_comm(function).*member)(arguments...);
}

}  // namespace

}  // namespace weir::nccl

// The parameter list of a function with so many parameters, and the argument list of its call.
// clang-format off
#define WEIR_NCCL_PARAMETER(f, i) ::weir::nccl::Signature<decltype(f)>::Argument<i> a##i
#define WEIR_NCCL_PARAMETERS_1(f) WEIR_NCCL_PARAMETER(f, 0)
#define WEIR_NCCL_PARAMETERS_2(f) WEIR_NCCL_PARAMETERS_1(f), WEIR_NCCL_PARAMETER(f, 1)
#define WEIR_NCCL_PARAMETERS_3(f) WEIR_NCCL_PARAMETERS_2(f), WEIR_NCCL_PARAMETER(f, 2)
#define WEIR_NCCL_PARAMETERS_4(f) WEIR_NCCL_PARAMETERS_3(f), WEIR_NCCL_PARAMETER(f, 3)
#define WEIR_NCCL_PARAMETERS_5(f) WEIR_NCCL_PARAMETERS_4(f), WEIR_NCCL_PARAMETER(f, 4)
#define WEIR_NCCL_PARAMETERS_6(f) WEIR_NCCL_PARAMETERS_5(f), WEIR_NCCL_PARAMETER(f, 5)
#define WEIR_NCCL_PARAMETERS_7(f) WEIR_NCCL_PARAMETERS_6(f), WEIR_NCCL_PARAMETER(f, 6)
#define WEIR_NCCL_PARAMETERS_8(f) WEIR_NCCL_PARAMETERS_7(f), WEIR_NCCL_PARAMETER(f, 7)
#define WEIR_NCCL_PARAMETERS_9(f) WEIR_NCCL_PARAMETERS_8(f), WEIR_NCCL_PARAMETER(f, 8)
#define WEIR_NCCL_PARAMETERS_10(f) WEIR_NCCL_PARAMETERS_9(f), WEIR_NCCL_PARAMETER(f, 9)
#define WEIR_NCCL_PARAMETERS_11(f) WEIR_NCCL_PARAMETERS_10(f), WEIR_NCCL_PARAMETER(f, 10)
#define WEIR_NCCL_PARAMETERS_0(f)
#define WEIR_NCCL_ARGUMENTS_0
#define WEIR_NCCL_ARGUMENTS_1 a0
#define WEIR_NCCL_ARGUMENTS_2 WEIR_NCCL_ARGUMENTS_1, a1
#define WEIR_NCCL_ARGUMENTS_3 WEIR_NCCL_ARGUMENTS_2, a2
#define WEIR_NCCL_ARGUMENTS_4 WEIR_NCCL_ARGUMENTS_3, a3
#define WEIR_NCCL_ARGUMENTS_5 WEIR_NCCL_ARGUMENTS_4, a4
#define WEIR_NCCL_ARGUMENTS_6 WEIR_NCCL_ARGUMENTS_5, a5
#define WEIR_NCCL_ARGUMENTS_7 WEIR_NCCL_ARGUMENTS_6, a6
#define WEIR_NCCL_ARGUMENTS_8 WEIR_NCCL_ARGUMENTS_7, a7
#define WEIR_NCCL_ARGUMENTS_9 WEIR_NCCL_ARGUMENTS_8, a8
#define WEIR_NCCL_ARGUMENTS_10 WEIR_NCCL_ARGUMENTS_9, a9
#define WEIR_NCCL_ARGUMENTS_11 WEIR_NCCL_ARGUMENTS_10, a10
// clang-format on

#define WEIR_NCCL_EXPORT(name, count, call)                                                      \
  ::weir::nccl::Signature<decltype(nccl##name)>::Result nccl##name(                              \
      WEIR_NCCL_PARAMETERS_##count(nccl##name)) {                                                \
    return ::weir::nccl::call<&::weir::nccl::Table::name, ::weir::nccl::FunctionIndex::k##name>( \
        WEIR_NCCL_ARGUMENTS_##count);                                                            \
  }                                                                                              \
  WEIR_NCCL_TWIN(name);
#define WEIR_NCCL_EXPORT_Communicator(name, count) \
  WEIR_NCCL_EXPORT(name, count, call_by_communicator)
#define WEIR_NCCL_EXPORT_Window(name, count) WEIR_NCCL_EXPORT(name, count, call_by_window)
#define WEIR_NCCL_EXPORT_Library(name, count) WEIR_NCCL_EXPORT(name, count, call_by_library)
#define WEIR_NCCL_EXPORT_Written(name, count)
#define WEIR_NCCL_EXPORT_ROW(name, since, count, route, recorded) \
  WEIR_NCCL_EXPORT_##route(name, count)

WEIR_NCCL_FUNCTIONS(WEIR_NCCL_EXPORT_ROW)
