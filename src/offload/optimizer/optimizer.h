// SPDX-License-Identifier: Apache-2.0
// Optimizer: parameter groups, their state, gradients and steps. The C++ side of weir/offload.h,
// which has the contract of each call; errors are as there. Calls are serialized inside, except
// wait(), which any thread may call during a step.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "offload/io/trace.h"
#include "offload/optimizer/chunk_step.h"
#include "offload/optimizer/gradients.h"
#include "offload/optimizer/options.h"
#include "offload/optimizer/state_home.h"
#include "offload/optimizer/step_progress.h"

namespace weir::offload {

class Optimizer {
 public:
  static Result<std::unique_ptr<Optimizer>> create(const OptimizerOptions& options,
                                                   const std::vector<ParameterGroup>& groups);
  static Result<std::unique_ptr<Optimizer>> open(const OptimizerOptions& options,
                                                 const std::vector<ParameterGroup>& groups);
  ~Optimizer();
  // Ends the optimizer in a process forked from the one that made it, where its threads, rings and
  // memory do not exist. Closes the child's copies of its open files, unless a thread was using it:
  // then they stay open until the child ends. The object itself is not freed.
  static void leave_to_parent(std::unique_ptr<Optimizer> optimizer);
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // `shards[r]`: the directories of rank r of the run that wrote them.
  Status restore(const std::vector<std::vector<std::string>>& shards);

  Status set_parameters(uint32_t group, uint64_t first, uint64_t count, DataType type,
                        const void* parameters);
  Status get_parameters(uint32_t group, uint64_t first, uint64_t count, DataType type,
                        void* parameters);
  Status set_output(uint32_t group, DataType type, void* output, bool stochastic);
  Status set_hyper(uint32_t group, const Hyper& hyper);

  Status gradient(uint32_t group, uint64_t first, uint64_t count, DataType type,
                  const void* gradient);
  Status accumulate(uint32_t group, uint64_t first, uint64_t count, DataType type,
                    const void* gradient);
  Status gradient_stats(double* sum_of_squares_of_scaled_gradients, bool* all_finite);

  Status step(const StepOptions& options, StepReport* report);
  Status step_start(const StepOptions& options);
  // `done_count` (may be nullptr): how many chunks of the step were done when the last one of the
  // range was; 0 when no step ran.
  Status wait(uint32_t group, uint64_t first, uint64_t count, uint64_t* done_count = nullptr);
  Status step_finish(StepReport* report);
  Status accept();
  Status undo();
  Status commit();

  Status committed_step(uint64_t* step);
  Status peers_committed(uint64_t step);
  Status roll_back(uint64_t step);
  Status checkpoint(const std::vector<std::string>& directories);

  Status memory_bytes(uint64_t* bytes);
  Status store_report(StoreReport* report);
  std::string describe();

 private:
  Optimizer(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups);
  static Status validate(const OptimizerOptions& options);

  enum class Use : uint8_t { kRead, kChange, kHeld };
  // Whether a call may proceed now; `what` names it. Called with the mutex held.
  Status check_use(const char* what, Use use) const;
  Status check_range(const char* what, uint32_t group, uint64_t first, uint64_t count,
                     DataType type, const void* data) const;

  // Called with the mutex held, or on the thread of a started step.
  Status run_step(const StepOptions& options, StepReport* report);
  // `finite`: whether all gradients were. If one was not, a step that is not held has been taken
  // back (over drives) or was not kept (into the second slot).
  Status step_memory(uint64_t step, float factor, bool hold, bool into_second, StepReport* report,
                     bool* finite);
  Status step_drives(uint64_t step, float factor, bool hold, StepReport* report, bool* finite);
  void skip(StepReport* report);
  std::string text_of(const NotFinite& found) const;
  Status ensure_whole(uint64_t step, StepReport* report);
  std::vector<GroupStep> group_steps(uint64_t step, float factor) const;
  // The chunk that a step takes at this position.
  uint64_t chunk_at(uint64_t position) const;
  // Restores the state of the last commit; an error, which includes the text of `reason`, when that
  // is lost.
  Status go_back(const Status& reason);
  // The same, and returns what the caller is told after `error`: the gradients of a later step are
  // dropped, and those of the steps up to `last` are needed again.
  Status recover(const Status& error, uint64_t last, StepReport* report);
  std::string text_of_repeat(uint64_t last) const;
  // From here on every call returns this.
  Status lost(const Status& reason);
  Status lost(const Status& reason, const std::string& remedy);
  Status check_lost(const char* what) const;
  // Turns a `status` of the StateHome into the caller's: when it has poisoned the store, the
  // optimizer is lost.
  Status result_of(const std::string& what, const Status& status);
  // Says what to do about a damaged committed state.
  std::string damage_remedy() const;
  // The `status` of a read, with the remedy where it found damage.
  Status with_remedy(const Status& status) const;
  // Refused where the committed state is known to be bad.
  Status check_committed() const;
  Status write_outputs();
  void write_trace(const Trace& trace) const;
  Status visit_parameters(uint32_t group, uint64_t first, uint64_t count, const ChunkBody& body,
                          Visit kind);
  Status reserve_accumulators(uint32_t group);
  Status copy_checkpoint(const std::string& directory);
  Status copy_through(Disk* disk, const std::string& making, const std::string& directory);

  OptimizerOptions options_;
  std::vector<ParameterGroup> groups_;
  std::unique_ptr<StateHome> home_;
  Gradients gradients_;
  std::vector<Output> outputs_;
  uint64_t step_ = 0;  // steps that the state has taken
  bool held_ = false;  // the last step waits for accept or undo
  bool held_in_second_ = false;
  mutable std::mutex lost_mutex_;
  Status lost_;  // why the optimizer is unusable; guarded by lost_mutex_

  StepProgress progress_;
  Optimizer* left_before_ = nullptr;  // of leave_to_parent
  std::mutex mutex_;                  // of calls
  std::thread thread_;
  bool started_ = false;  // step_start without step_finish; guarded by mutex_
  Status started_status_;
  StepReport started_report_;
};

}  // namespace weir::offload
