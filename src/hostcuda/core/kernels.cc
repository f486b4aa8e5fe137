// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/kernels.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cuda/kernels/reduce_host.h"

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

// The kernels of Weir's NCCL library, so that its device code runs here as well. `context` points
// to the number of the data type.
void run_reduction(const weir_hostcuda_launch* launch, void* context) {
  const auto& arguments = *static_cast<const kernels::ReduceArguments*>(launch->arguments[0]);
  kernels::reduce_on_host(*static_cast<const uint32_t*>(context), arguments,
                          uint64_t{launch->grid[0]} * launch->block[0]);
}

Kernels* make_kernels() {
  static uint32_t types[kernels::kReduceCount];
  auto* const made = new Kernels;
  for (uint32_t type = 0; type < kernels::kReduceCount; ++type) {
    types[type] = type;
    made->functions[kernels::kReduceNames[type]] = {
        run_reduction, &types[type], {sizeof(kernels::ReduceArguments)}};
  }
  return made;
}

Kernels& all_kernels() {
  static Kernels* const instance = make_kernels();
  return *instance;
}

// "_ZN4sums3addEPfi" -> "sums::add", "_ZN12_GLOBAL__N_15scaleIfEEvPT_i" ->
// "(anonymous namespace)::scale<float>"; other text is returned as it is.
std::string source_name(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (text == nullptr) return name;
  std::string plain = text;
  std::free(text);
  // The list of parameters is the last pair of parentheses; the scope may have some, too.
  size_t depth = 0;
  for (size_t at = plain.size(); at-- > 0;) {
    if (plain[at] == ')') ++depth;
    if (plain[at] == '(' && --depth == 0) {
      plain.resize(at);
      break;
    }
  }
  // Only that of a template begins with the type of its result.
  constexpr std::string_view kResult = "void ";
  return plain.starts_with(kResult) ? plain.substr(kResult.size()) : plain;
}

// Called with the lock. nullptr, with a line on stderr once for each kernel, when there is none.
const HostKernel* find_host_kernel(Kernels& known, const std::string& name) {
  auto found = known.functions.find(name);
  if (found == known.functions.end()) found = known.functions.find(source_name(name));
  if (!name.empty() && found != known.functions.end()) return &found->second;
  if (known.refused.insert(name).second) {
    const std::string plain = name.empty() ? "(not registered)" : source_name(name);
    const std::string compiled = plain == name || name.empty() ? "" : " (" + name + ")";
    std::fprintf(
        stderr,
        "hostcuda: the program launched kernel '%s'%s, and there is no GPU to run it on. Register "
        "a host function for it with weir_hostcuda_register_kernel (weir/hostcuda.h), or run this "
        "program with NVIDIA's CUDA runtime on a machine with a GPU.\n",
        plain.c_str(), compiled.c_str());
  }
  return nullptr;
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
  Kernels& known = all_kernels();
  const std::lock_guard lock(known.mutex);
  known.names[symbol] = name;
}

void remove_kernel_symbol(const void* symbol) {
  Kernels& known = all_kernels();
  const std::lock_guard lock(known.mutex);
  known.names.erase(symbol);
}

const char* kernel_name(const void* symbol) {
  Kernels& known = all_kernels();
  const std::lock_guard lock(known.mutex);
  const auto at = known.names.find(symbol);
  return at == known.names.end() ? nullptr : at->second.c_str();
}

bool has_host_function(const char* name) {
  Kernels& known = all_kernels();
  const std::lock_guard lock(known.mutex);
  return find_host_kernel(known, name) != nullptr;
}

Error make_kernel(const void* symbol, const LaunchShape& shape, void* const* arguments,
                  KernelOperation* operation) {
  Kernels& known = all_kernels();
  const std::lock_guard lock(known.mutex);
  const auto named = known.names.find(symbol);
  const std::string name = named == known.names.end() ? std::string() : named->second;
  const HostKernel* const found = find_host_kernel(known, name);
  if (found == nullptr) return Error::kInvalidDeviceFunction;
  if (!shape_fits(shape)) return Error::kInvalidConfiguration;
  const HostKernel& kernel = *found;
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
  using weir::hostcuda::all_kernels;
  auto& known = all_kernels();
  const std::lock_guard lock(known.mutex);
  known.functions[name] = {kernel, context,
                           std::vector<size_t>(argument_bytes, argument_bytes + argument_count)};
  return 0;
}
