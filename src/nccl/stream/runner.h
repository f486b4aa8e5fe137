// SPDX-License-Identifier: Apache-2.0
// How a task's operations are run, by the proxy or by the caller's thread.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "nccl/base/outcome.h"
#include "nccl/stream/proxy_task.h"

namespace weir::nccl {

// Runs a task whose doorbell has rung to its end. Every ring of the stream is answered, also when
// the communicator is broken, aborted or revoked. Returns early when `leave` becomes true.
void run(ProxyTask& task, const std::atomic<bool>& leave);

// The same without a stream, one task for each communicator. None of their buffers is on a device.
Outcome run_here(const std::vector<std::unique_ptr<ProxyTask>>& tasks);

}  // namespace weir::nccl
