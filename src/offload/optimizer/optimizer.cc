// SPDX-License-Identifier: Apache-2.0
#include "offload/optimizer/optimizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>

#include "offload/optimizer/number_format.h"

namespace weir::offload {
namespace {

// Elements that are converted at a time; a multiple of kMomentBlock.
constexpr uint64_t kWindow = 4096;

Status usage(std::string text) { return Status(Code::kInvalidUsage, std::move(text)); }

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, const std::vector<ParameterGroup>& groups)
    : options_(options), groups_(groups), gradients_(&groups_), outputs_(groups.size()) {
  if (options_.durable_every == 0) options_.durable_every = 1;
  // The paths are used as long as the optimizer lives, even after the process changes its
  // directory.
  for (std::string& directory : options_.directories) {
    std::error_code unknown;
    const std::filesystem::path absolute = std::filesystem::absolute(directory, unknown);
    if (!unknown) directory = absolute.string();
  }
}

Optimizer::~Optimizer() {
  if (thread_.joinable()) thread_.join();
}

void Optimizer::leave_to_parent(std::unique_ptr<Optimizer> optimizer) {
  Optimizer* const left = optimizer.release();
  // Kept where a debugger or leak checker finds it.
  static std::atomic<Optimizer*> kept{nullptr};
  left->left_before_ = kept.exchange(left);
  if (!left->mutex_.try_lock()) return;
  if (!left->started_) left->home_->leave_to_parent();
  left->mutex_.unlock();
}

Status Optimizer::validate(const OptimizerOptions& options) {
  if (options.rank_count == 0 || options.rank >= options.rank_count)
    return invalid_argument(fmt::format("rank {} of {} ranks: rank must be in [0, {})",
                                        options.rank, options.rank_count, options.rank_count));
  constexpr uint32_t kThreadsMax = 1024;
  if (options.thread_count > kThreadsMax)
    return invalid_argument(
        fmt::format("thread_count is {}: at most {}", options.thread_count, kThreadsMax));
  if (options.cores.size() > kThreadsMax)
    return invalid_argument(
        fmt::format("{} cores are listed: at most {}", options.cores.size(), kThreadsMax));
  if (options.directories.empty() && (options.sqpoll || options.iopoll))
    return invalid_argument("SQPOLL and IOPOLL are of directories, and there are none");
  for (const std::string& directory : options.directories)
    if (directory.empty()) return invalid_argument("a directory's name is empty");
  return {};
}

Result<std::unique_ptr<Optimizer>> Optimizer::create(const OptimizerOptions& options,
                                                     const std::vector<ParameterGroup>& groups) {
  WEIR_RETURN_IF_ERROR(validate(options));
  if (options.read_only)
    return invalid_argument("new state cannot be read only: leave the flag to open");
  std::unique_ptr<Optimizer> optimizer(new Optimizer(options, groups));
  Result<std::unique_ptr<StateHome>> home = StateHome::create(optimizer->options_, groups);
  if (!home.ok()) return home.status();
  optimizer->home_ = home.take();
  return optimizer;
}

Result<std::unique_ptr<Optimizer>> Optimizer::open(const OptimizerOptions& options,
                                                   const std::vector<ParameterGroup>& groups) {
  WEIR_RETURN_IF_ERROR(validate(options));
  if (options.directories.empty()) return invalid_argument("there are no directories to open");
  std::unique_ptr<Optimizer> optimizer(new Optimizer(options, groups));
  Result<std::unique_ptr<StateHome>> home = StateHome::open(optimizer->options_, groups);
  if (!home.ok()) return home.status();
  optimizer->home_ = home.take();
  const std::vector<unsigned char>& data = optimizer->home_->store().committed()->data;
  uint64_t seed = options.seed;
  if (data.size() >= sizeof seed) std::memcpy(&seed, data.data(), sizeof seed);
  if (seed != options.seed && !options.read_only)
    return Status(Code::kMismatch, fmt::format("store in '{}': expected seed {}, found {}",
                                               options.directories[0], options.seed, seed));
  optimizer->step_ = optimizer->home_->committed_step();
  return optimizer;
}

Status Optimizer::check_use(const char* what, Use use) const {
  WEIR_RETURN_IF_ERROR(check_lost(what));
  if (started_)
    return usage(fmt::format("{}: a step that was started is under way; finish it first", what));
  if (use == Use::kRead) return {};
  if (options_.read_only) return usage(fmt::format("{}: the optimizer is open read only", what));
  if (use == Use::kChange && held_)
    return usage(fmt::format("{}: step {} is held; accept it or undo it first", what, step_));
  if (use == Use::kHeld && !held_) return usage(fmt::format("{}: no step is held", what));
  return {};
}

Status Optimizer::check_range(const char* what, uint32_t group, uint64_t first, uint64_t count,
                              DataType type, const void* data) const {
  if (group >= groups_.size())
    return invalid_argument(fmt::format("{}: group {} of {} groups", what, group, groups_.size()));
  const ParameterGroup& own = groups_[group];
  if (first > own.element_count || count > own.element_count - first)
    return invalid_argument(fmt::format("{}: {} elements from {} on of group '{}', which has {}",
                                        what, count, first, own.name, own.element_count));
  if (!is_number_format(type))
    return invalid_argument(
        fmt::format("{}: group '{}': data type {}; allowed are float32, bfloat16 and float16", what,
                    own.name, name_of(type)));
  if (data == nullptr && count > 0)
    return invalid_argument(fmt::format("{}: group '{}': the array is NULL", what, own.name));
  return {};
}

// ---- Parameters ---------------------------------------------------------------------------------

Status Optimizer::visit_parameters(uint32_t group, uint64_t first, uint64_t count,
                                   const ChunkBody& body, Visit kind) {
  if (count == 0) return {};
  const auto [begin, end] = home_->placement().chunks_of(group, first, count);
  std::vector<uint64_t> chunks;
  for (uint64_t c = begin; c < end; ++c) chunks.push_back(c);
  return with_remedy(home_->visit(chunks, kind, body));
}

Status Optimizer::set_parameters(uint32_t group, uint64_t first, uint64_t count, DataType type,
                                 const void* parameters) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("set_parameters", Use::kChange));
  WEIR_RETURN_IF_ERROR(check_range("set_parameters", group, first, count, type, parameters));
  if (step_ > 0 || (home_->on_drives() && !home_->is_new()))
    return usage("set_parameters: only before the first step and the first commit");
  const auto* const from = static_cast<const unsigned char*>(parameters);
  uint16_t* const copies = home_->copy(group);
  const auto body = [&](uint64_t number, unsigned char* state) -> Status {
    const StateChunk chunk = home_->placement().state(number);
    const uint64_t begin = std::max(first, chunk.first) - chunk.first;
    const uint64_t end = std::min(first + count, chunk.first + chunk.count) - chunk.first;
    float master[kWindow];
    float m[kWindow];
    float v[kWindow];
    for (uint64_t at = begin / kMomentBlock * kMomentBlock; at < end; at += kWindow) {
      const uint64_t window = std::min(kWindow, chunk.count - at);
      uint16_t* const copy = copies == nullptr ? nullptr : copies + chunk.first + at;
      decode_state(*chunk.layout, at, window, state, copy, master, m, v);
      const uint64_t from_here = std::max(begin, at);
      const uint64_t to_here = std::min(end, at + window);
      to_float(from + (chunk.first + from_here - first) * element_bytes(type), type,
               to_here - from_here, master + (from_here - at));
      std::fill(m + (from_here - at), m + (to_here - at), 0.0f);
      std::fill(v + (from_here - at), v + (to_here - at), 0.0f);
      encode_state(*chunk.layout, at, window, master, m, v, state, copy);
    }
    return {};
  };
  return visit_parameters(group, first, count, body, Visit::kChange).with_context("set_parameters");
}

