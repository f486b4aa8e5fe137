// SPDX-License-Identifier: Apache-2.0
// CUDA's driver as a table of functions, found at run time in libcuda.so.1, so that everything is built
// and loaded without CUDA: the one place where Weir looks for it. Looking does not start the driver: a
// process that has started it cannot use it in its forked children. Stands below everything, as src/net.
// Thread-safe.
#pragma once

#include "cuda/abi.h"

namespace weir::cuda {

// One member for each function: the name without "cu", in snake case; nullptr where the library lacks it.
struct Driver {
  Result (*init)(unsigned flags) = nullptr;
  Result (*device_get_count)(int* count) = nullptr;
  Result (*device_get)(Device* device, int ordinal) = nullptr;
  Result (*device_get_uuid)(Uuid* uuid, Device device) = nullptr;
  Result (*device_primary_ctx_retain)(Context* context, Device device) = nullptr;
  Result (*device_primary_ctx_release)(Device device) = nullptr;
  Result (*get_error_name)(Result error, const char** name) = nullptr;
  Result (*get_error_string)(Result error, const char** text) = nullptr;
  Result (*ctx_get_current)(Context* context) = nullptr;
  Result (*ctx_set_current)(Context context) = nullptr;
  Result (*ctx_get_device)(Device* device) = nullptr;
  Result (*ctx_push_current)(Context context) = nullptr;
  Result (*ctx_pop_current)(Context* context) = nullptr;
  Result (*pointer_get_attributes)(unsigned count, int* attributes, void** data,
                                   DevicePointer pointer) = nullptr;
  Result (*mem_host_alloc)(void** memory, size_t bytes, unsigned flags) = nullptr;
  Result (*mem_free_host)(void* memory) = nullptr;
  Result (*memcpy_async)(DevicePointer to, DevicePointer from, size_t bytes,
                         Stream stream) = nullptr;
  Result (*mem_alloc_async)(DevicePointer* pointer, size_t bytes, Stream stream) = nullptr;
  Result (*mem_free_async)(DevicePointer pointer, Stream stream) = nullptr;
  Result (*stream_get_ctx)(Stream stream, Context* context) = nullptr;
  Result (*stream_write_value32)(Stream stream, DevicePointer address, uint32_t value,
                                 unsigned flags) = nullptr;
  Result (*stream_wait_value32)(Stream stream, DevicePointer address, uint32_t value,
                                unsigned flags) = nullptr;
  Result (*stream_wait_event)(Stream stream, Event event, unsigned flags) = nullptr;
  Result (*stream_is_capturing)(Stream stream, int* status) = nullptr;
  Result (*event_create)(Event* event, unsigned flags) = nullptr;
  Result (*event_record)(Event event, Stream stream) = nullptr;
  Result (*event_query)(Event event) = nullptr;
  Result (*event_destroy)(Event event) = nullptr;
  Result (*thread_exchange_stream_capture_mode)(int* mode) = nullptr;
  Result (*stream_create)(Stream* stream, unsigned flags) = nullptr;
  Result (*stream_destroy)(Stream stream) = nullptr;
  Result (*stream_query)(Stream stream) = nullptr;
  Result (*ipc_get_mem_handle)(IpcHandle* handle, DevicePointer pointer) = nullptr;
  Result (*ipc_open_mem_handle)(DevicePointer* pointer, IpcHandle handle, unsigned flags) = nullptr;
  Result (*mem_get_address_range)(DevicePointer* base, size_t* bytes,
                                  DevicePointer pointer) = nullptr;
  Result (*mem_retain_allocation_handle)(AllocationHandle* handle, void* address) = nullptr;
  Result (*mem_release)(AllocationHandle handle) = nullptr;
  Result (*mem_export_to_shareable_handle)(void* shared, AllocationHandle handle, int type,
                                           unsigned long long flags) = nullptr;
  Result (*mem_import_from_shareable_handle)(AllocationHandle* handle, void* shared,
                                             int type) = nullptr;
  Result (*mem_address_reserve)(DevicePointer* address, size_t bytes, size_t alignment,
                                DevicePointer wanted, unsigned long long flags) = nullptr;
  Result (*mem_address_free)(DevicePointer address, size_t bytes) = nullptr;
  Result (*mem_map)(DevicePointer address, size_t bytes, size_t offset, AllocationHandle handle,
                    unsigned long long flags) = nullptr;
  Result (*mem_set_access)(DevicePointer address, size_t bytes, const MemoryAccess* accesses,
                           size_t count) = nullptr;
  Result (*mem_get_access)(unsigned long long* flags, const MemoryLocation* location,
                           DevicePointer address) = nullptr;
  Result (*ctx_enable_peer_access)(Context peer, unsigned flags) = nullptr;
  Result (*module_load_data)(Module* module, const void* image) = nullptr;
  Result (*module_get_function)(Function* function, Module module, const char* name) = nullptr;
  Result (*launch_kernel)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                          unsigned block_x, unsigned block_y, unsigned block_z,
                          unsigned shared_bytes, Stream stream, void** arguments,
                          void** extra) = nullptr;
  Result (*stream_batch_mem_op)(Stream stream, unsigned count, BatchEntry* entries,
                                unsigned flags) = nullptr;
  Result (*user_object_create)(UserObject* object, void* argument, HostFunction destroy,
                               unsigned references, unsigned flags) = nullptr;
  Result (*user_object_release)(UserObject object, unsigned count) = nullptr;
  Result (*graph_retain_user_object)(Graph graph, UserObject object, unsigned count,
                                     unsigned flags) = nullptr;
  Result (*stream_get_capture_info_v2)(Stream stream, int* status, uint64_t* id, Graph* graph,
                                       const void** dependencies, size_t* count) = nullptr;
  Result (*stream_get_capture_info_v3)(Stream stream, int* status, uint64_t* id, Graph* graph,
                                       const void** dependencies, const void** edges,
                                       size_t* count) = nullptr;
  bool is_stand_in = false;  // Weir's own: its devices are host memory

