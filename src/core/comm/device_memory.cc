// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device_memory.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <mutex>

namespace weir::comm {

namespace device_memory {
std::atomic<bool> known{false};
}

namespace {

// Of cuda.h: CUpointer_attribute, CUmemorytype.
constexpr int kMemoryType = 2;
constexpr int kIsManaged = 8;
constexpr int kDeviceOrdinal = 9;
constexpr unsigned kTypeDevice = 2;

using GetAttributes = int (*)(unsigned count, int* attributes, void** data,
                              unsigned long long pointer);
std::atomic<GetAttributes> get_attributes{nullptr};
std::atomic<unsigned long long> loaded_seen{0};

// How many objects the loader has loaded so far.
int read_loaded(dl_phdr_info* info, size_t, void* count) {
  *static_cast<unsigned long long*>(count) = info->dlpi_adds;
  return 1;
}

bool is_loaded(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

// CUDA's runtime opens the driver at its first call; that of Weir's stand-in never does.
bool runtime_is_loaded() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
    if (is_loaded(name)) return true;
  }
  return false;
}

}  // namespace

bool look_for_driver() {
  if (driver_is_known()) return true;
  unsigned long long loaded = 0;
  dl_iterate_phdr(read_loaded, &loaded);
  if (loaded == loaded_seen.load(std::memory_order_relaxed)) return false;
  static std::mutex* lock = new std::mutex();
  const std::lock_guard guard(*lock);
  if (driver_is_known()) return true;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr && runtime_is_loaded()) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  }
  if (library != nullptr) {
    auto found = reinterpret_cast<GetAttributes>(dlsym(library, "cuPointerGetAttributes"));
    if (found != nullptr) {
      // The reference to the library is kept: the function may be called until the process ends.
      get_attributes.store(found, std::memory_order_release);
      device_memory::known.store(true, std::memory_order_release);
      return true;
    }
    dlclose(library);
  }
  loaded_seen.store(loaded, std::memory_order_relaxed);
  return false;
}

int device_of_memory(const void* pointer) {
  const GetAttributes ask = get_attributes.load(std::memory_order_acquire);
  if (ask == nullptr || pointer == nullptr) return -1;
  unsigned type = 0;
  int managed = 0;
  int device = 0;
  int attributes[] = {kMemoryType, kIsManaged, kDeviceOrdinal};
  void* data[] = {&type, &managed, &device};
  // Before cuInit, and of memory that CUDA does not know, there is nothing to tell.
  if (ask(3, attributes, data, reinterpret_cast<uintptr_t>(pointer)) != 0) return -1;
  return type == kTypeDevice && managed == 0 ? device : -1;
}

}  // namespace weir::comm
