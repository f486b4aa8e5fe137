// SPDX-License-Identifier: Apache-2.0
#include "cuda/driver_table.h"

#include <dlfcn.h>

#include <atomic>
#include <memory>

namespace weir::cuda {

namespace {

// The first of `symbols` that there is.
template <typename Function, typename... Symbols>
void look_up(void* library, Function* function, Symbols... symbols) {
  for (const char* symbol : {symbols...}) {
    if (*function == nullptr) *function = reinterpret_cast<Function>(dlsym(library, symbol));
  }
}

Driver look_up_all(void* library) {
  Driver d;
  look_up(library, &d.init, "cuInit");
  look_up(library, &d.device_get_count, "cuDeviceGetCount");
  look_up(library, &d.device_get, "cuDeviceGet");
  look_up(library, &d.device_get_uuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid");
  look_up(library, &d.device_primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  look_up(library, &d.device_primary_ctx_release, "cuDevicePrimaryCtxRelease_v2");
  look_up(library, &d.get_error_name, "cuGetErrorName");
  look_up(library, &d.get_error_string, "cuGetErrorString");
  look_up(library, &d.ctx_get_current, "cuCtxGetCurrent");
  look_up(library, &d.ctx_set_current, "cuCtxSetCurrent");
  look_up(library, &d.ctx_get_device, "cuCtxGetDevice");
  look_up(library, &d.ctx_push_current, "cuCtxPushCurrent_v2");
  look_up(library, &d.ctx_pop_current, "cuCtxPopCurrent_v2");
  look_up(library, &d.pointer_get_attributes, "cuPointerGetAttributes");
  look_up(library, &d.mem_host_alloc, "cuMemHostAlloc");
  look_up(library, &d.mem_free_host, "cuMemFreeHost");
  look_up(library, &d.memcpy_async, "cuMemcpyAsync");
  look_up(library, &d.mem_alloc_async, "cuMemAllocAsync");
  look_up(library, &d.mem_free_async, "cuMemFreeAsync");
  look_up(library, &d.stream_get_ctx, "cuStreamGetCtx");
  look_up(library, &d.stream_write_value32, "cuStreamWriteValue32_v2");
  look_up(library, &d.stream_wait_value32, "cuStreamWaitValue32_v2");
  look_up(library, &d.stream_wait_event, "cuStreamWaitEvent");
  look_up(library, &d.stream_is_capturing, "cuStreamIsCapturing");
  look_up(library, &d.event_create, "cuEventCreate");
  look_up(library, &d.event_record, "cuEventRecord");
  look_up(library, &d.event_query, "cuEventQuery");
  look_up(library, &d.event_destroy, "cuEventDestroy_v2");
  look_up(library, &d.thread_exchange_stream_capture_mode, "cuThreadExchangeStreamCaptureMode");
  look_up(library, &d.stream_create, "cuStreamCreate");
  look_up(library, &d.stream_destroy, "cuStreamDestroy_v2");
  look_up(library, &d.stream_query, "cuStreamQuery");
  look_up(library, &d.ipc_get_mem_handle, "cuIpcGetMemHandle");
  look_up(library, &d.ipc_open_mem_handle, "cuIpcOpenMemHandle_v2");
  look_up(library, &d.mem_get_address_range, "cuMemGetAddressRange_v2");
  look_up(library, &d.mem_retain_allocation_handle, "cuMemRetainAllocationHandle");
  look_up(library, &d.mem_release, "cuMemRelease");
  look_up(library, &d.mem_export_to_shareable_handle, "cuMemExportToShareableHandle");
  look_up(library, &d.mem_import_from_shareable_handle, "cuMemImportFromShareableHandle");
  look_up(library, &d.mem_address_reserve, "cuMemAddressReserve");
  look_up(library, &d.mem_address_free, "cuMemAddressFree");
  look_up(library, &d.mem_map, "cuMemMap");
  look_up(library, &d.mem_set_access, "cuMemSetAccess");
  look_up(library, &d.mem_get_access, "cuMemGetAccess");
  look_up(library, &d.ctx_enable_peer_access, "cuCtxEnablePeerAccess");
  look_up(library, &d.module_load_data, "cuModuleLoadData");
  look_up(library, &d.module_get_function, "cuModuleGetFunction");
  look_up(library, &d.launch_kernel, "cuLaunchKernel");
  look_up(library, &d.stream_batch_mem_op, "cuStreamBatchMemOp_v2");
  look_up(library, &d.user_object_create, "cuUserObjectCreate");
  look_up(library, &d.user_object_release, "cuUserObjectRelease");
  look_up(library, &d.graph_retain_user_object, "cuGraphRetainUserObject");
  look_up(library, &d.stream_get_capture_info_v2, "cuStreamGetCaptureInfo_v2");
  look_up(library, &d.stream_get_capture_info_v3, "cuStreamGetCaptureInfo_v3");
  d.is_stand_in = dlsym(library, "weir_hostcuda_register_kernel") != nullptr;
  return d;
}

bool is_loaded(const char* name) {
  void* library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  dlclose(library);
  return true;
}

// It opens the driver at its first call, which may come later than ours; that of Weir's stand-in never does.
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
  const Driver* known = nullptr;  // by another thread; a lock could be held at a fork
  return found.compare_exchange_strong(known, made.get()) ? made.release() : known;
}

}  // namespace weir::cuda
