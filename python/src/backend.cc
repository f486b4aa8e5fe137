// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "launch.h"
#include "meeting.h"

namespace weir::pytorch {

namespace {

constexpr int64_t kDayMs = int64_t{24} * 3600 * 1000;

// By OpType.
constexpr size_t kOpTypes = 32;
struct AtomicCount {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> bytes{0};
};
std::array<AtomicCount, kOpTypes> g_counts;

void count(c10d::OpType type, size_t bytes) {
  AtomicCount& counted = g_counts[static_cast<size_t>(type) % kOpTypes];
  counted.calls.fetch_add(1, std::memory_order_relaxed);
  counted.bytes.fetch_add(bytes, std::memory_order_relaxed);
}

weir_comm_config_t config_of(const Backend::Options& options) {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = std::clamp<int64_t>(options.timeout.count(), 1, kDayMs);
  config.flags = WEIR_COMM_HOST_MEMORY;
  if (options.deterministic || at::globalContext().deterministicAlgorithms()) {
    config.flags |= WEIR_COMM_DETERMINISTIC;
  }
  const std::string& name = options.group_desc.empty() ? options.group_name : options.group_desc;
  config.name = name.empty() ? nullptr : name.c_str();
  return config;
}

// Gloo refuses negative ones, and with 0 all its operations time out at once.
void check_timeout(std::chrono::milliseconds timeout) {
  TORCH_CHECK_VALUE(timeout.count() >= 1, "the timeout of a group is 1 ms at least, not ",
                    timeout.count(), " ms");
}

// Asks until it is true, or until then. Not store.wait: that knows of no rank that is lost, and
// warns whenever it ends in vain.
template <typename Ask>
bool ask_until(std::chrono::steady_clock::time_point end, Ask ask) {
  constexpr std::chrono::milliseconds kPauseMax{200};
  std::chrono::milliseconds pause{1};
  while (!ask()) {
    const auto now = std::chrono::steady_clock::now();
    if (now >= end) return false;
    std::this_thread::sleep_for(
        std::min(pause, std::chrono::ceil<std::chrono::milliseconds>(end - now)));
    pause = std::min(2 * pause, kPauseMax);
  }
  return true;
}

// PyTorch splits and merges the backends of all devices with one store, one after the other: each
// time another part of it, which all ranks count alike.
c10::intrusive_ptr<c10d::Store> part_of(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  const int64_t number = store->add("weir/groups/" + std::to_string(rank), 1);
  return c10::make_intrusive<c10d::PrefixStore>("weir/group/" + std::to_string(number), store);
}

c10::intrusive_ptr<Backend::Options> options_like(
    const Backend::Options& own, const c10::intrusive_ptr<c10d::Backend::Options>& given) {
  auto options = c10::make_intrusive<Backend::Options>(given ? given->timeout : own.timeout);
  options->deterministic = own.deterministic;
  options->arena_bytes = own.arena_bytes;
  if (given) {
    options->group_name = given->group_name;
    options->group_desc = given->group_desc;
    options->global_ranks_in_group = given->global_ranks_in_group;
  }
  return options;
}

// The ranks of a group in the default group; empty: it is the default group.
std::vector<int> members_of(const Backend::Options& options) {
  return {options.global_ranks_in_group.begin(), options.global_ranks_in_group.end()};
}

// Of a group that consists of `ranks` of the one of `options`.
std::vector<uint64_t> members_among(const std::vector<int>& ranks,
                                    const Backend::Options& options) {
  const std::vector<uint64_t>& all = options.global_ranks_in_group;
  std::vector<uint64_t> members;
  for (const int rank : ranks) {
    const auto it = static_cast<size_t>(rank);
    members.push_back(it < all.size() ? all[it] : it);
  }
  return members;
}

}  // namespace

std::shared_ptr<SharedCommunicator> connect(const weir_unique_id_t& id, int rank, int size,
                                            const Backend::Options& options,
                                            std::chrono::milliseconds timeout, const char* what,
                                            const std::vector<int>& members) {
  weir_comm_config_t config = config_of(options);
  const int64_t timeout_ms =
      std::exchange(config.timeout_ms, std::clamp<int64_t>(timeout.count(), 1, kDayMs));
  weir_comm_t comm = nullptr;
  check(weir_comm_create(&comm, size, &id, rank, &config), nullptr, what, members);
  auto shared = SharedCommunicator::create(comm, options.timeout, members);
  if (timeout_ms != config.timeout_ms) check(weir_comm_set_timeout(comm, timeout_ms), comm, what);
  return shared;
}

std::map<std::string, OperationCount> operation_counts() {
  std::map<std::string, OperationCount> counts;
  for (size_t i = 0; i < kOpTypes; ++i) {
    const uint64_t calls = g_counts[i].calls.load(std::memory_order_relaxed);
    if (calls == 0) continue;
    counts[c10d::opTypeToString(static_cast<c10d::OpType>(i))] = {
        calls, g_counts[i].bytes.load(std::memory_order_relaxed)};
  }
  return counts;
}

void reset_operation_counts() {
  for (AtomicCount& counted : g_counts) {
    counted.calls = 0;
    counted.bytes = 0;
  }
}

// ---- The group --------------------------------------------------------------------------------

Backend::Start Backend::start(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                              const Options& options, const DeadRanks& dead) {
  constexpr char kWhat[] = "init_process_group or new_group";
  check_timeout(options.timeout);
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  if (options.enable_reconfigure) {
    return {SharedCommunicator::create(nullptr, options.timeout), store};
  }
#endif
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, kWhat, ": rank ", rank, " is not one of 0 to ",
                    size - 1, ", as the world size of ", size, " says");
  const std::vector<int> members = members_of(options);
  const weir_unique_id_t id = meet(*store, rank, size, options.timeout, kWhat, dead, members);
  auto shared = connect(id, rank, size, options, options.timeout, kWhat, members);
  if (rank == 0) forget_meeting(*store, id);
  return {std::move(shared), part_of_meeting(store, id)};
}

