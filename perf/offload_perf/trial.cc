// SPDX-License-Identifier: Apache-2.0
#include "perf/offload_perf/trial.h"

#include <algorithm>
#include <cstring>

#include "core/base/clock.h"

namespace weir::perf {
namespace {

// Gradients and parameters repeat with a prime period, so that a piece that is read or written a
// power of two away from its place changes the result.
constexpr uint64_t kPeriod = 65521;
constexpr uint64_t kPiece = uint64_t{1} << 20;

Status check(weir_result_t result) {
  if (result == WEIR_OK) return Status();
  return Status(Code::kSystem,
                std::string(weir_result_string(result)) + ": " + weir_last_error(nullptr));
}

// A number in ±[2^-14, 2^-8], which every float type here represents exactly.
double gradient_at(uint64_t k) {
  const auto mixed = static_cast<int>((k * 2654435761u >> 11) % 64);
  return (k % 2 == 0 ? 1 + mixed : -1 - mixed) * 0x1p-14;
}

}  // namespace

Result<std::unique_ptr<Trial>> Trial::create(const OffloadOptions& options,
                                             const std::vector<std::string>& directories) {
  std::unique_ptr<Trial> trial(new Trial(options));
  try {
    const size_t element = options.gradient_type->bytes;
    trial->gradient_.resize(options.parameter_count * element);
    for (uint64_t i = 0; i < std::min(kPeriod, options.parameter_count); ++i) {
      const uint64_t bits = encode_exact(*options.gradient_type, gradient_at(i));
      std::memcpy(&trial->gradient_[i * element], &bits, element);
    }
    const uint64_t period = kPeriod * element;
    for (uint64_t at = period; at < trial->gradient_.size(); at += period)
      std::memcpy(&trial->gradient_[at], trial->gradient_.data(),
                  std::min(period, trial->gradient_.size() - at));
    if (options.output_type != nullptr)
      trial->output_.resize(options.parameter_count * options.output_type->bytes);
  } catch (const std::bad_alloc&) {
    return Status(Code::kNoMemory, "no memory for gradients and outputs: give fewer --parameters");
  }
  WEIR_RETURN_IF_ERROR(trial->open(directories));
  return Result<std::unique_ptr<Trial>>(std::move(trial));
}

Trial::~Trial() { (void)weir_optimizer_destroy(optimizer_); }

Status Trial::open(const std::vector<std::string>& directories) {
  on_drives_ = !directories.empty();
  std::vector<const char*> names;
  names.reserve(directories.size());
  for (const std::string& directory : directories) names.push_back(directory.c_str());
  weir_offload_config_t config = WEIR_OFFLOAD_CONFIG_INIT;
  config.model = "offload_perf";
  config.directories = names.empty() ? nullptr : names.data();
  config.directory_count = static_cast<int>(names.size());
  config.memory_bytes = names.empty() ? 0 : options_.memory_bytes;
  config.chunk_bytes = options_.chunk_bytes;
  config.thread_count = options_.thread_count;
  config.durable_every = options_.durable_every;
  config.seed = 1;
  config.order = options_.order;
  config.cores = options_.cores.data();
  config.core_count = static_cast<int>(options_.cores.size());
  if (!names.empty() && options_.sqpoll) config.flags |= WEIR_OFFLOAD_SQPOLL;
  if (!names.empty() && options_.iopoll) config.flags |= WEIR_OFFLOAD_IOPOLL;
  if (!names.empty() && !options_.trace_file.empty())
    config.trace_file = options_.trace_file.c_str();
  if (names.empty() && options_.norm == NormWay::kHold) config.flags |= WEIR_OFFLOAD_UNDO_IN_MEMORY;

  weir_parameter_group_t group = WEIR_PARAMETER_GROUP_INIT;
  group.name = "all";
  group.element_count = options_.parameter_count;
  group.method = options_.method;
  group.format = options_.format;
  group.hyper.weight_decay = 0.01;
  WEIR_RETURN_IF_ERROR(check(weir_optimizer_create(&optimizer_, &config, &group, 1)));
  if (options_.output_type != nullptr)
    WEIR_RETURN_IF_ERROR(check(weir_optimizer_set_output(optimizer_, 0, options_.output_type->type,
                                                         output_.data(), options_.stochastic)));
  return set_parameters();
}

Status Trial::set_parameters() {
  // Pieces are whole periods, except the last: one array serves all of them.
  constexpr uint64_t kSpan = kPiece / kPeriod * kPeriod;
  std::vector<float> values(std::min(kSpan, options_.parameter_count));
  for (uint64_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(8 * gradient_at(i % kPeriod));
  for (uint64_t at = 0; at < options_.parameter_count; at += values.size()) {
    const uint64_t count = std::min<uint64_t>(values.size(), options_.parameter_count - at);
    WEIR_RETURN_IF_ERROR(check(
        weir_optimizer_set_parameters(optimizer_, 0, at, count, WEIR_FLOAT32, values.data())));
  }
  return Status();
}

Status Trial::step(weir_step_report_t* report) {
  WEIR_RETURN_IF_ERROR(check(weir_optimizer_gradient(
      optimizer_, 0, 0, options_.parameter_count, options_.gradient_type->type, gradient_.data())));
  weir_step_options_t options = WEIR_STEP_OPTIONS_INIT;
  if (options_.norm == NormWay::kGiven) options.sum_of_squares_of_scaled_gradients = 1;
  options.hold = options_.norm == NormWay::kHold;
  *report = WEIR_STEP_REPORT_INIT;
  const uint64_t begin_ns = now_ns();
  WEIR_RETURN_IF_ERROR(check(weir_optimizer_step(optimizer_, &options, report)));
  if (options.hold != 0) {
    WEIR_RETURN_IF_ERROR(check(weir_optimizer_accept(optimizer_)));
    if (on_drives_) {
      uint64_t committed = 0;
      WEIR_RETURN_IF_ERROR(check(weir_optimizer_committed_step(optimizer_, &committed)));
      report->committed = committed == report->step;
    }
  }
  report->seconds = static_cast<double>(now_ns() - begin_ns) * 1e-9;
  if (report->skipped != 0)
    return Status(Code::kInternal, "a step was skipped although all gradients are finite");
  return Status();
}

Result<bool> Trial::has_parameters_of(Trial& other) {
  std::vector<float> mine(kPiece), theirs(kPiece);
  for (uint64_t at = 0; at < options_.parameter_count; at += kPiece) {
    const uint64_t count = std::min(kPiece, options_.parameter_count - at);
    for (const auto& [optimizer, values] :
         {std::pair{optimizer_, &mine}, {other.optimizer_, &theirs}})
      WEIR_RETURN_IF_ERROR(check(
          weir_optimizer_get_parameters(optimizer, 0, at, count, WEIR_FLOAT32, values->data())));
    if (std::memcmp(mine.data(), theirs.data(), count * sizeof(float)) != 0) return false;
  }
  return output_ == other.output_;
}

Result<uint64_t> Trial::memory_bytes() const {
  uint64_t bytes = 0;
  WEIR_RETURN_IF_ERROR(check(weir_optimizer_memory(optimizer_, &bytes)));
  return bytes;
}

}  // namespace weir::perf
