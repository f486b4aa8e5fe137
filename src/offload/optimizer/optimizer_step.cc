// SPDX-License-Identifier: Apache-2.0
// Steps: in memory, over drives, held, taken back.
#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <system_error>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "offload/optimizer/optimizer.h"

namespace weir::offload {
namespace {

constexpr double kSecond = 1e9;

Status usage(std::string text) { return Status(Code::kInvalidUsage, std::move(text)); }

Status validate_step(const StepOptions& options) {
  if (!std::isfinite(options.loss_scale) || options.loss_scale < 0)
    return invalid_argument(fmt::format(
        "step: loss_scale is {}; it must be finite and positive, or 0 for 1", options.loss_scale));
  if (!std::isfinite(options.norm_max) || options.norm_max < 0)
    return invalid_argument(
        fmt::format("step: norm_max is {}; it must be finite and positive, or 0 for no clipping",
                    options.norm_max));
  if (options.hold && options.norm_max > 0)
    return invalid_argument(
        fmt::format("step: norm_max is {} with hold: a held step runs before the norm is known",
                    options.norm_max));
  return {};
}

}  // namespace

// ---- Calls --------------------------------------------------------------------------------------

Status Optimizer::step(const StepOptions& options, StepReport* report) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("step", Use::kChange));
  progress_.begin(home_->placement().state_count());
  StepReport own;
  Status status = run_step(options, &own);
  progress_.end();
  if (report != nullptr) *report = own;
  return status;
}

Status Optimizer::step_start(const StepOptions& options) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("step_start", Use::kChange));
  WEIR_RETURN_IF_ERROR(validate_step(options));
  progress_.begin(home_->placement().state_count());
  started_report_ = {};
  try {
    thread_ = std::thread([this, options] {
      try {
        started_status_ = run_step(options, &started_report_);
      } catch (const std::exception& error) {
        started_status_ = lost(Status(Code::kInternal, error.what()));
      }
      progress_.end();
    });
  } catch (const std::system_error& error) {
    progress_.end();
    return system_error("step_start: cannot start a thread", error.code().value());
  }
  started_ = true;
  return {};
}

Status Optimizer::wait(uint32_t group, uint64_t first, uint64_t count, uint64_t* done_count) {
  if (group >= groups_.size())
    return invalid_argument(fmt::format("wait: group {} of {} groups", group, groups_.size()));
  const ParameterGroup& own = groups_[group];
  if (first > own.element_count || count > own.element_count - first)
    return invalid_argument(fmt::format("wait: {} elements from {} on of group '{}', which has {}",
                                        count, first, own.name, own.element_count));
  if (count == 0) return check_lost("wait");
  const auto [begin, end] = home_->placement().chunks_of(group, first, count);
  const uint64_t done = progress_.wait(begin, end);
  if (done_count != nullptr) *done_count = done;
  return check_lost("wait");
}

Status Optimizer::step_finish(StepReport* report) {
  const std::lock_guard lock(mutex_);
  if (!started_) {
    WEIR_RETURN_IF_ERROR(check_lost("step_finish"));
    return usage("step_finish: no step was started");
  }
  thread_.join();
  started_ = false;
  if (report != nullptr) *report = started_report_;
  return started_status_;
}

Status Optimizer::accept() {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("accept", Use::kHeld));
  if (home_->on_drives()) WEIR_RETURN_IF_ERROR(result_of("accept", home_->commit()));
  held_ = false;
  gradients_.clear(home_->pool());
  return {};
}

Status Optimizer::undo() {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("undo", Use::kHeld));
  if (home_->on_drives()) {
    if (Status status = home_->abandon(); !status.ok()) return lost(status);
  } else {
    home_->swap_slots();
  }
  --step_;
  held_ = false;
  return with_remedy(write_outputs()).with_context("undo: the state is back, the outputs are not");
}

Status Optimizer::commit() {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("commit", Use::kChange));
  if (!home_->on_drives()) return usage("commit: without directories nothing survives a crash");
  if (home_->has_open_step()) return result_of("commit", with_remedy(home_->commit()));
  WEIR_RETURN_IF_ERROR(home_->store().check_names().with_context(
      "commit: destroy the optimizer and open the directories again"));
  return check_committed().with_context("commit");
}

// ---- A step -------------------------------------------------------------------------------------