Backend::Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                 c10::intrusive_ptr<Options> options, std::string name, const DeadRanks& dead)
    : Backend(start(store, rank, size, *options, dead), rank, size, store, options,
              std::move(name)) {}

Backend::Backend(Start start, int rank, int size, const c10::intrusive_ptr<c10d::Store>& store,
                 c10::intrusive_ptr<Options> options, std::string name)
    : Backend(std::move(start.comm), rank, size, store, std::move(options), std::move(name)) {
  members_store_ = std::move(start.members_store);
}

Backend::Backend(std::shared_ptr<SharedCommunicator> comm, int rank, int size,
                 c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<Options> options,
                 std::string name)
    : c10d::Backend(rank, size),
      options_(std::move(options)),
      name_(std::move(name)),
      store_(std::move(store)),
      members_store_(store_),
      comm_(std::move(comm))
#ifdef C10D_BACKEND_HAS_RECONFIGURE
      ,
      own_name_(name_in_handles(rank))
#endif
{
  init();
}

Backend::~Backend() = default;

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  check_timeout(timeout);
  options_->timeout = timeout;
}

c10d::ErrorType Backend::getError() {
  const auto shared = current();
  if (shared->handle() == nullptr) return c10d::ErrorType::SUCCESS;
  weir_result_t error = WEIR_OK;
  if (weir_comm_async_error(shared->handle(), &error) != WEIR_OK) {
    return c10d::ErrorType::COMM_ERROR;
  }
  switch (error) {
    case WEIR_OK:
      return c10d::ErrorType::SUCCESS;
    case WEIR_ERROR_TIMEOUT:
      return c10d::ErrorType::TIMEOUT;
    case WEIR_ERROR_PEER_LOST:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void Backend::abort() {
  const WithoutPython without;
  current()->abort();
}

void Backend::registerAbortHook(int64_t id, std::function<void()> hook) {
  current()->add_abort_hook(id, std::move(hook));
}

void Backend::unregisterAbortHook(int64_t id) { current()->remove_abort_hook(id); }

void Backend::throw_without_members() const {
  C10_THROW_ERROR(DistBackendError,
                  "the group has no members yet, as it was made with enable_reconfigure: "
                  "torch.distributed._reconfigure comes first");
}

// The communicator ends with the last operation that uses it.
void Backend::shutdown() {}

c10::intrusive_ptr<c10d::Backend> Backend::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const auto found = std::find(ranks.begin(), ranks.end(), getRank());
  if (found == ranks.end()) return nullptr;
  const WithoutPython without;
  const int rank = static_cast<int>(found - ranks.begin());
  auto new_options = options_like(*options_, options);
  new_options->global_ranks_in_group = members_among(ranks, *options_);
  return c10::make_intrusive<Backend>(part_of(store, rank), rank, static_cast<int>(ranks.size()),
                                      std::move(new_options), name_);
}

c10::intrusive_ptr<c10d::Backend> Backend::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& options, const int& rank, const int& size) {
  const WithoutPython without;
  return c10::make_intrusive<Backend>(part_of(store, rank), rank, size,
                                      options_like(*options_, options), name_);
}

