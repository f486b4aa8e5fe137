// SPDX-License-Identifier: Apache-2.0
#include "plugins/nccl/ending.h"

#include <chrono>
#include <functional>
#include <system_error>
#include <thread>

namespace weir::plugins::nccl {

namespace {

constexpr std::chrono::milliseconds kBetweenLooks{1};

}  // namespace

void Ending::run(const std::shared_ptr<State>& state, const Library& library, const Driver& driver,
                 void* context, ncclComm_t comm) {
  const DriverScope scope(driver, context);
  bool finished = false;
  ncclResult_t result = ncclSuccess;
  for (bool asked = false;; asked = true) {
    {
      std::unique_lock lock(state->lock);
      if (asked) state->changed.wait_for(lock, kBetweenLooks, [&] { return state->aborts; });
      if (state->aborts) break;
    }
    if (!asked) {
      result = library.CommFinalize(comm);
    } else if (library.CommGetAsyncError(comm, &result) != ncclSuccess) {
      break;
    }
    finished = result == ncclSuccess;
    if (result != ncclInProgress) break;
  }
  (void)(finished ? library.CommDestroy(comm) : library.CommAbort(comm));
  const std::lock_guard lock(state->lock);
  state->done = true;
  state->changed.notify_all();
}

bool Ending::begin(const Library& library, const Driver& driver, void* context, ncclComm_t comm,
                   bool aborts) {
  auto state = std::make_shared<State>();
  state->aborts = aborts;
  try {
    std::thread(run, state, std::cref(library), std::cref(driver), context, comm).detach();
  } catch (const std::system_error&) {
    return false;
  }
  state_ = std::move(state);
  return true;
}

bool Ending::done() const {
  const std::lock_guard lock(state_->lock);
  return state_->done;
}

bool Ending::wait(int timeout_ms) const {
  std::unique_lock lock(state_->lock);
  return state_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                  [&] { return state_->done; });
}

void Ending::abort() {
  const std::lock_guard lock(state_->lock);
  state_->aborts = true;
  state_->changed.notify_all();
}

}  // namespace weir::plugins::nccl