Status Optimizer::get_parameters(uint32_t group, uint64_t first, uint64_t count, DataType type,
                                 void* parameters) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("get_parameters", Use::kRead));
  WEIR_RETURN_IF_ERROR(check_range("get_parameters", group, first, count, type, parameters));
  auto* const to = static_cast<unsigned char*>(parameters);
  const uint16_t* const copies = home_->copy(group);
  const auto body = [&](uint64_t number, unsigned char* state) -> Status {
    const StateChunk chunk = home_->placement().state(number);
    const uint64_t begin = std::max(first, chunk.first) - chunk.first;
    const uint64_t end = std::min(first + count, chunk.first + chunk.count) - chunk.first;
    float master[kWindow];
    for (uint64_t at = begin / kMomentBlock * kMomentBlock; at < end; at += kWindow) {
      const uint64_t window = std::min(kWindow, chunk.count - at);
      const uint16_t* const copy = copies == nullptr ? nullptr : copies + chunk.first + at;
      decode_state(*chunk.layout, at, window, state, copy, master, nullptr, nullptr);
      const uint64_t from_here = std::max(begin, at);
      from_float(master + (from_here - at), std::min(end, at + window) - from_here, {}, type,
                 to + (chunk.first + from_here - first) * element_bytes(type));
    }
    return {};
  };
  return visit_parameters(group, first, count, body, Visit::kRead).with_context("get_parameters");
}

