// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/calls_in_flight.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <vector>

#include "core/base/pause.h"
#include "core/base/per_process.h"

namespace weir::nccl {

namespace {

// The proxy lets the streams of a communicator that has failed go on. If they do not in this time,
// they are gone.
constexpr std::chrono::seconds kReleased{5};

// Streams may still write to their words. Never destroyed.
struct Resting {
  std::mutex lock;
  std::vector<std::unique_ptr<CallsInFlight>> all;
};
Resting& resting() {
  static constinit PerProcess<Resting> it;
  return it.get();
}

}  // namespace

Outcome CallsInFlight::make(const cuda::Driver& driver, const char* function,
                            std::shared_ptr<CallsInFlight>* made) {
  std::unique_ptr<CallsInFlight> it;
  {
    Resting& known = resting();
    std::lock_guard lock(known.lock);
    const auto found = std::find_if(known.all.begin(), known.all.end(),
                                    [](const auto& one) { return one->has_passed(one->marked_); });
    if (found != known.all.end()) {
      it = std::move(*found);
      known.all.erase(found);
    }
  }
  if (it == nullptr) {
    it.reset(new CallsInFlight());
    Outcome outcome = outcome_of(comm::get_staging(driver, function, 1, 0, &it->words_));
    if (!outcome.ok()) return outcome;
  }
  it->marks_.clear();
  *made = std::shared_ptr<CallsInFlight>(it.release(), give_back);
  return {};
}

void CallsInFlight::give_back(CallsInFlight* it) noexcept {
  std::unique_ptr<CallsInFlight> owned(it);
  try {
    Resting& known = resting();
    std::lock_guard lock(known.lock);
    known.all.push_back(std::move(owned));
  } catch (...) {
    (void)owned.release();  // without memory for the list it is lost
  }
}

uint32_t CallsInFlight::mark() {
  marked_ = made_;
  marks_.push_back(marked_);
  return marked_;
}

bool CallsInFlight::has_passed(uint32_t mark) const {
  return static_cast<int32_t>(words_->mailboxes[0].rung() - mark) >= 0;
}

void CallsInFlight::enter(size_t calls, const Comm& comm) {
  while (!marks_.empty() && has_passed(marks_.front())) marks_.pop_front();
  Pause pause;
  auto broken_since = std::chrono::steady_clock::time_point::max();
  while (!marks_.empty() && made_ - marks_.front() + calls > limit_) {
    if (has_passed(marks_.front())) {
      marks_.pop_front();
      pause.reset();
      continue;
    }
    const auto now = std::chrono::steady_clock::now();
    if (comm.broken() && now < broken_since) broken_since = now;
    if (now > broken_since && now - broken_since > kReleased) break;
    pause.wait();
  }
  made_ += static_cast<uint32_t>(calls);
}

}  // namespace weir::nccl