  // What telling the devices apart and choosing one needs.
  bool can_choose_device() const {
    return has(init, device_get_count, device_get, device_get_uuid, ctx_get_device,
               device_primary_ctx_retain, ctx_set_current);
  }
  // What operations that are ordered by a program's streams need.
  bool can_enqueue() const {
    return has(get_error_name, get_error_string, ctx_get_current, ctx_get_device, ctx_push_current,
               ctx_pop_current, pointer_get_attributes, mem_host_alloc, mem_free_host, memcpy_async,
               stream_get_ctx, stream_write_value32, stream_wait_value32, stream_wait_event,
               stream_is_capturing, event_create, event_record, event_destroy,
               thread_exchange_stream_capture_mode, stream_create, stream_destroy, stream_query);
  }
  // What learning how far a program's stream has come needs, in threads of any context.
  bool can_mark() const {
    return has(get_error_name, device_get, device_primary_ctx_retain, device_primary_ctx_release,
               ctx_push_current, ctx_pop_current, stream_is_capturing, event_create, event_record,
               event_query, event_destroy, thread_exchange_stream_capture_mode);
  }
  // What memory of other processes needs.
  bool can_share() const { return ipc_get_mem_handle != nullptr && ipc_open_mem_handle != nullptr; }
  // The same for memory that is made by mapping.
  bool can_share_mapped() const {
    return has(mem_get_address_range, mem_retain_allocation_handle, mem_release,
               mem_export_to_shareable_handle, mem_import_from_shareable_handle,
               mem_address_reserve, mem_address_free, mem_map, mem_set_access);
  }
  // What kernels of the library's own need.
  bool can_launch() const {
    return has(ctx_enable_peer_access, module_load_data, module_get_function, launch_kernel);
  }
  // What records of a graph need.
  bool can_capture() const {
    return user_object_create != nullptr && user_object_release != nullptr &&
           graph_retain_user_object != nullptr &&
           (stream_get_capture_info_v2 != nullptr || stream_get_capture_info_v3 != nullptr);
  }

  // Whether there are all of these functions.
  template <typename... Functions>
  static bool has(Functions... functions) {
    return ((functions != nullptr) && ...);
  }
};

enum class Look {
  kInUse,  // a process that has loaded the driver, or CUDA's runtime, which does so at its first call
  kAnyhow,  // loads it
};

// nullptr: there is none, or the process does not use it. Once found it stays, with its library, until
// the process ends; how it was found first makes no difference. What it lacks is for the caller to see.
const Driver* find_driver(Look look);

}  // namespace weir::cuda