c10::intrusive_ptr<c10d::Backend> Backend::shrink(
    const std::vector<int64_t>& excluded, int /*flags*/,
    const c10::intrusive_ptr<c10d::Backend::Options>& options) {
  const WithoutPython without;
  const auto new_options = options_like(*options_, options);
  const std::vector<int> ranks(excluded.begin(), excluded.end());
  const weir_comm_config_t config = config_of(*new_options);
  weir_comm_t shrunk = nullptr;
  check(weir_comm_shrink(comm(), ranks.data(), static_cast<int>(ranks.size()), &config, &shrunk),
        comm(), "shrink");
  // The ranks of a default group are numbered anew.
  std::vector<int> left;
  const bool is_default = options_->global_ranks_in_group.empty();
  for (int old = 0; old < getSize() && !is_default; ++old) {
    if (std::find(ranks.begin(), ranks.end(), old) == ranks.end()) left.push_back(old);
  }
  new_options->global_ranks_in_group = members_among(left, *options_);
  auto shared = SharedCommunicator::create(shrunk, new_options->timeout, members_of(*new_options));
  int rank = 0;
  int size = 0;
  check(weir_comm_rank(shrunk, &rank), shrunk, "shrink");
  check(weir_comm_size(shrunk, &size), shrunk, "shrink");
  // A part of the store of its own: the keys of this group's monitored barriers are there.
  std::string part = "weir/without";
  for (const int lost : ranks) part += c10::str("/", lost);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(part, members_store_);
  return c10::intrusive_ptr<Backend>::unsafe_steal_from_new(
      new Backend(std::move(shared), rank, size, store, new_options, name_));
}

std::vector<int> Backend::lost_ranks() {
  std::vector<int> ranks(static_cast<size_t>(getSize()));
  int found = 0;
  check(weir_comm_lost_ranks(comm(), ranks.data(), getSize(), &found), comm(), "lost_ranks");
  ranks.resize(static_cast<size_t>(std::min(found, getSize())));
  return ranks;
}

std::vector<int> Backend::dead_ranks() {
  const auto shared = current();
  weir_result_t error = WEIR_OK;
  if (shared->handle() == nullptr || weir_comm_async_error(shared->handle(), &error) != WEIR_OK ||
      (error != WEIR_OK && error != WEIR_ERROR_PEER_LOST)) {
    return {};
  }
  return lost_ranks();
}

void Backend::check_rank(int64_t rank, const char* what) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < getSize(), what, ": rank ", rank, " is not in a group of ",
                    getSize());
}

// ---- Memory -----------------------------------------------------------------------------------

std::shared_ptr<Arena> Backend::arena() {
  const WithoutPython without;
  const std::lock_guard lock(arena_mutex_);
  if (arena_ == nullptr) {
    TORCH_CHECK(supportsTensorAlloc(-1), "allocate_tensor: ",
                getSize() == 1 ? "a group of one rank has" : "arena_bytes is 0, so the group has",
                " no memory of its own; ask supports_tensor_alloc first");
    arena_ = Arena::create(comm(), options_->arena_bytes);
  }
  return arena_;
}

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(size >= 0, "allocate_tensor: ", size, " elements");
  const at::ScalarType type = options.dtype().toScalarType();
  TORCH_CHECK_VALUE(!c10::isQIntType(type), "allocate_tensor: a tensor of ", type,
                    " has a quantizer, which memory of the group has no place for: allocate its "
                    "integers (torch.int8, uint8 or int32)");
  TORCH_CHECK_VALUE(options.device().is_cpu(), "allocate_tensor: Weir has memory of the CPU, not ",
                    "of ", options.device());
  const std::shared_ptr<Arena> used = arena();
  if (used->is_shared()) {
    if (auto tensor = used->tensor(size, options)) return *std::move(tensor);
    TORCH_WARN_ONCE("allocate_tensor: ", weir_last_error(nullptr),
                    "; this tensor and others are ordinary memory. See weir.Options.arena_bytes");
  }
  return at::empty({size}, options);
}

std::shared_ptr<c10::Allocator> Backend::getMemAllocator() { return allocator_of(arena()); }

std::unordered_map<std::string, uint64_t> Backend::getMemoryStats() {
  const auto usage = arena_usage();
  if (!usage) return {};
  return {{"arena_bytes", usage->bytes},
          {"arena_used_bytes", usage->used_bytes},
          {"arena_buffer_count", usage->buffer_count}};
}

