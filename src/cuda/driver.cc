// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver.h"

#include <atomic>
#include <cstdlib>

namespace weir::cuda {

namespace {

std::atomic<const Driver*> found{nullptr};

bool is_primary_made(const Driver& driver, int device) {
  unsigned flags = 0;
  int active = 0;
  return driver.cuDevicePrimaryCtxGetState != nullptr &&
         driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == kSuccess && active != 0;
}

// The program's own use keeps it. One that the program has not made yet is made and stays, as
// CUDA's runtime has it.
Context known_primary(const Driver& driver, int device) {
  Context primary = nullptr;
  const bool has_both =
      driver.cuDevicePrimaryCtxRetain != nullptr && driver.cuDevicePrimaryCtxRelease_v2 != nullptr;
  const bool was_made = is_primary_made(driver, device);
  if (!has_both || driver.cuDevicePrimaryCtxRetain(&primary, device) != kSuccess) return nullptr;
  if (was_made) (void)driver.cuDevicePrimaryCtxRelease_v2(device);
  return primary;
}

}  // namespace

const Driver* driver(bool asked) {
  if (const Driver* known = found.load(std::memory_order_acquire); known != nullptr) return known;
  const Driver* it = find_driver(asked ? Look::kAnyhow : Look::kInUse);
  if (it == nullptr || !it->can_enqueue()) return nullptr;
  found.store(it, std::memory_order_release);
  return it;
}

const Driver* known_driver() { return found.load(std::memory_order_acquire); }

const Driver* driver_in_use() {
  const Driver* it = driver(false);
  Context context = nullptr;
  return it != nullptr && it->cuCtxGetCurrent(&context) == kSuccess ? it : nullptr;
}

int current_device() {
  const Driver* it = driver_in_use();
  Device device = 0;
  return it != nullptr && it->cuCtxGetDevice(&device) == kSuccess ? device : 0;
}

bool has_context() {
  const Driver* it = driver_in_use();
  Context context = nullptr;
  return it != nullptr && it->cuCtxGetCurrent(&context) == kSuccess && context != nullptr;
}

int device_count_if_loaded() {
  const Driver* it = find_driver(Look::kInUse);
  int count = 0;
  const bool counts = it != nullptr && Driver::has(it->cuInit, it->cuDeviceGetCount) &&
                      it->cuInit(0) == kSuccess && it->cuDeviceGetCount(&count) == kSuccess;
  return counts ? count : 0;
}

Context context_on(const Driver& driver, int device) {
  Context current = nullptr;
  Device current_device = 0;
  if (driver.cuCtxGetCurrent(&current) != kSuccess || current == nullptr) return nullptr;
  if (driver.cuCtxGetDevice(&current_device) == kSuccess && current_device == device) {
    return current;
  }
  const Context primary = known_primary(driver, device);
  return primary != nullptr ? primary : current;
}

Context primary_context(const Driver& driver, int device) {
  return is_primary_made(driver, device) ? known_primary(driver, device) : nullptr;
}

std::string told_device(const Driver& driver, int device) {
  char address[32] = {};
  if (driver.cuDeviceGetPCIBusId == nullptr ||
      driver.cuDeviceGetPCIBusId(address, sizeof address - 1, device) != kSuccess) {
    return "";
  }
  return std::string(address) + " " + std::to_string(device);
}

uint32_t hardware_queue_count(const Driver& driver) {
  constexpr uint32_t kByDefault = 8;
  if (driver.is_stand_in) return 0;
  const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const int count = text != nullptr ? std::atoi(text) : 0;
  return count > 0 ? static_cast<uint32_t>(count) : kByDefault;
}

std::string describe_error(const Driver& driver, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.cuGetErrorName(result, &name) != kSuccess || name == nullptr)
    name = "an unknown error";
  if (driver.cuGetErrorString(result, &text) != kSuccess || text == nullptr) text = "no text";
  return std::string(name) + " (" + std::to_string(result) + "): " + text;
}

ContextScope::ContextScope(const Driver& driver, Stream stream, Context context) : driver_(driver) {
  Context wanted = context;
  if (stream != nullptr && driver_.cuStreamGetCtx(stream, &wanted) != kSuccess) {
    push(context);
    if (driver_.cuStreamGetCtx(stream, &wanted) != kSuccess) return;
  }
  push(wanted);
}

ContextScope::~ContextScope() {
  Context popped = nullptr;
  for (; pushed_count_ > 0; --pushed_count_) (void)driver_.cuCtxPopCurrent_v2(&popped);
}

void ContextScope::push(Context wanted) {
  Context current = nullptr;
  if (wanted == nullptr) return;
  if (driver_.cuCtxGetCurrent(&current) == kSuccess && current == wanted) return;
  if (driver_.cuCtxPushCurrent_v2(wanted) == kSuccess) ++pushed_count_;
}

RelaxedCapture::RelaxedCapture(const Driver& driver) : driver_(driver) {
  exchanged_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == kSuccess;
}

RelaxedCapture::~RelaxedCapture() {
  if (exchanged_) (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
}

MemoryPlace place_of(const Driver& driver, const void* pointer) {
  if (pointer == nullptr) return MemoryPlace::kManaged;
  unsigned type = 0;
  int managed = 0;
  int attributes[] = {kAttributeMemoryType, kAttributeIsManaged};
  void* data[] = {&type, &managed};
  const auto address = static_cast<DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
  const bool told = driver.cuPointerGetAttributes(2, attributes, data, address) == kSuccess;
  if (told && managed != 0) return MemoryPlace::kManaged;
  if (told && type == kMemoryDevice) return MemoryPlace::kDevice;
  return told && type == kMemoryHost ? MemoryPlace::kPinned : MemoryPlace::kPlain;
}

bool is_on_current_device(const Driver& driver, const void* pointer) {
  Context here = nullptr;
  Context there = nullptr;
  Device device = -1;
  int attributes[] = {kAttributeContext, kAttributeDeviceOrdinal};
  void* data[] = {&there, &device};
  if (driver.cuCtxGetCurrent(&here) != kSuccess ||
      driver.cuPointerGetAttributes(2, attributes, data, reinterpret_cast<uintptr_t>(pointer)) !=
          kSuccess) {
    return false;
  }
  return there != nullptr ? there == here : device == current_device();
}

}  // namespace weir::cuda
