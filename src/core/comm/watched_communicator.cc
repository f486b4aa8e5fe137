// SPDX-License-Identifier: Apache-2.0
#include "core/comm/watched_communicator.h"

#include <fmt/format.h>

#include "core/base/rank_list.h"
#include "core/comm/communicator.h"

namespace weir::comm {

void WatchedCommunicator::detach() {
  const std::lock_guard lock(lock_);
  comm_ = nullptr;
}

bool WatchedCommunicator::is_broken() {
  const std::lock_guard lock(lock_);
  return comm_ == nullptr || !comm_->health().ok();
}

std::string WatchedCommunicator::last_error() {
  const std::lock_guard lock(lock_);
  return comm_ == nullptr ? "the communicator was destroyed" : comm_->health().text();
}

bool WatchedCommunicator::hears_of_error(const char*) {
  const std::lock_guard lock(lock_);
  if (comm_ == nullptr) return true;
  const Status error = comm_->async_error();
  if (error.ok()) return false;
  comm_->give_up(error);
  return true;
}

std::vector<Rank> WatchedCommunicator::gone_ranks() {
  const std::lock_guard lock(lock_);
  return comm_ == nullptr ? std::vector<Rank>() : comm_->gone_ranks();
}

std::string WatchedCommunicator::describe_lost(const std::vector<Rank>& ranks) {
  const std::lock_guard lock(lock_);
  return comm_ == nullptr ? "" : comm_->describe_lost(ranks);
}

void WatchedCommunicator::note_stuck(const void* call, const std::vector<Rank>& awaited) {
  const std::lock_guard lock(lock_);
  if (comm_ != nullptr) comm_->note_stuck(call, awaited);
}

bool WatchedCommunicator::find_culprits(const std::vector<Rank>& awaited, const WaitTime& time,
                                        uint64_t timeout_ns, std::vector<Rank>* culprits) {
  const std::lock_guard lock(lock_);
  return comm_ == nullptr || comm_->find_culprits(awaited, time, timeout_ns, culprits);
}

void WatchedCommunicator::give_up(const Status& why, const std::vector<Rank>& blamed) {
  const std::lock_guard lock(lock_);
  if (comm_ != nullptr) comm_->give_up(why, blamed);
}

std::string WatchedCommunicator::message_hint(const std::vector<Rank>& ranks) {
  const std::lock_guard lock(lock_);
  if (comm_ == nullptr || ranks.empty()) return "";
  constexpr const char* kRule = "both ends of a message must lie in the same kind of memory";
  const std::vector<Rank> waiting = comm_->waiting_for_this_rank(ranks);
  if (waiting.empty()) return fmt::format("; {}", kRule);
  return fmt::format(
      "; {} for this rank: if it is for this message, one end lies on a device and the other in "
      "memory of the host, and {}",
      describe_ranks(waiting) + (waiting.size() == 1 ? " waits" : " wait"), kRule);
}

std::string WatchedCommunicator::collective_hint(const std::vector<Rank>& ranks) {
  const std::lock_guard lock(lock_);
  return comm_ == nullptr ? "" : comm_->calls_elsewhere(ranks);
}

}  // namespace weir::comm
