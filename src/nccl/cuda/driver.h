// SPDX-License-Identifier: Apache-2.0
// The CUDA driver of this process, real or stand-in, as a table of functions that is looked up in
// the libcuda.so.1 that the process has. Without one there is no table, and nothing else here.
// Thread-safe.
#pragma once

#include <memory>
#include <string>

#include "nccl/cuda/abi.h"
#include "nccl/outcome.h"

namespace weir::cuda {

// One member for each function: the name without "cu", in snake case.
struct Driver {
  Result (*get_error_name)(Result error, const char** name) = nullptr;
  Result (*get_error_string)(Result error, const char** text) = nullptr;
  Result (*ctx_get_current)(Context* context) = nullptr;
  Result (*ctx_get_device)(Device* device) = nullptr;
  Result (*ctx_push_current)(Context context) = nullptr;
  Result (*ctx_pop_current)(Context* context) = nullptr;
  Result (*pointer_get_attributes)(unsigned count, int* attributes, void** data,
                                   DevicePointer pointer) = nullptr;
  Result (*mem_host_alloc)(void** memory, size_t bytes, unsigned flags) = nullptr;
  Result (*mem_free_host)(void* memory) = nullptr;
  Result (*memcpy_async)(DevicePointer to, DevicePointer from, size_t bytes,
                         Stream stream) = nullptr;
  Result (*stream_get_ctx)(Stream stream, Context* context) = nullptr;
  Result (*stream_write_value32)(Stream stream, DevicePointer address, uint32_t value,
                                 unsigned flags) = nullptr;
  Result (*stream_wait_value32)(Stream stream, DevicePointer address, uint32_t value,
                                unsigned flags) = nullptr;
  Result (*stream_wait_event)(Stream stream, Event event, unsigned flags) = nullptr;
  Result (*stream_is_capturing)(Stream stream, int* status) = nullptr;
  Result (*event_create)(Event* event, unsigned flags) = nullptr;
  Result (*event_record)(Event event, Stream stream) = nullptr;
  Result (*event_destroy)(Event event) = nullptr;
  Result (*thread_exchange_stream_capture_mode)(int* mode) = nullptr;
  // These may be missing: nullptr.
  Result (*stream_create)(Stream* stream, unsigned flags) = nullptr;
  Result (*stream_destroy)(Stream stream) = nullptr;
  Result (*stream_query)(Stream stream) = nullptr;
  Result (*ipc_get_mem_handle)(IpcHandle* handle, DevicePointer pointer) = nullptr;
  Result (*ipc_open_mem_handle)(DevicePointer* pointer, IpcHandle handle, unsigned flags) = nullptr;
  Result (*ipc_close_mem_handle)(DevicePointer pointer) = nullptr;
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

  // What a stream of the library's own needs.
  bool can_make_streams() const {
    return stream_create != nullptr && stream_destroy != nullptr && stream_query != nullptr;
  }
  // What memory of other processes needs.
  bool can_share() const {
    return ipc_get_mem_handle != nullptr && ipc_open_mem_handle != nullptr &&
           ipc_close_mem_handle != nullptr;
  }
  // What kernels of the library's own need.
  bool can_launch() const {
    return ctx_enable_peer_access != nullptr && module_load_data != nullptr &&
           module_get_function != nullptr && launch_kernel != nullptr;
  }
  // What records of a graph need.
  bool can_capture() const {
    return user_object_create != nullptr && user_object_release != nullptr &&
           graph_retain_user_object != nullptr &&
           (stream_get_capture_info_v2 != nullptr || stream_get_capture_info_v3 != nullptr);
  }
};

// nullptr when the process uses no CUDA, or one that lacks something. `asked`: a caller has named a
// stream, so that there is one to look for. Once found, it stays.
const Driver* driver(bool asked);

// The one that was found before, or nullptr; costs nothing.
const Driver* known_driver();

// For when a communicator is made: looks whether CUDA is loaded and has been initialized.
const Driver* driver_in_use();

// Of the calling thread's context; 0 where there is none.
int current_device();

// ncclUnhandledCudaError with CUDA's name for it.
nccl::Outcome failed(const Driver& driver, const char* function, const char* call, Result result);

// Makes a stream's context the current one, for as long as it lives; for the NULL stream `context`,
// or, when that is NULL too, the thread's own.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Stream stream, Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

// Allows calls that a stream capture of this thread otherwise forbids.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver);
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const Driver& driver_;
  int mode_ = kCaptureModeRelaxed;
  bool exchanged_ = false;
};

// Whether only the device reaches it; managed, pinned and plain host memory is the host's as well.
bool only_on_device(const Driver& driver, const void* pointer);

}  // namespace weir::cuda
