// SPDX-License-Identifier: Apache-2.0
#include "api/offload_config.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>

#include "core/base/per_thread.h"

namespace weir::api {
namespace {

constexpr size_t kNameBytesMax = 1024;

Status check_struct(const char* what, size_t bytes, size_t expected, const char* init) {
  if (bytes >= expected) return {};
  return invalid_argument(fmt::format("{}.struct_bytes is {}, less than {}: start from {}", what,
                                      bytes, expected, init));
}

Result<std::string> read_name(const char* text, const std::string& what) {
  if (text == nullptr) return invalid_argument(what + " is NULL");
  if (strnlen(text, kNameBytesMax + 1) > kNameBytesMax)
    return invalid_argument(fmt::format("{} is longer than {} bytes", what, kNameBytesMax));
  return std::string(text);
}

}  // namespace

Result<std::vector<std::string>> read_paths(const char* const* paths, int count, const char* what) {
  if (count < 0)
    return invalid_argument(
        fmt::format("the count of {} is {}; it must not be negative", what, count));
  if (count > 0 && paths == nullptr) return invalid_argument(fmt::format("{} is NULL", what));
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    if (paths[i] == nullptr || paths[i][0] == 0)
      return invalid_argument(
          fmt::format("{}[{}] is {}", what, i, paths[i] == nullptr ? "NULL" : "an empty name"));
    names.emplace_back(paths[i]);
  }
  return names;
}

Result<offload::OptimizerOptions> read_offload_config(const weir_offload_config_t* config) {
  offload::OptimizerOptions options;
  if (config == nullptr) return options;
  // A program that was built with the first version has no fields after the flags.
  constexpr size_t kFirstVersion = offsetof(weir_offload_config_t, order);
  WEIR_RETURN_IF_ERROR(
      check_struct("config", config->struct_bytes, kFirstVersion, "WEIR_OFFLOAD_CONFIG_INIT"));
  if (config->model != nullptr) {
    Result<std::string> model = read_name(config->model, "config.model");
    if (!model.ok()) return model.status();
    options.model = model.take();
  }
  if (config->rank_count < 1 || config->rank < 0 || config->rank >= config->rank_count)
    return invalid_argument(
        fmt::format("config.rank is {} of config.rank_count {}: it must be in "
                    "[0, rank_count)",
                    config->rank, config->rank_count));
  for (const auto& [name, value] :
       {std::pair<const char*, int64_t>{"thread_count", config->thread_count},
        {"durable_every", config->durable_every},
        {"timeout_ms", config->timeout_ms}})
    if (value < 0)
      return invalid_argument(fmt::format("config.{} is {}: it must not be negative", name, value));
  constexpr unsigned int kKnown = WEIR_OFFLOAD_UNDO_IN_MEMORY | WEIR_OFFLOAD_READ_ONLY |
                                  WEIR_OFFLOAD_SQPOLL | WEIR_OFFLOAD_IOPOLL | WEIR_OFFLOAD_VERIFY;
  if ((config->flags & ~kKnown) != 0)
    return invalid_argument(
        fmt::format("config.flags {:#x} has bits that this version does not know", config->flags));
  auto directories = read_paths(config->directories, config->directory_count, "config.directories");
  if (!directories.ok()) return directories.status();
  options.directories = directories.take();
  options.rank = static_cast<uint32_t>(config->rank);
  options.rank_count = static_cast<uint32_t>(config->rank_count);
  options.memory_bytes = config->memory_bytes;
  options.chunk_bytes = config->chunk_bytes;
  options.thread_count = static_cast<uint32_t>(config->thread_count);
  options.durable_every = static_cast<uint32_t>(config->durable_every);
  options.seed = config->seed;
  options.timeout_ms = static_cast<uint64_t>(config->timeout_ms);
  if (config->trace_file != nullptr) options.trace_file = config->trace_file;
  options.undo_in_memory = (config->flags & WEIR_OFFLOAD_UNDO_IN_MEMORY) != 0;
  options.read_only = (config->flags & WEIR_OFFLOAD_READ_ONLY) != 0;
  options.sqpoll = (config->flags & WEIR_OFFLOAD_SQPOLL) != 0;
  options.iopoll = (config->flags & WEIR_OFFLOAD_IOPOLL) != 0;
  options.verify = (config->flags & WEIR_OFFLOAD_VERIFY) != 0;
  constexpr size_t kSecondVersion =
      offsetof(weir_offload_config_t, verify_progress_context) + sizeof(void*);
  if (config->struct_bytes < kSecondVersion) return options;
  const int order = static_cast<int>(config->order);
  if (order < 0 || order >= static_cast<int>(offload::kSweepOrderCount))
    return invalid_argument(fmt::format("config.order is {}, which is unknown", order));
  options.order = static_cast<offload::SweepOrder>(order);
  if (config->core_count < 0 || (config->core_count > 0 && config->cores == nullptr))
    return invalid_argument(
        fmt::format("config.core_count is {} and config.cores is {}; the count must not be "
                    "negative, and the array not NULL",
                    config->core_count, config->cores == nullptr ? "NULL" : "not NULL"));
  options.cores.assign(config->cores, config->cores + config->core_count);
  options.scrub_bytes_per_s = config->scrub_bytes_per_s;
  if (config->verify_progress != nullptr)
    options.verify_progress = [tell = config->verify_progress,
                               context = config->verify_progress_context](
                                  uint64_t done, uint64_t total) { tell(context, done, total); };
  return options;
}

offload::Hyper read_hyper(const weir_hyper_t& hyper) {
  return {hyper.learning_rate, hyper.beta1,        hyper.beta2,
          hyper.eps,           hyper.weight_decay, hyper.momentum};
}

