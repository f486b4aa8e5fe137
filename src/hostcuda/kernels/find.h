// SPDX-License-Identifier: Apache-2.0
// The host functions of this library for kernels of programs, by the kernels' names in the source;
// docs/hostcuda.md lists them. Called from one thread at a time; the functions found may run in
// any.
#pragma once

#include <cstring>
#include <list>
#include <string_view>
#include <vector>

#include "weir/hostcuda.h"

namespace weir::hostcuda::kernels {

// Each returns false if it does not have the kernel.
bool find_nccl_tests(std::string_view name, weir_hostcuda_host_kernel* found);
bool find_pytorch(std::string_view name, weir_hostcuda_host_kernel* found);
bool find_pytorch_compute(std::string_view name, weir_hostcuda_host_kernel* found);
bool find_pytorch_lists(std::string_view name, weir_hostcuda_host_kernel* found);

// The arguments of a template in "its::name<int, other<float> >"; empty if that is not its name.
std::vector<std::string_view> template_arguments(std::string_view name, std::string_view its_name);

// A copy of the value that is never destroyed, for the context of a host function; the same for
// equal values.
template <class Value>
Value* kept(const Value& value) {
  static auto* const all = new std::list<Value>;
  for (Value& one : *all) {
    if (one == value) return &one;
  }
  return &all->emplace_back(value);
}

// The value of the i-th argument of a launch.
template <class Value>
Value argument(const weir_hostcuda_launch* launch, size_t i) {
  Value value;
  std::memcpy(&value, launch->arguments[i], sizeof value);
  return value;
}

}  // namespace weir::hostcuda::kernels