std::optional<weir_arena_usage_t> Backend::arena_usage() {
  // A thread that creates the arena holds the mutex while it waits for the other ranks.
  const WithoutPython without;
  const std::lock_guard lock(arena_mutex_);
  if (arena_ == nullptr) return std::nullopt;
  return arena_->usage();
}

// ---- Launch -----------------------------------------------------------------------------------

namespace {

bool is_message(c10d::OpType type) {
  return type == c10d::OpType::SEND || type == c10d::OpType::RECV ||
         type == c10d::OpType::RECVANYSOURCE;
}

}  // namespace

Backend::Launch::Launch(Backend& backend, c10d::OpType type, const char* name,
                        std::chrono::milliseconds timeout, bool is_async)
    : backend_(backend), type_(type), name_(name), timeout_(backend.timeout_of(timeout)) {
  backend.check_members();
  sequence_ = is_message(type) ? backend.sequence_.load(std::memory_order_relaxed)
                               : backend.sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (is_async || backend.is_coalescing_.load(std::memory_order_relaxed) ||
      !backend.comm_->has_deadline(timeout_) || at::hasCallbacks() ||
      backend.observed_ != nullptr || backend.is_timed_.load(std::memory_order_relaxed) ||
      c10d::allow_inflight_collective_as_graph_input()) {  // there c10d takes a Work for given
    operation_ = c10::make_intrusive<Operation>(backend.comm_, name);
    if (backend.is_timed_.load(std::memory_order_relaxed)) operation_->measure();
    if (backend.observed_ != nullptr) observe();
  }
}

// The hook learns of the operation when it has finished.
void Backend::Launch::observe() {
  const auto observed = backend_.observed_;
  {
    const std::lock_guard lock(observed->mutex);
    ++observed->pending;
  }
  operation_->set_when_finished(
      [observed, type = type_, sequence = sequence_, begin = std::chrono::steady_clock::now()] {
        const auto end = std::chrono::steady_clock::now();
        observed->hook(std::make_shared<c10d::WorkInfo>(type, sequence, begin, end,
                                                        std::chrono::duration<float>(end - begin)));
        {
          const std::lock_guard lock(observed->mutex);
          --observed->pending;
        }
        observed->changed.notify_all();
      });
}

// What has been started goes on, and its buffers are kept, where a later call threw.
Backend::Launch::~Launch() {
  if (operation_ != nullptr) operation_->watch();
}

void Backend::Launch::finish_now(size_t bytes) {
  count(type_, bytes);
  if (operation_ == nullptr) return;
  operation_->wait(kNoTimeout);
  if (const auto exception = operation_->exception()) std::rethrow_exception(exception);
}

bool Backend::Launch::is_done(size_t bytes) {
  count(type_, bytes);
  return operation_ == nullptr;
}

Backend::WorkPointer Backend::Launch::work(const Tensors& inputs, Outputs outputs) {
  const auto operation = std::move(operation_);
  operation_ = nullptr;
  operation->set_outputs(std::move(outputs));
  const std::string title = at::hasCallbacks() ? backend_.name_ + ":" + name_ : std::string();
  // A hook is called whether anybody waits or not.
  if (backend_.observed_ != nullptr) operation->watch();
  auto work = c10::make_intrusive<OperationWork>(backend_.getRank(), type_,
                                                 title.empty() ? nullptr : title.c_str(), inputs,
                                                 sequence_, operation);
  if (backend_.is_coalescing_.load(std::memory_order_relaxed)) {
    const std::lock_guard lock(backend_.coalescing_mutex_);
    backend_.coalesced_.push_back(work);
  }
  return work;
}

void Backend::registerOnCompletionHook(
    std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) {
  TORCH_CHECK(observed_ == nullptr, "ProcessGroup OnCompletion hook already registered");
  auto observed = std::make_shared<Observed>();
  observed->hook = std::move(hook);
  observed_ = std::move(observed);
  onCompletionHook_ = observed_->hook;  // PyTorch asks whether there is one
}

void Backend::waitForPendingWorks() {
  if (observed_ == nullptr) return;
  const WithoutPython without;
  std::unique_lock lock(observed_->mutex);
  // Once completions have been stopped nobody calls the hook any more.
  while (observed_->pending != 0 && !completions_are_stopped()) {
    observed_->changed.wait_for(lock, std::chrono::milliseconds(100));
  }
}

// ---- Coalescing -------------------------------------------------------------------------------

