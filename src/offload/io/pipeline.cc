// SPDX-License-Identifier: Apache-2.0
#include "offload/io/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "offload/io/pipeline_run.h"

namespace weir::offload {
namespace {

Status check(const PipelineOptions& options) {
  for (const auto& [name, bytes] : {std::pair{"buffer_bytes", options.buffer_bytes},
                                    std::pair{"transfer_bytes", options.transfer_bytes}})
    if (bytes == 0 || bytes % kDiskAlignment != 0 || bytes > uint64_t{1} << 40)
      return invalid_argument(
          fmt::format("pipeline: {} is {}, it must be a multiple of {} up to 1 TiB", name, bytes,
                      kDiskAlignment));
  constexpr uint32_t kBuffersMax = 1u << 20;
  if (options.buffer_count > kBuffersMax)
    return invalid_argument(
        fmt::format("pipeline: {} buffers, {} are allowed", options.buffer_count, kBuffersMax));
  constexpr uint32_t kThreadsMax = 1024;
  if (options.compute_thread_count > kThreadsMax)
    return invalid_argument(fmt::format("pipeline: {} compute threads, {} are allowed",
                                        options.compute_thread_count, kThreadsMax));
  if (options.timeout_ms == 0) return invalid_argument("pipeline: timeout_ms is 0");
  return Status();
}

PipelineLoad load_of(const PipelineOptions& options) {
  return {options.buffer_bytes, options.transfer_bytes, options.drive_count,
          options.compute_thread_count};
}

uint32_t buffer_count(const PipelineOptions& options) {
  if (options.buffer_count > 0) return options.buffer_count;
  return choose_shape(options.rates, load_of(options)).buffer_count;
}

}  // namespace

double PipelineReport::compute_hidden() const {
  if (compute_ns == 0) return 1;
  return 1 - static_cast<double>(std::min(compute_exposed_ns, compute_ns)) /
                 static_cast<double>(compute_ns);
}

PipelineRates PipelineReport::rates() const {
  PipelineRates rates;
  if (disk_busy_ns > 0)
    rates.disk_bytes_per_s =
        static_cast<double>(read_bytes + written_bytes) * 1e9 / static_cast<double>(disk_busy_ns);
  if (compute_ns > 0)
    rates.compute_bytes_per_s =
        static_cast<double>(computed_bytes) * 1e9 / static_cast<double>(compute_ns);
  return rates;
}

uint64_t Pipeline::memory_bytes(const PipelineOptions& options) {
  return uint64_t{buffer_count(options)} * options.buffer_bytes;
}

Pipeline::Pipeline(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Pipeline>> Pipeline::create(Disk* disk, Arena* arena,
                                                   const PipelineOptions& options) {
  WEIR_RETURN_IF_ERROR(check(options));
  auto state = std::make_unique<State>();
  state->disk = disk;
  state->options = options;
  state->load = load_of(options);
  state->rates = options.rates;
  const uint32_t count = buffer_count(options);
  for (uint32_t i = 0; i < count; ++i) {
    Result<ArenaBuffer> buffer = arena->allocate(options.buffer_bytes);
    if (!buffer.ok())
      return buffer.status().with_context(
          fmt::format("pipeline: {} buffers of {} bytes", count, options.buffer_bytes));
    state->slots.emplace_back().buffer = buffer.take();
  }
  if (options.compute_thread_count > 0) {
    Result<std::unique_ptr<ComputeWorkers>> workers =
        ComputeWorkers::create(options.compute_thread_count, options.compute_cores);
    if (!workers.ok()) return workers.status();
    state->workers = workers.take();
  }
  return std::unique_ptr<Pipeline>(new Pipeline(std::move(state)));
}

Pipeline::~Pipeline() {
  for (State::Slot& slot : state_->slots)
    if (slot.transfers > 0) slot.buffer.abandon();
}

Status Pipeline::run(PipelineWork* work, PipelineReport* report) {
  State& s = *state_;
  PipelineReport unwanted;
  if (report == nullptr) report = &unwanted;
  *report = PipelineReport();
  if (s.disk->in_flight() > 0)
    return Status(
        Code::kInvalidUsage,
        fmt::format("pipeline: {} transfers of another user of the disk, or of a run that failed, "
                    "are under way; open it again",
                    s.disk->in_flight()));
  Status status = Run(&s, work, report).all();
  if (status.ok() && report->rates().disk_bytes_per_s > 0) s.rates = report->rates();
  return status;
}

}  // namespace weir::offload
