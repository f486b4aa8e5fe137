// SPDX-License-Identifier: Apache-2.0
#include "plugins/nccl/driver.h"

namespace weir::plugins::nccl {

namespace {

// What the transport calls.
bool is_complete(const Driver& d) {
  return Driver::has(d.init, d.get_error_name, d.device_get, d.device_get_uuid,
                     d.device_primary_ctx_retain, d.device_primary_ctx_release, d.ctx_push_current,
                     d.ctx_pop_current, d.mem_alloc_async, d.mem_free_async, d.memcpy_async,
                     d.stream_create, d.stream_destroy, d.stream_is_capturing, d.event_create,
                     d.event_record, d.event_query, d.event_destroy,
                     d.thread_exchange_stream_capture_mode);
}

}  // namespace

std::string name_of(const Driver& driver, int error) {
  const char* name = nullptr;
  if (driver.get_error_name(error, &name) != 0 || name == nullptr) name = "an unknown error";
  return std::string(name) + " (" + std::to_string(error) + ")";
}

const Driver* driver(std::string* reason) {
  const Driver* it = cuda::find_driver(cuda::Look::kAnyhow);
  if (it == nullptr) {
    *reason = "there is no CUDA driver (libcuda.so.1)";
  } else if (!is_complete(*it)) {
    *reason = "libcuda.so.1 lacks functions of CUDA's driver";
  } else {
    return it;
  }
  return nullptr;
}

DriverScope::DriverScope(const Driver& driver, void* context)
    : driver_(driver), mode_(cuda::kCaptureModeRelaxed) {
  exchanged_ = driver_.thread_exchange_stream_capture_mode(&mode_) == 0;
  pushed_ = context != nullptr && driver_.ctx_push_current(context) == 0;
}

DriverScope::~DriverScope() {
  void* popped = nullptr;
  if (pushed_) (void)driver_.ctx_pop_current(&popped);
  if (exchanged_) (void)driver_.thread_exchange_stream_capture_mode(&mode_);
}

}  // namespace weir::plugins::nccl