Status Optimizer::set_output(uint32_t group, DataType type, void* output, bool stochastic) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("set_output", Use::kChange));
  WEIR_RETURN_IF_ERROR(check_range("set_output", group, 0, 0, type, output));
  outputs_[group] = {output, type, stochastic && type != DataType::kFloat32};
  return {};
}

Status Optimizer::set_hyper(uint32_t group, const Hyper& hyper) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("set_hyper", Use::kChange));
  WEIR_RETURN_IF_ERROR(check_range("set_hyper", group, 0, 0, DataType::kFloat32, nullptr));
  WEIR_RETURN_IF_ERROR(offload::validate(groups_[group].method, hyper)
                           .with_context("set_hyper: group '" + groups_[group].name + "'"));
  groups_[group].hyper = hyper;
  return {};
}

// The outputs as they were after the last step.
Status Optimizer::write_outputs() {
  std::vector<uint64_t> chunks;
  for (uint64_t c = 0; c < home_->placement().state_count(); ++c)
    if (outputs_[home_->placement().state(c).group].data != nullptr) chunks.push_back(c);
  if (chunks.empty()) return {};
  const auto body = [&](uint64_t number, unsigned char* state) -> Status {
    const StateChunk chunk = home_->placement().state(number);
    const Output& output = outputs_[chunk.group];
    const uint16_t* const copies = home_->copy(chunk.group);
    float master[kWindow];
    for (uint64_t at = 0; at < chunk.count; at += kWindow) {
      const uint64_t window = std::min(kWindow, chunk.count - at);
      const uint64_t element = chunk.first + at;
      decode_state(*chunk.layout, at, window, state, copies == nullptr ? nullptr : copies + element,
                   master, nullptr, nullptr);
      const Rounding rounding{output.stochastic, options_.seed, step_,
                              groups_[chunk.group].first_element + element};
      from_float(master, window, rounding, output.type,
                 static_cast<unsigned char*>(output.data) + element * element_bytes(output.type));
    }
    return {};
  };
  return home_->visit(chunks, Visit::kRead, body);
}

// ---- Gradients ----------------------------------------------------------------------------------

Status Optimizer::gradient(uint32_t group, uint64_t first, uint64_t count, DataType type,
                           const void* data) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("gradient", Use::kChange));
  WEIR_RETURN_IF_ERROR(check_range("gradient", group, first, count, type, data));
  if (count == 0) return {};
  return gradients_.refer(group, {first, count, type, static_cast<const unsigned char*>(data)})
      .with_context("gradient");
}

Status Optimizer::accumulate(uint32_t group, uint64_t first, uint64_t count, DataType type,
                             const void* data) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("accumulate", Use::kChange));
  WEIR_RETURN_IF_ERROR(check_range("accumulate", group, first, count, type, data));
  if (count == 0) return {};
  WEIR_RETURN_IF_ERROR(reserve_accumulators(group).with_context("accumulate"));
  return gradients_
      .accumulate(home_->pool(), group,
                  {first, count, type, static_cast<const unsigned char*>(data)})
      .with_context("accumulate");
}

Status Optimizer::reserve_accumulators(uint32_t group) {
  const uint64_t bytes = gradients_.accumulator_bytes(group);
  if (bytes == 0) return {};
  WEIR_RETURN_IF_ERROR(home_->budget().grow_for(bytes));
  constexpr uint64_t kPieceBytes = kAccumulatorElements * sizeof(float);
  const std::string use = fmt::format("the accumulated gradient of group '{}' ({} bytes in all)",
                                      groups_[group].name, bytes);
  std::vector<ArenaBuffer> pieces;
  while (pieces.size() < bytes / kPieceBytes) {
    Result<ArenaBuffer> piece = home_->budget().take(kPieceBytes, use);
    if (piece.ok()) {
      pieces.push_back(piece.take());
      continue;
    }
    // State in memory that also has a place on a drive makes room.
    const Result<bool> evicted = home_->evict_one();
    if (!evicted.ok()) return evicted.status();
    if (!evicted.value()) return piece.status();
  }
  gradients_.give_accumulators(group, std::move(pieces));
  return {};
}

Status Optimizer::gradient_stats(double* sum_of_squares_of_scaled_gradients, bool* all_finite) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("gradient_stats", Use::kRead));
  WEIR_RETURN_IF_ERROR(gradients_.prepare(false).with_context("gradient_stats"));
  const GradientStats stats = gradients_.stats(home_->pool());
  *sum_of_squares_of_scaled_gradients = stats.sum_of_squares();
  *all_finite = stats.all_finite();
  return {};
}

