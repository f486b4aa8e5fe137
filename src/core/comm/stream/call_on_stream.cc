// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/call_on_stream.h"

#include <cstring>

#include "core/comm/stream/cuda_error.h"

namespace weir::comm {

void CallOnStream::wait(cuda::DevicePointer flag, uint32_t value) {
  add(cuda::kWaitValue32, flag, value, cuda::kWaitEqual);
}

void CallOnStream::write(cuda::DevicePointer flag, uint32_t value) {
  add(cuda::kWriteValue32, flag, value, cuda::kWriteDefault);
}

void CallOnStream::add(uint32_t operation, cuda::DevicePointer flag, uint32_t value,
                       unsigned flags) {
  entries_.push_back({operation, flag, value, flags, 0, 0});
  if (entries_.size() == cuda::kBatchMax) flush();
}

void CallOnStream::flush() {
  if (entries_.empty()) return;
  if (!ok()) return entries_.clear();
  cuda::enqueue_flags(driver_, stream_, &entries_,
                      [this](const char* call, cuda::Result result) { hold(call, result); });
}

bool CallOnStream::ready() {
  flush();
  return ok();
}

void CallOnStream::copy(void* to, const void* from, size_t bytes) {
  if (!ready()) return;
  hold("cuMemcpyAsync", driver_.cuMemcpyAsync(address(to), address(from), bytes, stream_));
}

void CallOnStream::copy_on_host(HostCopy* copy) {
  call_on_host(
      [](void* argument) {
        const auto& it = *static_cast<HostCopy*>(argument);
        std::memcpy(it.to, it.from, it.bytes);
      },
      copy);
}

void CallOnStream::call_on_host(void (*work)(void*), void* argument) {
  if (!ready()) return;
  hold("cuLaunchHostFunc", driver_.cuLaunchHostFunc(stream_, work, argument));
}

void CallOnStream::launch(cuda::Function kernel, unsigned blocks, unsigned threads,
                          void* arguments) {
  if (!ready()) return;
  void* all[] = {arguments};
  hold("cuLaunchKernel",
       driver_.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, stream_, all, nullptr));
}

bool CallOnStream::write_after_error(cuda::DevicePointer flag, uint32_t value) {
  return driver_.cuStreamWriteValue32_v2(stream_, flag, value, cuda::kWriteDefault) ==
         cuda::kSuccess;
}

void CallOnStream::hold(const char* call, cuda::Result result) {
  if (result != cuda::kSuccess) {
    status_ = cuda_failed(driver_, function_, call, result);
  } else {
    begun_ = true;
  }
}

}  // namespace weir::comm
