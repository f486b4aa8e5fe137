// SPDX-License-Identifier: Apache-2.0
#include "nccl/comm/comm.h"

#include <fmt/format.h>

#include <deque>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "core/base/per_process.h"
#include "core/comm/stream/stream_memory.h"
#include "cuda/driver.h"
#include "nccl/api/translate.h"
#include "nccl/base/read_word.h"
#include "nccl/real/backend.h"

namespace weir::nccl {

namespace {

constexpr uint64_t kMark = 0x6c63636e72696577ull;  // "weirnccl"
constexpr size_t kFactorsMax = 4096;

// The number of a factor is unique in its process, so that a factor of another communicator is not
// mistaken for one of this communicator.
std::atomic<int> next_factor{ncclNumOps};

// For calls whose failure has no remedy.
void ignore(weir_result_t) {}

}  // namespace

Comm::Comm(Config config, int rank, int rank_count, int device)
    : config_(std::move(config)),
      device_(device),
      chose_device_(device != 0 || cuda::has_context()),
      rank_(rank),
      rank_count_(rank_count) {}

int Comm::device_for_child() const { return chose_device_ ? device_ : cuda::current_device(); }

Comm::~Comm() {
  if (ncclComm_t real = release_real(); real != nullptr) (void)backend().real->CommAbort(real);
  if (const auto& memory = devices_.stream_memory(); memory != nullptr && broken()) memory->spoil();
  weir_comm_t comm = weir();
  if (comm == nullptr) return;
  if (leave_one_sided_ != nullptr) leave_one_sided_(*this);
  for (const auto& [name, sibling] : siblings_) weir_comm_destroy(sibling);
  weir_comm_destroy(comm);
}

void Comm::leave_to_parent() {
  if (weir_comm_t comm = weir(); comm != nullptr) weir_comm_destroy(comm);
  if (!lock_.try_lock()) return;
  const std::lock_guard lock(lock_, std::adopt_lock);
  for (const auto& [name, sibling] : siblings_) weir_comm_destroy(sibling);
}

void Comm::attach(weir_comm_t made) {
  int rank = 0;
  int rank_count = 0;
  ignore(weir_comm_rank(made, &rank));
  ignore(weir_comm_size(made, &rank_count));
  std::lock_guard lock(lock_);
  rank_ = rank;
  rank_count_ = rank_count;
  weir_.store(made, std::memory_order_release);
  if (aborted_) weir_comm_abort(made);
}

void Comm::forward_to(ncclComm_t real, int rank, int rank_count) {
  rank_ = rank;
  rank_count_ = rank_count;
  forwarded_.store(true, std::memory_order_release);
  real_.store(real, std::memory_order_release);
}

std::shared_ptr<DerivedIds> Comm::derived_ids() const {
  std::lock_guard lock(lock_);
  return derived_ids_;
}

void Comm::set_derived_ids(std::shared_ptr<DerivedIds> ids) {
  std::lock_guard lock(lock_);
  derived_ids_ = std::move(ids);
}

std::string Comm::title() const {
  std::string text = rank_count() > 0 ? fmt::format("rank {} of {}", rank(), rank_count())
                                      : std::string("a communicator that is not made yet");
  if (!config_.name.empty()) text += fmt::format(" on '{}'", config_.name);
  return text;
}

Outcome Comm::made(const char* function) const {
  const bool is_made = weir() != nullptr || forwarded();
  if (in_flight_.load(std::memory_order_acquire) > 0 || !is_made) {
    const int failed = failure_.load();
    if (!is_made && failed != ncclSuccess) {
      return {static_cast<ncclResult_t>(failed),
              fmt::format("{}: the communicator could not be made: {}", function, last_error())};
    }
    return invalid_argument(fmt::format(
        "{}, {}: an earlier call is still in progress; wait until ncclCommGetAsyncError no longer "
        "says ncclInProgress, or end the group",
        function, title()));
  }
  return {};
}

Outcome Comm::ready(const char* function) const {
  Outcome outcome = made(function);
  if (!outcome.ok()) return outcome;
  if (const int failed = failure_.load(); failed != ncclSuccess) {
    return {static_cast<ncclResult_t>(failed),
            fmt::format("{}, {}: an earlier call failed: {}", function, title(), last_error())};
  }
  const char* why = finalized_.load()   ? "is finalized; only ncclCommDestroy is left"
                    : revoked_.load()   ? "is revoked; split, shrink or destroy it"
                    : suspended_.load() ? "is suspended; call ncclCommResume first"
                                        : nullptr;
  if (why != nullptr) {
    return invalid_usage(fmt::format("{}, {}: the communicator {}", function, title(), why));
  }
  return {};
}

Outcome Comm::shareable(const char* function) const {
  return revoked_.load() ? made(function) : ready(function);
}

ncclResult_t Comm::async_error() {
  if (in_flight_.load(std::memory_order_acquire) > 0) return ncclInProgress;
  if (const int failed = failure_.load(); failed != ncclSuccess) {
    return static_cast<ncclResult_t>(failed);
  }
  if (weir() == nullptr) return ncclInProgress;  // in a group that has not ended
  if (revoked_.load()) return ncclSuccess;
  if (finalized_.load() && !streams_idle()) return ncclInProgress;
  return reported_error(running_.load(std::memory_order_acquire));
}

ncclResult_t Comm::reported_error(const char* during) {
  weir_comm_t comm = weir();
  weir_result_t error = WEIR_OK;
  if (const weir_result_t asked = weir_comm_async_error(comm, &error); asked != WEIR_OK) {
    return to_nccl(asked);
  }
  if (error != WEIR_OK) {
    note_cause(fmt::format("{}{}{}: {}", during != nullptr ? during : "",
                           during != nullptr ? ", " : "", title(), weir_last_error(comm)));
    return to_nccl(error, aborted());
  }
  if (!has_siblings_.load(std::memory_order_acquire)) return ncclSuccess;
  std::string text;
  {
    std::lock_guard lock(lock_);
    for (const auto& [name, sibling] : siblings_) {
      if (weir_comm_async_error(sibling, &error) != WEIR_OK || error == WEIR_OK) continue;
      text = weir_last_error(sibling);
      break;
    }
  }
  if (error == WEIR_OK) return ncclSuccess;
  note_cause(text);
  return to_nccl(error, aborted());
}

void Comm::abort() {
  std::lock_guard lock(lock_);
  aborted_.store(true, std::memory_order_release);
  if (weir_comm_t comm = weir(); comm != nullptr) weir_comm_abort(comm);
  end_the_rest();
}

Outcome Comm::revoke(const char* function) {
  if (weir() == nullptr) return made(function);
  if (revoked_.exchange(true)) {
    return invalid_argument(fmt::format("{}, {}: revoked already", function, title()));
  }
  weir()->comm->revoke();
  std::lock_guard lock(lock_);
  for (const auto& [name, sibling] : siblings_) sibling->comm->revoke();
  return {};
}

Outcome Comm::stop(const char* function) {
  if (forwarded()) return {};  // the real library stops its own operations
  if (weir() == nullptr) return made(function);
  if (!revoked_.exchange(true)) {
    weir_comm_abort(weir());
    std::lock_guard lock(lock_);
    end_the_rest();
  }
  return {};
}

Outcome Comm::finalize(const char* function) {
  Outcome outcome = made(function);
  if (!outcome.ok()) return outcome;
  if (revoked_.load()) {
    return invalid_argument(fmt::format(
        "{}, {}: a revoked communicator cannot be finalized; destroy it", function, title()));
  }
  if (finalized_.exchange(true)) {
    return invalid_argument(fmt::format("{}, {}: finalized already", function, title()));
  }
  if (!config_.blocking) return {};
  wait_for_streams();
  if (outcome = not_stopped(function); !outcome.ok()) return outcome;
  if (const int failed = failure_.load(); failed != ncclSuccess) {
    return {static_cast<ncclResult_t>(failed),
            fmt::format("{}, {}: an earlier call failed: {}", function, title(), last_error())};
  }
  return {};
}

Outcome Comm::suspend(const char* function) {
  Outcome outcome = ready(function);
  if (outcome.ok()) suspended_ = true;
  return outcome;
}

Outcome Comm::resume(const char* function) {
  Outcome outcome = made(function);
  if (!outcome.ok()) return outcome;
  if (!suspended_.exchange(false)) {
    return invalid_usage(
        fmt::format("{}, {}: the communicator is not suspended", function, title()));
  }
  return {};
}

void Comm::background_ends(const Outcome& outcome) {
  // A call that was refused before it began leaves the communicator unchanged, but a caller that
  // polls has no other way to learn of it.
  if (!outcome.ok()) fail(outcome);
  in_flight_.fetch_sub(1, std::memory_order_release);
}

std::shared_ptr<StreamWork> Comm::stream_work(std::shared_ptr<StreamWork> (*make)()) {
  std::lock_guard lock(lock_);
  if (stream_work_ == nullptr) {
    stream_work_ = make();
    has_stream_work_.store(true, std::memory_order_release);
  }
  return stream_work_;
}

std::shared_ptr<StreamWork> Comm::known_stream_work() const {
  if (!has_stream_work_.load(std::memory_order_acquire)) return nullptr;
  std::lock_guard lock(lock_);
  return stream_work_;
}

void Comm::wait_for_streams() {
  if (const auto work = known_stream_work(); work != nullptr) work->wait_until_idle(*this);
}

void Comm::check_streams(const Outcome& outcome) {
  if (const auto work = known_stream_work(); work != nullptr) work->check(*this, outcome);
}

bool Comm::streams_idle() const {
  const auto work = known_stream_work();
  return work == nullptr || broken() || work->idle();
}

void Comm::stream_failed(const Outcome& outcome) {
  if (broken()) return;  // by an earlier error
  (void)report(outcome, this);
  fail(outcome);
}

Outcome Comm::not_stopped(const char* function) const {
  if (!stopped_here()) return {};
  return {ncclInternalError, fmt::format("{}, {}: the communicator was {} meanwhile", function,
                                         title(), aborted() ? "aborted" : "revoked")};
}

void Comm::fail(const Outcome& outcome) {
  note_cause(outcome.text);
  int none = ncclSuccess;
  failure_.compare_exchange_strong(none, outcome.code);
}

void Comm::give_up(const Outcome& outcome) {
  if (broken()) return;
  stream_failed(outcome);
  const Status reason(Code::kAborted, fmt::format("{} failed: {}", title(), outcome.text));
  weir()->comm->give_up(reason);
  std::lock_guard lock(lock_);
  for (const auto& [name, sibling] : siblings_) sibling->comm->give_up(reason);
}

ncclResult_t report(const Outcome& outcome, Comm* comm) {
  const ncclResult_t result = report(outcome, comm != nullptr);
  if (comm == nullptr || outcome.ok() || outcome.code == ncclInProgress) return result;
  try {
    comm->note_error(outcome.text);
  } catch (...) {
    // Without memory for the text, only the code is kept.
  }
  return result;
}

void Comm::note_error(const std::string& text) {
  std::lock_guard lock(lock_);
  if (!has_cause_) error_text_ = text;
}

void Comm::note_cause(const std::string& text) {
  std::lock_guard lock(lock_);
  if (!std::exchange(has_cause_, true)) error_text_ = text;
}

std::string Comm::last_error() const {
  std::lock_guard lock(lock_);
  return error_text_;
}

Outcome Comm::outcome(const char* function, weir_result_t result) const {
  if (result == WEIR_OK) return {};
  return {to_nccl(result, stopped_here()),
          fmt::format("{}, {}: {}", function, title(), weir_last_error(nullptr))};
}

Outcome Comm::create_factor(const char* function, Factor factor, ncclRedOp_t* op) {
  std::lock_guard lock(lock_);
  if (factors_.size() >= kFactorsMax) {
    return invalid_usage(
        fmt::format("{}: {} reductions with a factor are alive; destroy some with "
                    "ncclRedOpDestroy",
                    function, kFactorsMax));
  }
  const int number = next_factor.fetch_add(1);
  if (number < ncclNumOps) {
    return invalid_usage(
        fmt::format("{}: this process has used all numbers for reductions", function));
  }
  factors_.emplace(number, factor);
  *op = static_cast<ncclRedOp_t>(number);
  return {};
}

Outcome Comm::destroy_factor(const char* function, ncclRedOp_t op) {
  std::lock_guard lock(lock_);
  if (factors_.erase(static_cast<int>(op)) == 0) {
    return invalid_argument(
        fmt::format("{}: reduction {} was not made by ncclRedOpCreatePreMulSum on this "
                    "communicator, or was destroyed",
                    function, static_cast<int>(op)));
  }
  return {};
}

std::optional<Factor> Comm::factor(ncclRedOp_t op) const {
  std::lock_guard lock(lock_);
  const auto found = factors_.find(static_cast<int>(op));
  if (found == factors_.end()) return std::nullopt;
  return found->second;
}

void* Comm::add_registration() {
  static std::atomic<uintptr_t> next{1};
  auto* handle = reinterpret_cast<void*>(next.fetch_add(1));
  std::lock_guard lock(lock_);
  registrations_.insert(handle);
  return handle;
}

bool Comm::remove_registration(void* handle) {
  std::lock_guard lock(lock_);
  return registrations_.erase(handle) != 0;
}

ncclWindow_t Comm::add_window(ncclWindow_vidmem window) {
  auto made = std::make_unique<ncclWindow_vidmem>(std::move(window));
  ncclWindow_t handle = made.get();
  std::lock_guard lock(lock_);
  windows_.emplace(handle, std::move(made));
  return handle;
}

std::unique_ptr<ncclWindow_vidmem> Comm::remove_window(ncclWindow_t window) {
  std::lock_guard lock(lock_);
  const auto found = windows_.find(window);
  if (found == windows_.end()) return nullptr;
  auto taken = std::move(found->second);
  windows_.erase(found);
  return taken;
}

std::vector<std::shared_ptr<SharedWindow>> Comm::shared_windows() const {
  std::vector<std::shared_ptr<SharedWindow>> all;
  std::lock_guard lock(lock_);
  for (const auto& [handle, window] : windows_) all.push_back(window->shared);
  return all;
}

std::optional<ncclWindow_vidmem> Comm::window(ncclWindow_t window) const {
  std::lock_guard lock(lock_);
  const auto found = windows_.find(window);
  if (found == windows_.end()) return std::nullopt;
  return *found->second;
}

std::shared_ptr<OneSided> Comm::one_sided() const {
  std::lock_guard lock(lock_);
  return one_sided_;
}

void Comm::set_one_sided(std::shared_ptr<OneSided> state, void (*leave)(const Comm&)) {
  std::lock_guard lock(lock_);
  one_sided_ = std::move(state);
  leave_one_sided_ = leave;
}

weir_comm_t Comm::sibling(const std::string& name) const {
  std::lock_guard lock(lock_);
  const auto found = siblings_.find(name);
  return found == siblings_.end() ? nullptr : found->second;
}

void Comm::add_sibling(const std::string& name, weir_comm_t made) {
  std::lock_guard lock(lock_);
  siblings_.emplace(name, made);
  has_siblings_.store(true, std::memory_order_release);
  if (stopped_here()) weir_comm_abort(made);
}

int Comm::passes(int peer, const void* buffer) const {
  return weir()->comm->messages().device_of(static_cast<Rank>(peer), buffer);
}

void Comm::hold_grow_id(const weir_unique_id_t& id) {
  std::lock_guard lock(lock_);
  grow_id_ = id;
}

std::optional<weir_unique_id_t> Comm::take_grow_id() {
  std::lock_guard lock(lock_);
  return std::exchange(grow_id_, std::nullopt);
}

void Comm::end_the_rest() {
  for (const auto& [name, sibling] : siblings_) weir_comm_abort(sibling);
}

// ---- Handles ------------------------------------------------------------------------------------

namespace {

// Recently closed handles are kept, so that their addresses are not reused while a program may
// still hold them.
constexpr size_t kClosedMax = 1024;

struct Handles {
  std::shared_mutex lock;
  std::unordered_map<ncclComm_t, std::shared_ptr<Comm>> open;
  std::deque<std::unique_ptr<ncclComm>> closed;
  std::unordered_map<ncclComm_t, std::shared_ptr<Comm>> forwarded;  // by the real handle
};

// Threads may use handles while the process ends. A forked child has none of its parent's.
Handles& handles() {
  static constinit PerProcess<Handles> it;
  return it.get();
}

bool is_of_parent(ncclComm_t handle) {
  uint64_t mark = 0;
  return reinterpret_cast<uintptr_t>(handle) % alignof(ncclComm) == 0 && read_word(handle, &mark) &&
         mark > kMark && mark < kMark + process_generation();
}

}  // namespace

ncclComm_t open_handle(std::shared_ptr<Comm> comm) {
  auto handle = std::make_unique<ncclComm>();
  handle->mark = kMark + process_generation();
  handle->comm = comm.get();
  Handles& it = handles();
  std::lock_guard lock(it.lock);
  it.open.emplace(handle.get(), std::move(comm));
  return handle.release();
}

std::shared_ptr<Comm> find(ncclComm_t handle) {
  Handles& it = handles();
  std::shared_lock lock(it.lock);
  const auto found = it.open.find(handle);
  return found == it.open.end() ? nullptr : found->second;
}

Parent find_parent(ncclComm_t handle) {
  Handles& it = handles();
  std::shared_lock lock(it.lock);
  if (const auto found = it.open.find(handle); found != it.open.end()) {
    return {found->second, found->second->real()};
  }
  const auto found = it.forwarded.find(handle);
  return found != it.forwarded.end() ? Parent{found->second, handle} : Parent{};
}

void keep_forwarded(ncclComm_t real, std::shared_ptr<Comm> comm) {
  Handles& it = handles();
  std::lock_guard lock(it.lock);
  it.forwarded[real] = std::move(comm);
}

void forget_forwarded(ncclComm_t real) {
  std::shared_ptr<Comm> last;  // destroyed outside the lock
  Handles& it = handles();
  std::lock_guard lock(it.lock);
  const auto found = it.forwarded.find(real);
  if (found == it.forwarded.end()) return;
  last = std::move(found->second);
  it.forwarded.erase(found);
}

std::shared_ptr<Comm> close_handle(ncclComm_t handle) {
  Handles& it = handles();
  std::lock_guard lock(it.lock);
  const auto found = it.open.find(handle);
  if (found == it.open.end()) return nullptr;
  std::shared_ptr<Comm> comm = std::move(found->second);
  it.open.erase(found);
  handle->mark = 0;
  it.closed.emplace_back(handle);
  if (it.closed.size() > kClosedMax) it.closed.pop_front();
  return comm;
}

std::optional<ncclWindow_vidmem> find_window(ncclWindow_t window) {
  Handles& it = handles();
  std::shared_lock lock(it.lock);
  for (const auto& [handle, comm] : it.open) {
    if (auto found = comm->window(window); found.has_value()) return found;
  }
  return std::nullopt;
}

bool leave_handle_to_parent(ncclComm_t handle) {
  if (!is_of_parent(handle)) return false;
  handle->mark = 0;
  handle->comm->leave_to_parent();
  return true;
}

Outcome no_such_handle(const char* function, ncclComm_t handle) {
  if (handle == nullptr) return invalid_argument(fmt::format("{}: comm is NULL", function));
  if (is_of_parent(handle)) {
    return invalid_usage(
        fmt::format("{}: {}", function, handle->comm->maker().refusal("communicator")));
  }
  return invalid_argument(fmt::format(
      "{}: comm {} is destroyed, aborted or was never a communicator", function, fmt::ptr(handle)));
}

}  // namespace weir::nccl