// ---- Several ranks ------------------------------------------------------------------------------

Status Optimizer::committed_step(uint64_t* step) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("committed_step", Use::kRead));
  if (!home_->on_drives()) return usage("committed_step: without directories nothing is committed");
  *step = home_->committed_step();
  return {};
}

Status Optimizer::peers_committed(uint64_t step) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("peers_committed", Use::kRead));
  if (!home_->on_drives()) return {};
  const Store& store = home_->store();
  uint64_t epoch = 0;
  for (const SlotState* state : {store.previous(), store.committed()})
    if (state != nullptr && state->step <= step) epoch = std::max(epoch, state->epoch);
  home_->store().peers_committed(epoch);
  return {};
}

Status Optimizer::roll_back(uint64_t step) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("roll_back", Use::kChange));
  if (!home_->on_drives()) return usage("roll_back: without directories nothing is committed");
  if (home_->is_new()) return usage("roll_back: nothing was committed yet");
  Store& store = home_->store();
  WEIR_RETURN_IF_ERROR(store.abandon_step().with_context("roll_back"));
  if (step != home_->committed_step()) {
    const SlotState* const before = store.previous();
    Status status;
    if (before == nullptr || before->step != step)
      status =
          Status(Code::kRefused, fmt::format("expected step {} in '{}', found {} and {}", step,
                                             options_.directories[0], home_->committed_step(),
                                             before == nullptr ? std::string("no other")
                                                               : fmt::format("{}", before->step)));
    else
      status = store.roll_back(before->epoch);
    if (!status.ok()) return recover(status.with_context("roll_back"), step_, nullptr);
  }
  if (Status status = home_->abandon(); !status.ok()) return lost(status);
  step_ = home_->committed_step();
  gradients_.clear(home_->pool());
  return with_remedy(write_outputs()).with_context("roll_back");
}

Status Optimizer::check_lost(const char* what) const {
  const std::lock_guard lock(lost_mutex_);
  return lost_.with_context(what);
}

Status Optimizer::result_of(const std::string& what, const Status& status) {
  if (status.ok() || !home_->is_poisoned()) return status.with_context(what);
  return lost(status.with_context(what));
}

std::string Optimizer::damage_remedy() const {
  if (!home_->on_drives()) return "restore a checkpoint";
  return fmt::format(
      "'weir-fsck {}' says whether a commit is whole: if one is, open the directories again with "
      "WEIR_OFFLOAD_VERIFY, for writing, to continue from it; else restore a checkpoint",
      fmt::join(options_.directories, " "));
}

Status Optimizer::with_remedy(const Status& status) const {
  if (status.code() != Code::kRefused || !home_->on_drives() || home_->store().bad_chunks().empty())
    return status;
  return Status(status.code(), status.text() + "; " + damage_remedy());
}

Status Optimizer::check_committed() const {
  Status status = home_->check_committed();
  if (status.code() != Code::kRefused) return status;
  return Status(status.code(), fmt::format("{}; {}", status.text(), damage_remedy()));
}

Status Optimizer::lost(const Status& reason) {
  std::string remedy = "destroy it";
  // Opening again finds a whole commit unless the data on the drives is damaged.
  if (reason.code() == Code::kRefused)
    remedy += "; " + damage_remedy();
  else if (home_->on_drives())
    remedy += " and open the directories again, to continue from the last committed step";
  return lost(reason, remedy);
}

Status Optimizer::lost(const Status& reason, const std::string& remedy) {
  const std::lock_guard lock(lost_mutex_);
  lost_ = Status(reason.code(), fmt::format("the optimizer can no longer be used ({}); {}",
                                            reason.text(), remedy));
  return lost_;
}

Status Optimizer::memory_bytes(uint64_t* bytes) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("memory", Use::kRead));
  *bytes = home_->budget().held_bytes();
  return {};
}

Status Optimizer::store_report(StoreReport* report) {
  const std::lock_guard lock(mutex_);
  WEIR_RETURN_IF_ERROR(check_use("store_report", Use::kRead));
  if (!home_->on_drives()) return usage("store_report: without directories there is no store");
  home_->describe_store(report);
  report->step = step_;
  return {};
}

std::string Optimizer::describe() {
  const std::lock_guard lock(mutex_);
  std::string text =
      fmt::format("step {}, {} parameters first: {}", step_,
                  options_.order == SweepOrder::kFirstFirst ? "first" : "last", home_->describe());
  if (const Status usable = check_lost("failed"); !usable.ok()) text += "; " + usable.text();
  return text;
}

}  // namespace weir::offload
