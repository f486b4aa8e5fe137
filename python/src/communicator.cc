// SPDX-License-Identifier: Apache-2.0
#include "communicator.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "completions.h"
#include "operation.h"
#include "texts.h"

namespace weir::pytorch {

namespace {

// What weir_comm_set_timeout takes.
constexpr std::chrono::milliseconds kLongestTimeout = std::chrono::hours(24);

bool ends_communicator(weir_result_t result) {
  switch (result) {
    case WEIR_OK:
    case WEIR_ERROR_INVALID_ARGUMENT:
    case WEIR_ERROR_UNSUPPORTED:
    case WEIR_ERROR_NO_MEMORY:
      return false;
    default:
      return true;
  }
}

// The members of groups that are not the default group, by communicator.
class Members {
 public:
  static Members& get() {
    static auto* const all = new Members();  // also while the process ends
    return *all;
  }
  void add(weir_comm_t comm, std::vector<int> members) {
    const std::lock_guard lock(mutex_);
    of_[comm] = std::move(members);
  }
  void remove(weir_comm_t comm) {
    const std::lock_guard lock(mutex_);
    of_.erase(comm);
  }
  std::vector<int> of(weir_comm_t comm) {
    const std::lock_guard lock(mutex_);
    const auto found = of_.find(comm);
    return found == of_.end() ? std::vector<int>() : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<weir_comm_t, std::vector<int>> of_;
};

}  // namespace

SharedCommunicator::SharedCommunicator(weir_comm_t handle, std::chrono::milliseconds timeout,
                                       std::vector<int> members)
    : handle_(handle), deadline_(timeout.count()) {
  if (!members.empty()) Members::get().add(handle, std::move(members));
}

std::shared_ptr<SharedCommunicator> SharedCommunicator::create(weir_comm_t handle,
                                                               std::chrono::milliseconds timeout,
                                                               std::vector<int> members) {
  std::shared_ptr<SharedCommunicator> communicator(
      new SharedCommunicator(handle, timeout, std::move(members)));
  Completions::get().add(communicator);
  return communicator;
}

SharedCommunicator::~SharedCommunicator() {
  Members::get().remove(handle_);
  weir_comm_destroy(handle_);
}

weir_result_t SharedCommunicator::set_deadline(std::chrono::milliseconds timeout) {
  if (has_deadline(timeout)) return WEIR_OK;
  const auto bounded = std::clamp(timeout, std::chrono::milliseconds(1), kLongestTimeout);
  const weir_result_t result = weir_comm_set_timeout(handle_, bounded.count());
  if (result == WEIR_OK) deadline_.store(timeout.count(), std::memory_order_relaxed);
  return result;
}

void SharedCommunicator::add_abort_hook(int64_t id, std::function<void()> hook) {
  auto added = std::make_shared<const std::function<void()>>(std::move(hook));
  Hook previous;  // let go without the lock
  const std::lock_guard lock(hooks_mutex_);
  previous = std::exchange(hooks_[id], std::move(added));
}

void SharedCommunicator::remove_abort_hook(int64_t id) {
  Hook previous;
  const std::lock_guard lock(hooks_mutex_);
  const auto found = hooks_.find(id);
  if (found == hooks_.end()) return;
  previous = std::move(found->second);
  hooks_.erase(found);
}

void SharedCommunicator::take_abort_hooks(SharedCommunicator& previous) {
  std::map<int64_t, Hook> taken;
  {
    const std::lock_guard lock(previous.hooks_mutex_);
    taken.swap(previous.hooks_);
  }
  const std::lock_guard lock(hooks_mutex_);
  hooks_.merge(taken);
}

void SharedCommunicator::call_abort_hooks() {
  std::map<int64_t, Hook> hooks;
  {
    const std::lock_guard lock(hooks_mutex_);
    if (hooks_were_called_ || hooks_.empty()) return;
    hooks_were_called_ = true;
    hooks = hooks_;
  }
  stay_if_python_ends();
  for (const auto& [id, hook] : hooks) {
    try {
      (*hook)();
    } catch (const std::exception& error) {
      TORCH_WARN("abort hook ", id, ": ", error.what());
    }
  }
}

void SharedCommunicator::abort() {
  const char* nothing = nullptr;
  ended_in_.compare_exchange_strong(nothing, "abort");
  call_abort_hooks();
  if (handle_ != nullptr) weir_comm_abort(handle_);
}

std::exception_ptr SharedCommunicator::failed(weir_result_t result, const char* what) {
  std::string title = what;
  weir_result_t error = WEIR_OK;
  const char* first = nullptr;
  if (ends_communicator(result) && weir_comm_async_error(handle_, &error) == WEIR_OK &&
      error != WEIR_OK && !ended_in_.compare_exchange_strong(first, what)) {
    title += c10::str(": the group ended earlier, in ", first, "; abort it, and make another one");
  }
  const std::exception_ptr exception = exception_of(result, handle_, title);
  if (ends_communicator(result)) call_abort_hooks();
  return exception;
}

std::exception_ptr exception_of(weir_result_t result, weir_comm_t comm, const std::string& what,
                                const std::vector<int>& members) {
  std::string text = weir_last_error(comm);
  if (text.empty()) text = weir_result_string(result);
  if (result == WEIR_ERROR_TIMEOUT) text = kTimedOut + text;
  text = with_default_ranks(what + ": " + for_python(std::move(text)),
                            members.empty() ? Members::get().of(comm) : members);
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (result) {
    case WEIR_ERROR_INVALID_ARGUMENT:
      return std::make_exception_ptr(c10::ValueError(here, text));
    case WEIR_ERROR_UNSUPPORTED:
      return std::make_exception_ptr(c10::NotImplementedError(here, text));
    default:
      return std::make_exception_ptr(c10::DistBackendError(here, text));
  }
}

void check(weir_result_t result, weir_comm_t comm, const char* what,
           const std::vector<int>& members) {
  if (result != WEIR_OK) [[unlikely]]
    std::rethrow_exception(exception_of(result, comm, what, members));
}

}  // namespace weir::pytorch
