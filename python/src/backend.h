// SPDX-License-Identifier: Apache-2.0
// The c10d backend `weir`: PyTorch's collectives and messages of CPU tensors over weir.h.
// Collectives are called in the same order on all ranks; messages are matched by tag. Thread-safe,
// as far as that order allows.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arena.h"
#include "communicator.h"
#include "meeting.h"
#include "operation.h"

namespace weir::pytorch {

// What the process has done, by the name of the operation.
struct OperationCount {
  uint64_t calls = 0;
  uint64_t bytes = 0;  // of the tensors that this rank passed as input, or received into
};
std::map<std::string, OperationCount> operation_counts();
void reset_operation_counts();

class Backend : public c10d::Backend {
 public:
  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds deadline = kBackendDefaultTimeout)
        : c10d::Backend::Options("weir", deadline) {}
    // DDP's logger takes every backend that is registered as GLOO for a ProcessGroupGloo, without a
    // check, and reads options_->threads. Weir's is registered so in Gloo's place and by
    // torch.distributed.shrink_group. These lie where Gloo's do, and so does options_.
    std::vector<std::shared_ptr<void>> devices;
    int threads = 2;  // as Gloo has it
    // Results do not depend on algorithm, chunk size or transport (WEIR_COMM_DETERMINISTIC).
    bool deterministic = false;
    // Of address space that the first allocateTensor of a group reserves on each rank, the same on
    // all ranks of a host; 0: allocateTensor is not offered.
    size_t arena_bytes = default_arena_bytes();
#ifdef C10D_BACKEND_HAS_RECONFIGURE
    // PyTorch changes the copy that it gives to a group which is split off.
    c10::intrusive_ptr<c10d::Backend::Options> clone() const override {
      return c10::make_intrusive<Options>(*this);
    }
#endif
  };

  // Collective over `size` callers with the same `store`. `name` stands in titles of profiles
  // ("weir", or "gloo" in its place). Throws DistBackendError, which names missing ranks.
  // Options of PyTorch 2.14 with enable_reconfigure: local; the group has no members before the
  // first reconfigure, and its other functions throw. `dead` is used during this call only.
  Backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
          c10::intrusive_ptr<Options> options, std::string name, const DeadRanks& dead = {});
  ~Backend() override;

  // ---- About the group ----
  const std::string getBackendName() const override { return name_; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsShrinking() const override { return true; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  c10d::ErrorType getError() override;
  void abort() override;
  // A hook is called once, before the group ends by an error or by abort, in the thread that
  // notices. PyTorch has them from 2.14 on (C10D_BACKEND_HAS_HOOKS); they override its own there.
  void registerAbortHook(int64_t id, std::function<void()> hook)
#ifdef C10D_BACKEND_HAS_HOOKS
      override
#endif
      ;
  void unregisterAbortHook(int64_t id)
#ifdef C10D_BACKEND_HAS_HOOKS
      override
#endif
      ;
  void shutdown() override;
  c10::intrusive_ptr<c10d::Backend> split(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options,
                                          const int& rank, const int& size) override;
  // `flags` is not used: operations in flight on this group are aborted.
  c10::intrusive_ptr<c10d::Backend> shrink(
      const std::vector<int64_t>& excluded, int flags,
      const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // Other members for the group (reconfigure.cc). A handle names this process as a member of the
  // group; it changes with each reconfigure.
  bool supportsReconfigure() const override { return true; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override;
  // Collective over the processes whose handles are given, all with the same handles and `uuid`,
  // which nobody has used with the same store. They meet in the store that each gave to its group.
  // A list gives the ranks; of a set, ranks are in the order of those that the processes had at
  // first. Returns when all are there, or throws DistBackendError, which names those that are not;
  // then the group is as before, and may be reconfigured with another uuid. Operations in flight
  // are aborted. No other thread may be in a call on the group, but it may wait for a Work.
  c10::intrusive_ptr<c10d::Work> reconfigure(const c10d::ReconfigureOptions& options) override;
#endif
  const c10::intrusive_ptr<Options>& own_options() const { return options_; }
  const std::shared_ptr<SharedCommunicator>& communicator() const {
    check_members();
    return comm_;
  }
  // Ranks of this group that are lost (weir_comm_lost_ranks).
  std::vector<int> lost_ranks();
  // Those of them whose process is known to have ended. None once a deadline has passed: those that
  // were too slow, and may still come to a barrier or another group, cannot be told apart then.
  std::vector<int> dead_ranks();

  // ---- Collectives ----
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;

  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_coalesced(Tensors& tensors,
                                  const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs,
                        const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input,
                              const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs,
                     const c10d::GatherOptions& options) override;
#ifdef C10D_BACKEND_HAS_WINDOW
  WorkPointer gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                 const c10d::GatherOptions& options) override;
#endif
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs,
                      const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs,
                             const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input,
                            std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                            const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs,
                       const c10d::AllToAllOptions& options) override;
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  // Through the store, so that it works, and names the ranks that are missing, whatever state the
  // communicator is in.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;

  // ---- Messages ----
  WorkPointer send(Tensors& tensors, int destination, int tag) override;
  WorkPointer recv(Tensors& tensors, int source, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;

  // ---- Observation ----
  // `hook` is called once per operation that starts from now on, by a thread of completions.
  void registerOnCompletionHook(
      std::function<void(std::shared_ptr<c10d::WorkInfo>)>&& hook) override;
  // Until the hook has been called for all operations that have started.
  void waitForPendingWorks() override;
  void enableCollectivesTiming() override { is_timed_ = true; }

  // ---- Memory ----
  // Tensors that the other ranks of the host read where they lie. The first call of a group, of
  // either function, is collective over the group, in order with its collectives; from then on each
  // rank calls them by itself. Where ranks share no memory, or the arena is used up, allocateTensor
  // returns ordinary memory.
  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override {
    return getSize() > 1 && options_->arena_bytes != 0;
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  std::shared_ptr<c10::Allocator> getMemAllocator() override;
#ifdef C10D_BACKEND_HAS_WINDOW
  // Of PyTorch's own interface (c10d_window.h); weir.Window can do more.
  bool supportsWindow() const override { return true; }
  c10::intrusive_ptr<c10d::Window> new_window(const std::optional<at::Tensor>& tensor) override;
#endif
  // Bytes of this group's arena; empty: it has none.
  std::unordered_map<std::string, uint64_t> getMemoryStats() override;
  // Of this group's arena; std::nullopt: it has none.
  std::optional<weir_arena_usage_t> arena_usage();

  // ---- Several operations as one ----
  void startCoalescing() override;
  WorkPointer endCoalescing() override;

  // For `weir.all_reduce`: in place, returns when it is done.
  void all_reduce_now(const at::Tensor& tensor, const c10d::ReduceOp& op);

 private:
  class Launch;

  struct Start {
    std::shared_ptr<SharedCommunicator> comm;
    c10::intrusive_ptr<c10d::Store> members_store;
  };
  // Meets the other ranks in the store.
  static Start start(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                     const Options& options, const DeadRanks& dead);
  Backend(Start start, int rank, int size, const c10::intrusive_ptr<c10d::Store>& store,
          c10::intrusive_ptr<Options> options, std::string name);
  Backend(std::shared_ptr<SharedCommunicator> comm, int rank, int size,
          c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<Options> options,
          std::string name);

  std::chrono::milliseconds timeout_of(std::chrono::milliseconds timeout) const {
    return timeout == c10d::kUnsetTimeout || timeout.count() <= 0 ? options_->timeout : timeout;
  }
  void reduce_all(Launch& launch, const at::Tensor& tensor, const c10d::ReduceOp& op);
  void reduce_scatter_flat(Launch& launch, const at::Tensor& output, const at::Tensor& input,
                           const std::vector<size_t>& counts, const c10d::ReduceOp& op);
  void gather_all_flat(Launch& launch, const at::Tensor& output, const at::Tensor& input);
  void gather_all_lists(Launch& launch, const Tensors& outputs, const at::Tensor& input);
  void reduce_scatter_base(Launch& launch, const at::Tensor& output, const at::Tensor& input,
                           const c10d::ReduceOp& op);
  // For reductions that weir.h lacks: `use` gets the flat inputs of all ranks, a row each.
  void gather_to_fold(Launch& launch, const at::Tensor& input,
                      std::function<void(const at::Tensor& rows)> use);
  WorkPointer receive(c10d::OpType type, Tensors& tensors, int source, int tag);
  std::shared_ptr<Arena> arena();
  void check_members() const {
    if (comm_->handle() == nullptr) [[unlikely]]
      throw_without_members();
  }
  [[noreturn]] void throw_without_members() const;
  weir_comm_t comm() const {
    check_members();
    return comm_->handle();
  }
  // For functions that may be called while the group is reconfigured.
  std::shared_ptr<SharedCommunicator> current() const {
    const std::lock_guard lock(members_mutex_);
    return comm_;
  }
  void check_result(weir_result_t result, const char* what) {
    if (result == WEIR_OK) [[likely]]
      return;
    std::rethrow_exception(comm_->failed(result, what));
  }
  void call_gather(Launch& launch, const at::Tensor& flat, const at::Tensor& received, int root);
  void check_rank(int64_t rank, const char* what) const;

  const std::shared_ptr<void> place_of_gloo_store_;  // see Options
  const c10::intrusive_ptr<Options> options_;
  const std::string name_;
  const c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Store> members_store_;  // a part of it for these members alone
  mutable std::mutex members_mutex_;               // of writes of comm_
  std::shared_ptr<SharedCommunicator> comm_;       // without a handle: there are no members yet
  std::atomic<uint64_t> sequence_{0};
  std::atomic<uint64_t> barrier_number_{0};

  // What a hook is told of; shared with the operations, which may outlive the backend.
  struct Observed {
    std::function<void(std::shared_ptr<c10d::WorkInfo>)> hook;
    std::mutex mutex;
    std::condition_variable changed;
    size_t pending = 0;
  };
  std::shared_ptr<Observed> observed_;  // nullptr: no hook
  std::atomic<bool> is_timed_{false};

  std::mutex arena_mutex_;
  std::shared_ptr<Arena> arena_;  // nullptr: not asked for yet

  std::mutex coalescing_mutex_;
  std::atomic<bool> is_coalescing_{false};
  std::vector<WorkPointer> coalesced_;

#ifdef C10D_BACKEND_HAS_RECONFIGURE
  static std::string name_in_handles(int rank);
  const std::string own_name_;         // of this process in handles, without the generation
  std::optional<int64_t> generation_;  // the uuid of the last reconfigure
  std::optional<int64_t> tried_uuid_;  // of the last one, also if it failed
#endif
};

// A communicator of ranks that have the same id, all of which come within `timeout`; that of its
// operations is the one of `options`. Errors begin with `what`. `members`: their ranks in the
// default group; empty: the same.
std::shared_ptr<SharedCommunicator> connect(const weir_unique_id_t& id, int rank, int size,
                                            const Backend::Options& options,
                                            std::chrono::milliseconds timeout, const char* what,
                                            const std::vector<int>& members = {});

}  // namespace weir::pytorch
