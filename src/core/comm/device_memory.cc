// SPDX-License-Identifier: Apache-2.0
#include "core/comm/device_memory.h"

#include <link.h>

#include <cstdint>

#include "cuda/driver_table.h"

namespace weir::comm {

namespace device_memory {
std::atomic<bool> known{false};
}

namespace {

std::atomic<const cuda::Driver*> driver{nullptr};
std::atomic<unsigned long long> loaded_seen{0};

// How many objects the loader has loaded so far.
int read_loaded(dl_phdr_info* info, size_t, void* count) {
  *static_cast<unsigned long long*>(count) = info->dlpi_adds;
  return 1;
}

}  // namespace

bool look_for_driver() {
  if (driver_is_known()) return true;
  unsigned long long loaded = 0;
  dl_iterate_phdr(read_loaded, &loaded);
  if (loaded == loaded_seen.load(std::memory_order_relaxed)) return false;
  const cuda::Driver* found = cuda::find_driver(cuda::Look::kInUse);
  if (found != nullptr && found->pointer_get_attributes != nullptr) {
    driver.store(found, std::memory_order_release);
    device_memory::known.store(true, std::memory_order_release);
    return true;
  }
  loaded_seen.store(loaded, std::memory_order_relaxed);
  return false;
}

int device_of_memory(const void* pointer) {
  const cuda::Driver* it = driver.load(std::memory_order_acquire);
  if (it == nullptr || pointer == nullptr) return -1;
  unsigned type = 0;
  int managed = 0;
  int device = 0;
  int attributes[] = {cuda::kAttributeMemoryType, cuda::kAttributeIsManaged,
                      cuda::kAttributeDeviceOrdinal};
  void* data[] = {&type, &managed, &device};
  // Before cuInit, and of memory that CUDA does not know, there is nothing to tell.
  if (it->pointer_get_attributes(3, attributes, data, reinterpret_cast<uintptr_t>(pointer)) != 0)
    return -1;
  return type == cuda::kMemoryDevice && managed == 0 ? device : -1;
}

}  // namespace weir::comm
