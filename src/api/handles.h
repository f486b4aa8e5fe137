// SPDX-License-Identifier: Apache-2.0
// What the opaque handles of weir.h stand for.
#pragma once

#include <memory>

#include "core/base/process_generation.h"
#include "core/comm/communicator.h"
#include "weir/weir.h"

// A handle that was never one, is destroyed, or was made by the process that this one was forked
// from, is told by its mark where the memory still says so: this and the generation of the process.
inline constexpr uint64_t kCommMark = 0x6d6f632d72696577ull;  // "weir-com"

struct weir_comm {
  uint64_t mark = kCommMark + weir::process_generation();
  std::unique_ptr<weir::comm::Communicator> comm;

  bool is_alive() const { return mark == kCommMark + weir::process_generation_if_known(); }
  // It is one of a process that this one was forked from.
  bool is_of_parent() const {
    return mark > kCommMark && mark < kCommMark + weir::process_generation();
  }
};

struct weir_window {
  weir_comm_t comm = nullptr;
};

namespace weir {

// As weir_send and weir_recv with a buffer that the caller knows to lie on `device`; also on a communicator
// made with WEIR_COMM_HOST_MEMORY.
weir_result_t device_message(bool sends, weir_comm_t comm, void* buffer, size_t count,
                             weir_datatype_t type, int peer, int device, weir_request_t* request);

}  // namespace weir
