// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/kernels.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

namespace weir::hostcuda {

namespace {

struct HostKernel {
  weir_hostcuda_kernel function = nullptr;
  void* context = nullptr;
  std::vector<size_t> argument_bytes;
};

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, std::string> names;
  std::unordered_map<std::string, HostKernel> functions;
  std::set<std::string> refused;
};

Kernels& kernels() {
  static auto* const instance = new Kernels;
  return *instance;
}

// "_ZN4sums3addEPfi" -> "sums::add"; the same text when it is no such name.
std::string source_name(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (text == nullptr) return name;
  std::string plain = text;
  std::free(text);
  return plain.substr(0, plain.find('('));
}

constexpr unsigned kThreadsPerBlockMax = 1024;

bool shape_fits(const LaunchShape& shape) {
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.block[i] == 0) return false;
  }
  const uint64_t threads = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
  return shape.block[0] <= kThreadsPerBlockMax && shape.block[1] <= kThreadsPerBlockMax &&
         shape.block[2] <= kThreadsPerBlockMax && threads <= kThreadsPerBlockMax;
}

}  // namespace

void add_kernel_symbol(const void* symbol, const char* name) {
  Kernels& known = kernels();
  const std::lock_guard lock(known.mutex);
  known.names[symbol] = name;
}

const char* kernel_name(const void* symbol) {
  Kernels& known = kernels();
  const std::lock_guard lock(known.mutex);
  const auto at = known.names.find(symbol);
  return at == known.names.end() ? nullptr : at->second.c_str();
}

Error make_kernel(const void* symbol, const LaunchShape& shape, void* const* arguments,
                  KernelOperation* operation) {
  Kernels& known = kernels();
  const std::lock_guard lock(known.mutex);
  const auto named = known.names.find(symbol);
  const std::string name = named == known.names.end() ? std::string() : named->second;
  auto found = known.functions.find(name);
  if (found == known.functions.end()) found = known.functions.find(source_name(name));
  if (name.empty() || found == known.functions.end()) {
    if (known.refused.insert(name).second) {
      std::fprintf(
          stderr,
          "hostcuda: kernel '%s' was launched, and there is no GPU to run it on. Give a host "
          "function for it with weir_hostcuda_register_kernel (weir/hostcuda.h), or run "
          "this program with NVIDIA's CUDA runtime on a machine with a GPU.\n",
          name.empty() ? "(not registered)" : source_name(name).c_str());
    }
    return Error::kInvalidDeviceFunction;
  }
  if (!shape_fits(shape)) return Error::kInvalidConfiguration;
  const HostKernel& kernel = found->second;
  if (!kernel.argument_bytes.empty() && arguments == nullptr) return Error::kInvalidValue;
  operation->symbol = symbol;
  operation->name = name;
  operation->function = kernel.function;
  operation->context = kernel.context;
  std::memcpy(operation->launch.grid, shape.grid, sizeof shape.grid);
  std::memcpy(operation->launch.block, shape.block, sizeof shape.block);
  operation->launch.shared_bytes = shape.shared_bytes;
  for (size_t i = 0; i < kernel.argument_bytes.size(); ++i) {
    const auto* const first = static_cast<const char*>(arguments[i]);
    operation->arguments.emplace_back(first, first + kernel.argument_bytes[i]);
  }
  return Error::kSuccess;
}

}  // namespace weir::hostcuda

int weir_hostcuda_register_kernel(const char* name, weir_hostcuda_kernel kernel, void* context,
                                  const size_t* argument_bytes, size_t argument_count) {
  if (name == nullptr || *name == '\0' || kernel == nullptr ||
      (argument_count > 0 && argument_bytes == nullptr)) {
    return 1;
  }
  using weir::hostcuda::kernels;
  auto& known = kernels();
  const std::lock_guard lock(known.mutex);
  known.functions[name] = {kernel, context,
                           std::vector<size_t>(argument_bytes, argument_bytes + argument_count)};
  return 0;
}