Result<std::vector<offload::ParameterGroup>> read_groups(const weir_parameter_group_t* groups,
                                                         int group_count) {
  if (group_count < 1)
    return invalid_argument(fmt::format("group_count is {}: it must be positive", group_count));
  if (groups == nullptr) return invalid_argument("groups is NULL");
  std::vector<offload::ParameterGroup> read;
  for (int i = 0; i < group_count; ++i) {
    const weir_parameter_group_t& group = groups[i];
    const std::string what = fmt::format("groups[{}]", i);
    WEIR_RETURN_IF_ERROR(
        check_struct(what.c_str(), group.struct_bytes, sizeof group, "WEIR_PARAMETER_GROUP_INIT"));
    Result<std::string> name = read_name(group.name, what + ".name");
    if (!name.ok()) return name.status();
    const int method = static_cast<int>(group.method);
    if (method < 0 || method >= static_cast<int>(offload::kMethodCount))
      return invalid_argument(fmt::format("{}.method is {}, which is unknown", what, method));
    const int format = static_cast<int>(group.format);
    if (format < 0 || format >= static_cast<int>(offload::kStateFormatCount))
      return invalid_argument(fmt::format("{}.format is {}, which is unknown", what, format));
    read.push_back({name.take(), group.element_count, group.first_element,
                    static_cast<offload::Method>(method), static_cast<offload::StateFormat>(format),
                    read_hyper(group.hyper)});
  }
  return read;
}

Result<offload::StepOptions> read_step_options(const weir_step_options_t* options) {
  offload::StepOptions read;
  if (options == nullptr) return read;
  WEIR_RETURN_IF_ERROR(
      check_struct("options", options->struct_bytes, sizeof *options, "WEIR_STEP_OPTIONS_INIT"));
  read.loss_scale = options->loss_scale;
  read.norm_max = options->norm_max;
  read.sum_of_squares_of_scaled_gradients = options->sum_of_squares_of_scaled_gradients;
  read.hold = options->hold != 0;
  return read;
}

Status check_report(const weir_step_report_t* report) {
  if (report == nullptr) return {};
  return check_struct("report", report->struct_bytes, sizeof *report, "WEIR_STEP_REPORT_INIT");
}

void write_report(const offload::StepReport& from, weir_step_report_t* to) {
  if (to == nullptr) return;
  to->step = from.step;
  to->skipped = from.skipped ? 1 : 0;
  to->committed = from.committed ? 1 : 0;
  to->norm = from.norm;
  to->parameter_count = from.parameter_count;
  to->read_bytes = from.read_bytes;
  to->written_bytes = from.written_bytes;
  to->seconds = from.seconds;
  to->disk_wait_seconds = from.disk_wait_seconds;
  to->compute_seconds = from.compute_seconds;
  to->compute_hidden = from.compute_hidden;
  to->not_finite_count = from.not_finite.count;
  to->not_finite_group = from.not_finite.count == 0 ? -1 : static_cast<int>(from.not_finite.group);
  to->not_finite_element = from.not_finite.element;
}

Status check_report(const weir_store_report_t* report) {
  return check_struct("report", report->struct_bytes, sizeof *report, "WEIR_STORE_REPORT_INIT");
}

namespace {
// Of the report that was written last; the caller has pointers to them.
struct ReportTexts {
  std::string file;
  std::string text;
};
}  // namespace

void write_report(const offload::StoreReport& from, weir_store_report_t* to) {
  std::string& file = PerThread<ReportTexts>::get().file;
  std::string& text = PerThread<ReportTexts>::get().text;
  const offload::ChunkDamage* damage = nullptr;
  text.clear();
  const auto say = [&text](const std::string& what) {
    if (!text.empty()) text += "; ";
    text += what;
  };
  to->went_back = WEIR_WENT_BACK_NOT;
  to->lost_epoch = to->lost_step = 0;
  if (from.went_back) {
    const bool chunk = from.went_back->cause == offload::Fallback::Cause::kBadChunk;
    to->went_back = chunk ? WEIR_WENT_BACK_CHUNK : WEIR_WENT_BACK_RECORD;
    to->lost_epoch = from.went_back->lost_epoch;
    to->lost_step = from.went_back->lost_step;
    say(from.went_back->text());
    if (chunk) damage = &from.went_back->damage;
  }
  for (const std::string& one : from.mended) say(one);
  to->damaged = 0;
  for (const auto& [who, found] :
       {std::pair{"the background scrub", &from.scrub.damage}, std::pair{"a read", &from.damage}}) {
    if (found->bad_count == 0) continue;
    to->damaged = 1;
    say(std::string(who) + " found: " + found->text());
    if (damage == nullptr) damage = found;
  }
  if (!from.scrub.stopped.ok()) {
    say("the background scrub has stopped: " + from.scrub.stopped.text());
  }
  file = damage == nullptr ? "" : damage->file;
  to->step = from.step;
  to->epoch = from.epoch;
  to->bad_chunk_count = damage == nullptr ? 0 : damage->bad_count;
  to->bad_chunk = damage == nullptr ? 0 : damage->chunks[0];
  to->bad_file = file.c_str();
  to->bad_offset_bytes = damage == nullptr ? 0 : damage->offset_bytes;
  to->text = text.c_str();
  to->chunk_count = from.chunk_count;
  to->verified_chunk_count = from.verified_chunk_count;
  to->verify_bytes = from.verify_bytes;
  to->verify_seconds = from.verify_seconds;
  to->scrub_bytes = from.scrub.read_bytes;
  to->scrub_pass_count = from.scrub.pass_count;
}

}  // namespace weir::api
