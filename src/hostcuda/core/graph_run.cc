// SPDX-License-Identifier: Apache-2.0
// Running an executable. A branch may wait for another branch, so branches run on threads of their
// own: after a step that makes several others ready, its thread continues with the first and gives
// the rest to other threads.
#include <condition_variable>
#include <utility>

#include "hostcuda/core/graph.h"
#include "hostcuda/core/threads.h"

namespace weir::hostcuda {

namespace {

struct Run {
  std::shared_ptr<const Steps> steps;
  Marks marks;
  Device& device;
  const Cancel& cancel;
  std::mutex mutex;
  std::condition_variable finished;
  std::vector<size_t> waits;  // how many steps each still waits for
  size_t left = 0;

  Run(std::shared_ptr<const Steps> all, Marks records, Device& on, const Cancel& stop)
      : steps(std::move(all)), marks(std::move(records)), device(on), cancel(stop) {
    for (const Step& step : *steps) waits.push_back(step.waits_for);
    left = steps->size();
  }
};

void do_step(Run& run, size_t index) {
  const Step& step = (*run.steps)[index];
  const auto& mark = run.marks[index];
  if (std::holds_alternative<RecordOperation>(step.operation)) {
    if (mark != nullptr) mark->finish();
  } else if (std::holds_alternative<AwaitOperation>(step.operation)) {
    if (mark != nullptr && step.enabled) mark->wait(run.cancel);
  } else if (step.enabled) {
    execute(step.operation, run.device, run.cancel);
  }
}

void follow(const std::shared_ptr<Run>& run, std::vector<size_t> mine) {
  while (!mine.empty()) {
    const size_t index = mine.back();
    mine.pop_back();
    do_step(*run, index);
    std::vector<size_t> ready;
    {
      const std::lock_guard lock(run->mutex);
      for (const size_t next : (*run->steps)[index].next) {
        if (--run->waits[next] == 0) ready.push_back(next);
      }
      // Under the lock: the run may be destroyed as soon as it is seen to be finished.
      if (--run->left == 0) run->finished.notify_all();
    }
    for (size_t i = 0; i < ready.size(); ++i) {
      const size_t step = ready[i];
      if (i == 0 || !run_aside([run, step] { follow(run, {step}); })) mine.push_back(step);
    }
  }
}

}  // namespace

Marks marks_of(const Steps& steps) {
  Marks marks;
  for (const Step& step : steps) {
    if (const auto* record = std::get_if<RecordOperation>(&step.operation)) {
      marks.push_back(step.enabled ? record->event->renew() : nullptr);
    } else if (const auto* await = std::get_if<AwaitOperation>(&step.operation)) {
      marks.push_back(await->event->current());
    } else {
      marks.push_back(nullptr);
    }
  }
  return marks;
}

void run_steps(std::shared_ptr<const Steps> steps, Marks marks, Device& device,
               const Cancel& cancel) {
  if (steps->empty()) return;
  const auto run = std::make_shared<Run>(std::move(steps), std::move(marks), device, cancel);
  std::vector<size_t> mine;
  for (size_t i = 0; i < run->steps->size(); ++i) {
    if ((*run->steps)[i].waits_for != 0) continue;
    if (mine.empty() || !run_aside([run, i] { follow(run, {i}); })) mine.push_back(i);
  }
  follow(run, std::move(mine));
  std::unique_lock lock(run->mutex);
  run->finished.wait(lock, [&] { return run->left == 0; });
  // A thread that helped may still refer to the run; what the run held is released now.
  run->steps.reset();
  run->marks.clear();
}

}  // namespace weir::hostcuda
