// SPDX-License-Identifier: Apache-2.0
// Failure: the first error of a communicator, which breaks it for good, and the text of its latest
// error. Thread-safe; no function waits for a poll.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"

namespace weir::comm {

// What its user can do where ranks have not come by a deadline.
inline constexpr const char* kAtDeadline =
    "Check whether the awaited ranks are stopped, stuck elsewhere, cut off from the network or "
    "slower than the deadline, or raise WEIR_TIMEOUT_MS";

class Failure {
 public:
  // Costs a load.
  bool is_set() const { return code() != Code::kOk; }
  Code code() const { return static_cast<Code>(code_.load(std::memory_order_acquire)); }

  // Breaks the communicator. `blamed`: the ranks that were waited for in vain. False, and nothing
  // is changed, where it is broken already.
  bool set(const Status& status, const std::vector<Rank>& blamed = {});
  // Ok, or what has broken the communicator.
  Status status() const;
  std::vector<Rank> blamed() const;

  // This rank has been asked to abort, or to revoke, which differs in what its peers are told.
  void ask_abort() { abort_asked_.store(true, std::memory_order_release); }
  void ask_revoke() {
    revokes_.store(true, std::memory_order_relaxed);
    ask_abort();
  }
  bool revokes() const { return revokes_.load(std::memory_order_relaxed); }
  bool abort_asked() const { return abort_asked_.load(std::memory_order_acquire); }

  // The latest error, which need not break anything.
  void note(const Status& status);
  std::string text() const;

 private:
  std::atomic<uint8_t> code_{0};
  std::atomic<bool> abort_asked_{false};
  std::atomic<bool> revokes_{false};
  mutable std::mutex lock_;  // of what follows
  Status first_;
  std::vector<Rank> blamed_;
  std::string text_;
};

}  // namespace weir::comm