Status Optimizer::run_step(const StepOptions& options, StepReport* report) {
  const uint64_t begin_ns = now_ns();
  WEIR_RETURN_IF_ERROR(validate_step(options));
  if (options.hold && !home_->on_drives() && !home_->has_second())
    return usage(
        "step: hold needs a second slot for state in memory: create the optimizer with "
        "WEIR_OFFLOAD_UNDO_IN_MEMORY, or give directories");
  WEIR_RETURN_IF_ERROR(gradients_.prepare(true).with_context("step"));
  const double loss_scale = options.loss_scale == 0 ? 1 : options.loss_scale;
  double sum = options.sum_of_squares_of_scaled_gradients;
  const bool is_given = !options.hold && !(sum < 0);
  if (options.hold)
    sum = 0;
  else if (!is_given)
    sum = gradients_.stats(home_->pool()).sum_of_squares();
  report->step = step_;
  report->parameter_count = home_->placement().element_count();
  report->norm = options.hold ? -1 : std::sqrt(sum) / loss_scale;
  const float factor = gradient_factor(sum, loss_scale, options.norm_max);
  // No gradient is larger than the norm, so they are looked at only where the norm is too large. A
  // rank knows only the norm of the other ranks' gradients, and either all ranks skip or none.
  if (!options.hold && !(std::sqrt(sum) * factor <= std::numeric_limits<float>::max())) {
    report->not_finite = gradients_.not_finite(home_->pool(), factor);
    if (!std::isfinite(report->norm) || report->not_finite.count > 0 || options_.rank_count > 1) {
      skip(report);
      report->seconds = static_cast<double>(now_ns() - begin_ns) / kSecond;
      return {};
    }
  }
  const uint64_t before = step_;
  const bool drives = home_->on_drives();
  // With a second slot, a step whose gradients were not checked before goes there, so that it need
  // not be kept.
  const bool into_second = options.hold || (is_given && home_->has_second());
  bool finite = true;
  WEIR_RETURN_IF_ERROR(
      drives ? step_drives(step_ + 1, factor, options.hold, report, &finite)
             : step_memory(step_ + 1, factor, options.hold, into_second, report, &finite));
  if (!finite) report->not_finite = gradients_.not_finite(home_->pool(), factor);
  if (!finite && !options.hold && (drives || into_second)) {
    skip(report);
    report->seconds = static_cast<double>(now_ns() - begin_ns) / kSecond;
    if (step_ == before) return {};
    return invalid_argument(
        fmt::format("step {}: {}, though the sum of squares that was given is finite; {}",
                    before + 1, text_of(report->not_finite), text_of_repeat(before + 1)));
  }
  if (!finite && !options.hold)
    log_warn(fmt::format("offload: step {} went into the state though {}", step_ + 1,
                         text_of(report->not_finite)));
  report->step = ++step_;
  held_ = options.hold;
  if (!held_) gradients_.clear(home_->pool());
  report->seconds = static_cast<double>(now_ns() - begin_ns) / kSecond;
  return {};
}

// The state is that before the step.
void Optimizer::skip(StepReport* report) {
  report->step = step_;
  report->skipped = true;
  report->committed = home_->on_drives() && !home_->has_open_step();
  gradients_.clear(home_->pool());
}

std::string Optimizer::text_of(const NotFinite& found) const {
  return fmt::format("{} gradients are infinite or NaN, the first that of element {} of group '{}'",
                     found.count, found.element, groups_[found.group].name);
}

std::vector<GroupStep> Optimizer::group_steps(uint64_t step, float factor) const {
  std::vector<GroupStep> steps(groups_.size());
  for (uint32_t i = 0; i < groups_.size(); ++i) {
    GroupStep& one = steps[i];
    one.factors = step_factors(groups_[i].method, groups_[i].hyper, step);
    one.gradient = &gradients_.segments(i);
    one.gradient_factor = factor;
    one.copy_in = home_->copy(i);
    one.copy_out = home_->copy(i);
    one.output = outputs_[i];
    one.seed = options_.seed;
    one.first_element = groups_[i].first_element;
  }
  return steps;
}

uint64_t Optimizer::chunk_at(uint64_t position) const {
  const uint64_t count = home_->placement().state_count();
  return options_.order == SweepOrder::kFirstFirst ? position : count - 1 - position;
}

Status Optimizer::step_memory(uint64_t step, float factor, bool hold, bool into_second,
                              StepReport* report, bool* finite) {
  const uint64_t begin_ns = now_ns();
  std::vector<GroupStep> steps = group_steps(step, factor);
  for (uint32_t i = 0; into_second && i < steps.size(); ++i)
    steps[i].copy_out = home_->second_copy(i);
  std::atomic<bool> all_finite{true};
  const Placement& placement = home_->placement();
  home_->pool().parallel_for(placement.state_count(), 1, [&](uint64_t begin, uint64_t end) {
    for (uint64_t position = begin; position < end; ++position) {
      const uint64_t c = chunk_at(position);
      const StateChunk chunk = placement.state(c);
      if (!step_chunk(steps[chunk.group], chunk, home_->resident(c),
                      into_second ? home_->second(c) : home_->resident(c)))
        all_finite = false;
      progress_.done(c);
    }
  });
  *finite = all_finite;
  if (into_second && (hold || *finite)) home_->swap_slots();
  if (into_second && !hold && !*finite) WEIR_RETURN_IF_ERROR(write_outputs());
  const uint64_t end_ns = now_ns();
  report->compute_seconds = static_cast<double>(end_ns - begin_ns) / kSecond;
  Trace trace;
  trace.events.push_back({TraceKind::kCompute, 0, 0, begin_ns, end_ns, 0});
  write_trace(trace);
  return {};
}

