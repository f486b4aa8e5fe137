// SPDX-License-Identifier: Apache-2.0
// What the opaque handles of weir.h stand for.
#pragma once

#include <memory>

#include "core/comm/communicator.h"
#include "weir/weir.h"

// A handle that was never one, or is destroyed, is told by its mark where the memory still says so.
inline constexpr uint64_t kCommMark = 0x6d6f632d72696577ull;  // "weir-com"

struct weir_comm {
  uint64_t mark = kCommMark;
  std::unique_ptr<weir::comm::Communicator> comm;
};

struct weir_window {
  weir_comm_t comm = nullptr;
};