namespace {

// Complete when all of several are.
class CoalescedWork : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const auto& work) { return work->isSuccess(); });
  }
  std::exception_ptr exception() const override {
    for (const auto& work : works_) {
      if (auto exception = work->exception()) return exception;
    }
    return nullptr;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    for (const auto& work : works_) work->wait(timeout);
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> tensors;
    for (const auto& work : works_) {
      const auto part = work->result();
      tensors.insert(tensors.end(), part.begin(), part.end());
    }
    return tensors;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
        c10::FutureType::create(c10::AnyType::get()));
    for (const auto& work : works_) futures.push_back(work->getFuture());
    return c10::collectAll(futures);
  }

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace

void Backend::startCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  TORCH_CHECK(!is_coalescing_, "startCoalescing: it has been called already");
  is_coalescing_ = true;
}

Backend::WorkPointer Backend::endCoalescing() {
  const std::lock_guard lock(coalescing_mutex_);
  TORCH_CHECK(is_coalescing_, "endCoalescing without startCoalescing");
  is_coalescing_ = false;
  return c10::make_intrusive<CoalescedWork>(getRank(), std::exchange(coalesced_, {}));
}

// ---- Monitored barrier ------------------------------------------------------------------------

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  const WithoutPython without;
  const auto timeout = options.timeout == c10d::kUnsetTimeout ? options_->timeout : options.timeout;
  const uint64_t number = barrier_number_.fetch_add(1);
  count(c10d::OpType::BARRIER, 0);
  const auto key_of = [](uint64_t barrier) {
    return c10::str("weir/monitored_barrier/", barrier, "/");
  };
  const std::string key = key_of(number);
  const auto arrived = [&](int rank) { return key + std::to_string(rank); };
  const std::string all_are_here = key + "all";
  const std::string failed = key + "failed";  // rank 0's text
  const auto end = std::chrono::steady_clock::now() + timeout;
  if (getRank() != 0) {
    members_store_->set(arrived(getRank()), std::vector<uint8_t>{1});
    std::string why;
    const auto ask = [&] {
      if (members_store_->check({all_are_here})) return true;
      if (members_store_->check({failed})) {
        const std::vector<uint8_t> text = members_store_->get(failed);
        why = " " + std::string(text.begin(), text.end());
      } else if (const std::vector<int> dead = dead_ranks();
                 std::find(dead.begin(), dead.end(), 0) != dead.end()) {
        why = " The process of rank 0 has ended.";
      }
      return !why.empty();
    };
    bool is_here = false;
    try {
      is_here = ask_until(end, ask) && why.empty();
    } catch (const std::exception& error) {
      why = c10::str(" The store: ", error.what());
    }
    if (is_here) return;
    C10_THROW_ERROR(DistBackendError,
                    c10::str("Rank ", getRank(),
                             " successfully reached monitoredBarrier, but received errors while "
                             "waiting for send/recv from rank 0. Please check rank 0 logs for "
                             "faulty rank.",
                             why));
  }
  if (timeout.count() <= 0) {
    C10_THROW_ERROR(
        DistBackendError,
        c10::str("[Rank 0]: Rank 0 timed out in monitoredBarrier after ", timeout.count(), " ms"));
  }
  std::vector<std::string> keys;
  for (int rank = 1; rank < getSize(); ++rank) keys.push_back(arrived(rank));
  // A rank that dies after it has come has passed.
  std::vector<int> missing;
  const bool is_over = keys.empty() || ask_until(end, [&] {
                         if (members_store_->check(keys)) return true;
                         for (const int rank : dead_ranks()) {
                           if (!members_store_->check({arrived(rank)})) missing.push_back(rank);
                         }
                         return !missing.empty();
                       });
  const bool any_dead = !missing.empty();
  for (int rank = 1; rank < getSize() && !is_over; ++rank) {
    if (members_store_->check({arrived(rank)})) continue;
    missing.push_back(rank);
    if (!wait_for_all) break;
  }
  if (missing.empty()) {
    members_store_->set(all_are_here, std::vector<uint8_t>{1});
    // What nobody reads any more: who came has passed the barrier before.
    for (int rank = 1; rank < getSize(); ++rank) members_store_->deleteKey(arrived(rank));
    if (number > 0) members_store_->deleteKey(key_of(number - 1) + "all");
    return;
  }
  std::string names;
  for (const int rank : missing) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  const std::string text = c10::str("[Rank 0]: Rank", missing.size() > 1 ? "s " : " ", names,
                                    " failed to pass monitoredBarrier ",
                                    any_dead ? "since its process has ended: see weir.shrink"
                                             : c10::str("in ", timeout.count(), " ms"));
  members_store_->set(failed, std::vector<uint8_t>(text.begin(), text.end()));
  C10_THROW_ERROR(DistBackendError, text);
}

}  // namespace weir::pytorch
