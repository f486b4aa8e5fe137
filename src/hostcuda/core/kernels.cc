// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/kernels.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "cuda/kernels/copy_host.h"
#include "cuda/kernels/message_host.h"
#include "cuda/kernels/reduce_host.h"

namespace weir::hostcuda {

namespace {

struct HostKernel {
  weir_hostcuda_kernel function = nullptr;
  void* context = nullptr;
  std::vector<size_t> argument_bytes;
  void (*waits)(const weir_hostcuda_launch& launch, const Cancel& cancel) = nullptr;
};

struct Kernels {
  std::mutex mutex;
  std::unordered_map<const void*, std::string> names;
  std::unordered_map<std::string, HostKernel> functions;
  // By the compiler's name: what the finders gave, or that they have none.
  std::unordered_map<std::string, std::optional<HostKernel>> found;
  std::vector<std::pair<weir_hostcuda_finder, void*>> finders;
  std::set<std::string> refused;
};

// The kernels of Weir's NCCL library, so that its device code runs here as well. `context` points
// to the number of the data type.
void run_reduction(const weir_hostcuda_launch* launch, void* context) {
  const auto& arguments = *static_cast<const kernels::ReduceArguments*>(launch->arguments[0]);
  kernels::reduce_on_host(*static_cast<const uint32_t*>(context), arguments,
                          uint64_t{launch->grid[0]} * launch->block[0]);
}

void run_copies(const weir_hostcuda_launch* launch, void* /*context*/) {
  kernels::copy_on_host(*static_cast<const kernels::CopyArguments*>(launch->arguments[0]),
                        launch->grid[0]);
}

// Waits for the kernels of other ranks.
void move_messages(const weir_hostcuda_launch& launch, const Cancel& cancel) {
  constexpr int kYields = 200;
  constexpr int kLooksPerNap = 50;
  constexpr int kDoublingsMax = 4;
  constexpr std::chrono::microseconds kNapMin{20};
  kernels::MessageMover mover(*static_cast<const kernels::MessageArguments*>(launch.arguments[0]));
  bool any_moved = false;
  int looks = 0;
  while (!mover.advance(&any_moved) && !cancel.load()) {
    looks = any_moved ? 0 : looks + 1;
    if (looks <= kYields) {
      if (looks > 0) std::this_thread::yield();
      continue;
    }
    const int doublings = std::min((looks - kYields) / kLooksPerNap, kDoublingsMax);
    std::this_thread::sleep_for(kNapMin * (1 << doublings));
  }
}

Kernels* make_kernels() {
  static uint32_t types[kernels::kReduceCount];
  auto* const made = new Kernels;
  for (uint32_t type = 0; type < kernels::kReduceCount; ++type) {
    types[type] = type;
    made->functions[kernels::kReduceNames[type]] = {
        run_reduction, &types[type], {sizeof(kernels::ReduceArguments)}, nullptr};
  }
  made->functions[kernels::kCopyName] = {
      run_copies, nullptr, {sizeof(kernels::CopyArguments)}, nullptr};
  made->functions[kernels::kMessageName] = {
      nullptr, nullptr, {sizeof(kernels::MessageArguments)}, move_messages};
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

// That of libweir_hostcuda_kernels.so in the folder of this library; null if there is none. Not
// with the lock held: the loader has one, too, under which libraries register their kernels.
weir_hostcuda_finder finder_of_library() {
  static const weir_hostcuda_finder finder = []() -> weir_hostcuda_finder {
    Dl_info self{};
    if (dladdr(reinterpret_cast<const void*>(&weir_hostcuda_register_kernel), &self) == 0) {
      return nullptr;
    }
    std::string path = self.dli_fname;
    const size_t slash = path.rfind('/');
    path = slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
    void* const library =
        dlopen((path + "libweir_hostcuda_kernels.so").c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    return reinterpret_cast<weir_hostcuda_finder>(dlsym(library, "weir_hostcuda_find_kernel"));
  }();
  return finder;
}

// Called with the lock.
const HostKernel* find_known(const Kernels& known, const std::string& name) {
  if (name.empty()) return nullptr;
  auto at = known.functions.find(name);
  if (at == known.functions.end()) at = known.functions.find(source_name(name));
  if (at != known.functions.end()) return &at->second;
  const auto found = known.found.find(name);
  return found == known.found.end() || !found->second ? nullptr : &*found->second;
}

// Asks the finders for a kernel, once.
void ask_finders(Kernels& known, const std::string& name, weir_hostcuda_finder last) {
  if (name.empty() || known.found.count(name) != 0) return;
  const std::string plain = source_name(name);
  auto finders = known.finders;
  if (last != nullptr) finders.emplace_back(last, nullptr);
  std::optional<HostKernel>& answer = known.found[name];
  for (const auto& [finder, context] : finders) {
    weir_hostcuda_host_kernel given{};
    if (finder(plain.c_str(), &given, context) == 0 || given.kernel == nullptr) continue;
    answer = {
        given.kernel, given.context,
        std::vector<size_t>(given.argument_bytes, given.argument_bytes + given.argument_count),
        nullptr};
    return;
  }
}

// Says once for each kernel that it has no host function. `symbol`: where its file is found.
void report(Kernels& known, const std::string& name, const void* symbol) {
  if (!known.refused.insert(name).second) return;
  const std::string plain = name.empty() ? "(not registered)" : source_name(name);
  const std::string compiled = plain == name || name.empty() ? "" : " (" + name + ")";
  Dl_info place{};
  const bool has_file = symbol != nullptr && dladdr(symbol, &place) != 0 && place.dli_fname;
  std::fprintf(
      stderr,
      "hostcuda: the program launched kernel '%s'%s%s%s, and there is no GPU to run it on. "
      "Register "
      "a host function for it with weir_hostcuda_register_kernel (weir/hostcuda.h), or run this "
      "program with NVIDIA's CUDA runtime on a machine with a GPU.\n",
      plain.c_str(), compiled.c_str(), has_file ? " of " : "", has_file ? place.dli_fname : "");
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
  const weir_hostcuda_finder last = finder_of_library();
  Kernels& known = all_kernels();
  const std::lock_guard lock(known.mutex);
  if (find_known(known, name) == nullptr) ask_finders(known, name, last);
  if (find_known(known, name) != nullptr) return true;
  report(known, name, nullptr);
  return false;
}

Error make_kernel(const void* symbol, const LaunchShape& shape, void* const* arguments,
                  KernelOperation* operation) {
  const weir_hostcuda_finder last = finder_of_library();
  Kernels& known = all_kernels();
  const std::lock_guard lock(known.mutex);
  const auto named = known.names.find(symbol);
  const std::string name = named == known.names.end() ? std::string() : named->second;
  const HostKernel* found = find_known(known, name);
  if (found == nullptr) {
    ask_finders(known, name, last);
    found = find_known(known, name);
  }
  if (found == nullptr) {
    report(known, name, symbol);
    return Error::kInvalidDeviceFunction;
  }
  if (!shape_fits(shape)) return Error::kInvalidConfiguration;
  const HostKernel& kernel = *found;
  if (!kernel.argument_bytes.empty() && arguments == nullptr) return Error::kInvalidValue;
  operation->symbol = symbol;
  operation->name = name;
  operation->function = kernel.function;
  operation->context = kernel.context;
  operation->waits = kernel.waits;
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
                           std::vector<size_t>(argument_bytes, argument_bytes + argument_count),
                           nullptr};
  return 0;
}

int weir_hostcuda_register_finder(weir_hostcuda_finder finder, void* context) {
  if (finder == nullptr) return 1;
  auto& known = weir::hostcuda::all_kernels();
  const std::lock_guard lock(known.mutex);
  known.finders.emplace_back(finder, context);
  known.found.clear();  // it may have what the others lacked
  return 0;
}
