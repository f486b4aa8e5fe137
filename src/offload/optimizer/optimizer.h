// SPDX-License-Identifier: Apache-2.0
// Optimizer: parameter groups, their state, gradients and steps. The C++ side of weir/offload.h,
// which has the contract of each call; errors are as there. Calls are serialized inside, but for
// wait(), which any thread may call beside a step.
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
  // The end of one in a process that was forked from its maker, where its threads, rings and memory
  // are not. Closes what the child has open of it, unless a thread was at it: then it stays open
  // until the child ends. The object itself stays.
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
  // `done_count` (may be nullptr): how many chunks of the step were done when the last of the range
  // was; 0 when no step ran.
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
  // Whether a call may go on now; `what` names it. With the mutex held.
  Status check_use(const char* what, Use use) const;
  Status check_range(const char* what, uint32_t group, uint64_t first, uint64_t count,
                     DataType type, const void* data) const;

  // With the mutex held, or on the thread of a step that was started.
  Status run_step(const StepOptions& options, StepReport* report);
  // `finite`: whether all gradients were. Where one was not, a step over drives that is not held
  // has been taken back, and one into the second slot that is not held has not been kept.
  Status step_memory(uint64_t step, float factor, bool hold, bool into_second, StepReport* report,
                     bool* finite);
  Status step_drives(uint64_t step, float factor, bool hold, StepReport* report, bool* finite);
  void skip(StepReport* report);
  std::string text_of(const NotFinite& found) const;
  Status ensure_whole(uint64_t step, StepReport* report);
  std::vector<GroupStep> group_steps(uint64_t step, float factor) const;
  // The chunk that a step takes at this position.
  uint64_t chunk_at(uint64_t position) const;
  // The state is that of the last commit again; an error, which has that of `reason`, when it is
  // lost.
  Status go_back(const Status& reason);
  // The same, and what the caller is told after `error`: the gradients of a later step are dropped,
  // and those of the steps up to `last` are needed again.
  Status recover(const Status& error, uint64_t last, StepReport* report);
  std::string text_of_repeat(uint64_t last) const;
  // From here on every call returns this.
  Status lost(const Status& reason);
  Status lost(const Status& reason, const std::string& remedy);
  Status check_lost(const char* what) const;
  // What the caller is told of `status` of the home: when it has poisoned the store, the optimizer
  // is lost.
  Status result_of(const std::string& what, const Status& status);
  // What to do about a committed state that is bad.
  std::string damage_remedy() const;
  // `status` of a read, and the remedy where it has found damage.
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
  Status lost_;  // why the optimizer is of no more use; guarded by lost_mutex_

  StepProgress progress_;
  Optimizer* left_before_ = nullptr;  // of leave_to_parent
  std::mutex mutex_;                  // of calls
  std::thread thread_;
  bool started_ = false;  // step_start without step_finish; guarded by mutex_
  Status started_status_;
  StepReport started_report_;
};

}  // namespace weir::offload
