// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver_table.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>
#include <string>

namespace weir::cuda {

namespace {

Driver look_up_all(void* library) {
  Driver d;
#define WEIR_CUDA_LOOK_UP_Weir(symbol) \
  d.symbol = reinterpret_cast<decltype(d.symbol)>(dlsym(library, #symbol));
#define WEIR_CUDA_LOOK_UP_Programs(symbol)
#define WEIR_CUDA_LOOK_UP(name, symbol, since, caller, parameters) \
  WEIR_CUDA_LOOK_UP_##caller(symbol)
  WEIR_CUDA_FUNCTIONS(WEIR_CUDA_LOOK_UP)
  WEIR_CUDA_OLDER_FUNCTIONS(WEIR_CUDA_LOOK_UP)
#undef WEIR_CUDA_LOOK_UP
#undef WEIR_CUDA_LOOK_UP_Programs
#undef WEIR_CUDA_LOOK_UP_Weir
  // A driver before 11.4 has the older form only, which does the same.
  if (d.cuDeviceGetUuid_v2 == nullptr) d.cuDeviceGetUuid_v2 = d.cuDeviceGetUuid;
  d.is_stand_in = dlsym(library, "weir_hostcuda_register_kernel") != nullptr;
  d.has_memory =
      reinterpret_cast<decltype(d.has_memory)>(dlsym(library, "weir_hostcuda_has_memory"));
  return d;
}

bool is_loaded(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

// CUDA's runtime opens the driver at its first call, which may come later than this one; the
// runtime of Weir's stand-in never does.
bool runtime_is_loaded() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
    if (is_loaded(name)) return true;
  }
  return false;
}

}  // namespace

const Driver* find_driver(Look look) {
  static std::atomic<const Driver*> found{nullptr};
  if (const Driver* known = found.load(std::memory_order_acquire); known != nullptr) return known;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr && (look == Look::kAnyhow || runtime_is_loaded())) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return nullptr;
  // Kept, with the library, until the process ends: threads may use it until then.
  auto made = std::make_unique<Driver>(look_up_all(library));
  const Driver* known = nullptr;  // made by another thread; no lock, which a fork could leave held
  return found.compare_exchange_strong(known, made.get()) ? made.release() : known;
}

std::string Driver::fault_of(const void* memory, size_t bytes, bool writes) const {
  if (has_memory == nullptr || bytes == 0 || has_memory(memory, bytes, writes ? 1 : 0) != 0) {
    return "";
  }
  const auto address = static_cast<DevicePointer>(reinterpret_cast<uintptr_t>(memory));
  DevicePointer base = 0;
  size_t length = 0;
  if (cuMemGetAddressRange_v2 == nullptr ||
      cuMemGetAddressRange_v2(&base, &length, address) != kSuccess) {
    return "lies in no allocation: it was freed, or nothing is mapped there";
  }
  if (bytes > length - (address - base)) {
    return "begins at byte " + std::to_string(address - base) + " of an allocation of " +
           std::to_string(length) + " bytes and ends outside it: the count is too large for it";
  }
  return "is not accessible (cuMemSetAccess)";
}

}  // namespace weir::cuda
