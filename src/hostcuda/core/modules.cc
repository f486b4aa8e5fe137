// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/modules.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "hostcuda/core/handles.h"
#include "hostcuda/core/kernels.h"

namespace weir::hostcuda {

namespace {

// Only its address counts.
struct Function {
  char address = 0;
};

struct Module {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Function>> functions;

  ~Module() {
    for (const auto& [name, function] : functions) remove_kernel_symbol(function.get());
  }
};

HandleTable<Module>& modules() {
  static auto* const instance = new HandleTable<Module>;
  return *instance;
}

bool is_image(const void* image) {
  constexpr uint32_t kElf = 0x464c457f;
  constexpr uint32_t kFatbin = 0xba55ed50;
  constexpr uint32_t kFatbinWrapper = 0x466243b1;
  uint32_t first = 0;
  std::memcpy(&first, image, sizeof first);
  if (first == kElf || first == kFatbin || first == kFatbinWrapper) return true;
  // PTX is text in which only white space and comments come before this word.
  const auto* const text = static_cast<const char*>(image);
  return std::strstr(text, ".version") != nullptr;
}

}  // namespace

Error load_module(const void* image, void** module) {
  if (image == nullptr || module == nullptr) return Error::kInvalidValue;
  if (!is_image(image)) return Error::kInvalidImage;
  *module = modules().add(std::make_shared<Module>());
  return Error::kSuccess;
}

Error unload_module(void* module) {
  return modules().take(module) == nullptr ? Error::kInvalidHandle : Error::kSuccess;
}

Error module_function(void* handle, const char* name, void** function) {
  if (name == nullptr || function == nullptr) return Error::kInvalidValue;
  *function = nullptr;
  const std::shared_ptr<Module> module = modules().find(handle);
  if (module == nullptr) return Error::kInvalidHandle;
  if (!has_host_function(name)) return Error::kNotFound;
  const std::lock_guard lock(module->mutex);
  std::unique_ptr<Function>& known = module->functions[name];
  if (known == nullptr) {
    known = std::make_unique<Function>();
    add_kernel_symbol(known.get(), name);
  }
  *function = known.get();
  return Error::kSuccess;
}

}  // namespace weir::hostcuda
