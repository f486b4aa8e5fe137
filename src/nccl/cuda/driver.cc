// SPDX-License-Identifier: Apache-2.0
#include "nccl/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <mutex>

namespace weir::cuda {

namespace {

template <typename Function>
bool look_up(void* library, const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, symbol));
  return *function != nullptr;
}

// False when a function is missing without which nothing works.
bool look_up_all(void* library, Driver* d) {
  const bool complete = look_up(library, "cuGetErrorName", &d->get_error_name) &&
                        look_up(library, "cuGetErrorString", &d->get_error_string) &&
                        look_up(library, "cuCtxGetCurrent", &d->ctx_get_current) &&
                        look_up(library, "cuCtxGetDevice", &d->ctx_get_device) &&
                        look_up(library, "cuCtxPushCurrent_v2", &d->ctx_push_current) &&
                        look_up(library, "cuCtxPopCurrent_v2", &d->ctx_pop_current) &&
                        look_up(library, "cuPointerGetAttributes", &d->pointer_get_attributes) &&
                        look_up(library, "cuMemHostAlloc", &d->mem_host_alloc) &&
                        look_up(library, "cuMemFreeHost", &d->mem_free_host) &&
                        look_up(library, "cuMemcpyAsync", &d->memcpy_async) &&
                        look_up(library, "cuStreamGetCtx", &d->stream_get_ctx) &&
                        look_up(library, "cuStreamWriteValue32_v2", &d->stream_write_value32) &&
                        look_up(library, "cuStreamWaitValue32_v2", &d->stream_wait_value32) &&
                        look_up(library, "cuStreamWaitEvent", &d->stream_wait_event) &&
                        look_up(library, "cuStreamIsCapturing", &d->stream_is_capturing) &&
                        look_up(library, "cuEventCreate", &d->event_create) &&
                        look_up(library, "cuEventRecord", &d->event_record) &&
                        look_up(library, "cuEventDestroy_v2", &d->event_destroy) &&
                        look_up(library, "cuThreadExchangeStreamCaptureMode",
                                &d->thread_exchange_stream_capture_mode);
  look_up(library, "cuStreamCreate", &d->stream_create);
  look_up(library, "cuStreamDestroy_v2", &d->stream_destroy);
  look_up(library, "cuStreamQuery", &d->stream_query);
  look_up(library, "cuIpcGetMemHandle", &d->ipc_get_mem_handle);
  look_up(library, "cuIpcOpenMemHandle_v2", &d->ipc_open_mem_handle);
  look_up(library, "cuIpcCloseMemHandle", &d->ipc_close_mem_handle);
  look_up(library, "cuCtxEnablePeerAccess", &d->ctx_enable_peer_access);
  look_up(library, "cuModuleLoadData", &d->module_load_data);
  look_up(library, "cuModuleGetFunction", &d->module_get_function);
  look_up(library, "cuLaunchKernel", &d->launch_kernel);
  look_up(library, "cuStreamBatchMemOp_v2", &d->stream_batch_mem_op);
  look_up(library, "cuUserObjectCreate", &d->user_object_create);
  look_up(library, "cuUserObjectRelease", &d->user_object_release);
  look_up(library, "cuGraphRetainUserObject", &d->graph_retain_user_object);
  look_up(library, "cuStreamGetCaptureInfo_v2", &d->stream_get_capture_info_v2);
  look_up(library, "cuStreamGetCaptureInfo_v3", &d->stream_get_capture_info_v3);
  return complete;
}

bool is_loaded(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

// The runtime opens the driver at its first call, which may come later than the first of ours.
bool runtime_is_loaded() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"}) {
    if (is_loaded(name)) return true;
  }
  return false;
}

std::atomic<const Driver*> found{nullptr};

}  // namespace

const Driver* driver(bool asked) {
  if (const Driver* known = found.load(std::memory_order_acquire); known != nullptr) return known;
  static std::mutex* lock = new std::mutex();
  std::lock_guard guard(*lock);
  if (const Driver* known = found.load(std::memory_order_acquire); known != nullptr) return known;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr && (asked || runtime_is_loaded())) {
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return nullptr;
  // Kept, with the library, until the process ends: threads may use it until then.
  auto made = std::make_unique<Driver>();
  if (!look_up_all(library, made.get())) {
    dlclose(library);
    return nullptr;
  }
  found.store(made.get(), std::memory_order_release);
  return made.release();
}

const Driver* known_driver() { return found.load(std::memory_order_acquire); }

const Driver* driver_in_use() {
  const Driver* it = driver(false);
  Context context = nullptr;
  return it != nullptr && it->ctx_get_current(&context) == kSuccess ? it : nullptr;
}

int current_device() {
  const Driver* it = driver_in_use();
  Device device = 0;
  return it != nullptr && it->ctx_get_device(&device) == kSuccess ? device : 0;
}

nccl::Outcome failed(const Driver& driver, const char* function, const char* call, Result result) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.get_error_name(result, &name) != kSuccess || name == nullptr)
    name = "an unknown error";
  if (driver.get_error_string(result, &text) != kSuccess || text == nullptr) text = "no text";
  return {ncclUnhandledCudaError,
          fmt::format("{}: {}: {} ({}): {}", function, call, name, result, text)};
}

ContextScope::ContextScope(const Driver& driver, Stream stream, Context context) : driver_(driver) {
  Context wanted = context;
  Context current = nullptr;
  if (stream != nullptr && driver_.stream_get_ctx(stream, &wanted) != kSuccess) return;
  if (wanted == nullptr) return;
  if (driver_.ctx_get_current(&current) == kSuccess && current == wanted) return;
  pushed_ = driver_.ctx_push_current(wanted) == kSuccess;
}

ContextScope::~ContextScope() {
  Context popped = nullptr;
  if (pushed_) (void)driver_.ctx_pop_current(&popped);
}

RelaxedCapture::RelaxedCapture(const Driver& driver) : driver_(driver) {
  exchanged_ = driver_.thread_exchange_stream_capture_mode(&mode_) == kSuccess;
}

RelaxedCapture::~RelaxedCapture() {
  if (exchanged_) (void)driver_.thread_exchange_stream_capture_mode(&mode_);
}

bool only_on_device(const Driver& driver, const void* pointer) {
  if (pointer == nullptr) return false;
  unsigned type = 0;
  int managed = 0;
  int attributes[] = {kAttributeMemoryType, kAttributeIsManaged};
  void* data[] = {&type, &managed};
  const auto address = static_cast<DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
  if (driver.pointer_get_attributes(2, attributes, data, address) != kSuccess) return false;
  return type == kMemoryDevice && managed == 0;
}

}  // namespace weir::cuda