Status Optimizer::step_drives(uint64_t step, float factor, bool hold, StepReport* report,
                              bool* finite) {
  // The first step begins from a committed state, and so does a held one, which could not be taken
  // back otherwise.
  if (home_->is_new() || (hold && home_->has_open_step()))
    WEIR_RETURN_IF_ERROR(result_of("step: committing the state before it", home_->commit()));
  const Store& store = home_->store();
  if (options_.rank_count > 1 && !home_->has_open_step() &&
      store.released_epoch() < store.committed()->epoch)
    return usage(fmt::format(
        "step: step {} overwrites the state to which the ranks would go back, and not all {} ranks "
        "are known to have committed step {}: report that with peers_committed",
        step, options_.rank_count, home_->committed_step()));
  WEIR_RETURN_IF_ERROR(ensure_whole(step, report));
  WEIR_RETURN_IF_ERROR(result_of("step", home_->begin_step(step)));
  const bool commits = !hold && step - home_->committed_step() >= options_.durable_every;

  const Placement& placement = home_->placement();
  const std::vector<GroupStep> steps = group_steps(step, factor);
  std::vector<uint64_t> chunks(placement.state_count());
  for (uint64_t i = 0; i < chunks.size(); ++i) chunks[i] = chunk_at(i);
  std::atomic<bool> all_finite{true};
  const auto body = [&](uint64_t c, unsigned char* state) -> Status {
    const StateChunk chunk = placement.state(c);
    if (!step_chunk(steps[chunk.group], chunk, state, state)) {
      all_finite = false;
      if (!hold) return invalid_argument("a gradient is infinite or NaN");
    }
    progress_.done(c);
    return {};
  };
  PipelineReport swept;
  Status status = home_->visit(chunks, commits ? Visit::kCommit : Visit::kChange, body, &swept);
  if (status.ok() && commits) status = home_->commit();
  report->committed = status.ok() && commits;
  report->read_bytes = swept.read_bytes;
  report->written_bytes = swept.written_bytes;
  report->disk_wait_seconds = static_cast<double>(swept.disk_wait_ns) / kSecond;
  report->compute_seconds = static_cast<double>(swept.compute_ns) / kSecond;
  report->compute_hidden = swept.compute_hidden();
  *finite = all_finite;
  if (!hold && !*finite) return go_back(status);
  if (!status.ok()) {
    Status error = recover(status.with_context(fmt::format("step {}", step)), step, report);
    if (status.code() != Code::kRefused || !check_lost("step").ok() || step_ + 1 != step) {
      return error;
    }
    return Status(
        error.code(),
        fmt::format("{}; the previous commit was being overwritten: destroy the optimizer; {}",
                    error.text(), damage_remedy()));
  }
  write_trace(swept.trace);
  return {};
}

// Nothing may overwrite the previous epoch until the whole committed one has been read. When it is
// damaged, the step is refused: its gradients belong to a state that is gone.
Status Optimizer::ensure_whole(uint64_t step, StepReport* report) {
  bool went_back = false;
  const Status status = home_->ensure_whole(&went_back);
  const std::string name = fmt::format("step {}", step);
  // Going back worked, reading that state into memory did not.
  if (!status.ok() && went_back) return lost(status.with_context(name));
  WEIR_RETURN_IF_ERROR(result_of(name, status));
  if (!went_back) return {};
  step_ = home_->committed_step();
  report->step = step_;
  gradients_.clear(home_->pool());
  const std::string what = fmt::format(
      "{}: '{}' was damaged, and no step was taken: {}; continue with the gradients of step {}",
      name, options_.directories[0], home_->store().fallback()->text(), step_ + 1);
  if (Status back = write_outputs(); !back.ok())
    return lost(Status(back.code(), what + "; writing the outputs again failed: " + back.text()));
  return Status(Code::kRefused, what);
}

Status Optimizer::go_back(const Status& reason) {
  Status back = home_->abandon();
  if (back.ok()) {
    step_ = home_->committed_step();
    back = write_outputs();
  }
  if (back.ok()) return {};
  return lost(Status(reason.code(), reason.text() + "; going back failed too: " + back.text()));
}

Status Optimizer::recover(const Status& error, uint64_t last, StepReport* report) {
  if (home_->is_poisoned()) return lost(error);
  const uint64_t before = step_;
  WEIR_RETURN_IF_ERROR(go_back(error));
  if (step_ == before) return error;
  if (report != nullptr) report->step = step_;
  gradients_.clear(home_->pool());
  return Status(error.code(), error.text() + "; " + text_of_repeat(last));
}

std::string Optimizer::text_of_repeat(uint64_t last) const {
  return fmt::format(
      "the optimizer is back at step {}, the last that was committed (durable_every is {}), and "
      "the "
      "gradients are dropped: repeat steps {} to {}, each with its own gradients",
      step_, options_.durable_every, step_ + 1, last);
}

// The step does not fail when its trace cannot be written.
void Optimizer::write_trace(const Trace& trace) const {
  if (options_.trace_file.empty()) return;
  if (const Status status = write_chrome_trace(options_.trace_file, trace); !status.ok())
    log_warn("offload: no trace of the step: " + status.text());
}

}  // namespace weir::offload
