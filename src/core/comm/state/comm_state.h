// SPDX-License-Identifier: Apache-2.0
// CommState: the state that all parts of a communicator share: which rank of which group this is,
// its transport, and the lock. The communicator owns it and fills it in before any part is used; it
// outlives the parts.
//
// The lock serializes work on a communicator, for the time of a poll. It guards the members that
// say so here, and the parts whose headers say so. It is not recursive.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/process_generation.h"
#include "core/base/secret.h"
#include "core/comm/record/recorder.h"
#include "core/comm/state/failure.h"
#include "core/comm/state/spin_lock.h"
#include "core/comm/state/wait.h"
#include "core/engine/context.h"
#include "core/graph/device_ways.h"
#include "weir/plugin.h"

namespace weir::comm {

struct CommState {
  Rank rank() const { return context.rank; }
  Rank rank_count() const { return context.rank_count; }

  // Constant once the communicator has been made:
  const MakingProcess maker;
  std::string name;
  Secret secret;
  bool deterministic = false;
  bool host_memory = false;  // buffers lie in memory of the host: see WEIR_COMM_HOST_MEMORY
  bool leaves_host = false;  // the ranks are on several hosts
  // Of ranks on devices of one machine, if their links are known.
  std::shared_ptr<const graph::DeviceWays> device_ways;
  WaitPolicy wait_policy;
  weir_host_t host{};  // as transports see it

  // Thread-safe:
  std::atomic<int64_t> timeout_ms{0};
  Failure failure;
  SpinLock lock;

  // Guarded by the lock; rank, rank count and transport are constant.
  engine::Context context;
  std::string transport_error;  // text of the transport's latest error
  Recorder recorder;
};

}  // namespace weir::comm
