// SPDX-License-Identifier: Apache-2.0
#include "offload/optimizer/state_home.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "core/base/check.h"
#include "core/base/log.h"
#include "offload/io/open_disk.h"
#include "offload/optimizer/state_sweep.h"
#include "offload/store/store_files.h"

namespace weir::offload {
namespace {

constexpr uint64_t kDefaultTimeoutMs = 60'000;
constexpr uint32_t kDiskDepth = 64;
constexpr uint32_t kTraceEventsMax = 1u << 20;
constexpr uint64_t kStreamShare = 4;
constexpr uint64_t kStreamBuffersMin = 3;  // one read, one written, one between

// The directory, or the one that it will be made in.
std::string existing_part(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::path path = directory;
  while (path.has_parent_path() && path != path.parent_path() &&
         !std::filesystem::exists(path, ignored))
    path = path.parent_path();
  return std::filesystem::exists(path, ignored) ? path.string() : ".";
}

uint64_t rounded(uint64_t bytes) {
  return (bytes + kDiskAlignment - 1) / kDiskAlignment * kDiskAlignment;
}

}  // namespace

StateHome::StateHome(const OptimizerOptions& options, Placement placement)
    : options_(options), placement_(std::move(placement)), budget_(options.memory_bytes) {
  if (options_.timeout_ms == 0) options_.timeout_ms = kDefaultTimeoutMs;
  resident_.resize(placement_.state_count());
  written_.assign(placement_.chunk_count(), 0);
}

StateHome::~StateHome() = default;

uint32_t StateHome::thread_count() const {
  if (options_.thread_count != 0) return options_.thread_count;
  return options_.cores.empty() ? WorkerPool::default_thread_count()
                                : static_cast<uint32_t>(options_.cores.size());
}

PipelineOptions StateHome::pipeline_options() const {
  PipelineOptions options;
  options.buffer_bytes = placement_.chunk_bytes();
  options.drive_count = static_cast<uint32_t>(options_.directories.size());
  options.compute_thread_count = options_.disk != nullptr ? 0 : thread_count();
  options.compute_cores = options_.cores;
  // From a small budget the stream takes a quarter, but at least what it needs.
  if (const uint64_t limit = options_.memory_bytes; limit > 0) {
    const uint64_t most = std::max<uint64_t>(limit / kStreamShare / options.buffer_bytes,
                                             options.compute_thread_count + kStreamBuffersMin);
    options.buffer_count = static_cast<uint32_t>(
        std::min(most, Pipeline::memory_bytes(options) / options.buffer_bytes));
  }
  options.timeout_ms = options_.timeout_ms;
  options.trace_events_max = options_.trace_file.empty() ? 0 : kTraceEventsMax;
  return options;
}

Status StateHome::take_memory(const std::vector<ParameterGroup>& groups) {
  const bool drives = !options_.directories.empty();
  const uint64_t state_bytes = placement_.state_bytes();
  const uint64_t stream_bytes = drives ? Pipeline::memory_bytes(pipeline_options()) : 0;
  has_second_ = !drives && options_.undo_in_memory;
  uint64_t least = stream_bytes + placement_.copy_bytes() * (has_second_ ? 2 : 1);
  if (!drives) least += state_bytes * (has_second_ ? 2 : 1);
  const uint64_t limit = options_.memory_bytes;
  uint64_t scrub_bytes = drives && scrubs() ? placement_.chunk_bytes() : 0;
  // The scrubber's buffer is left out where the budget has no room for it.
  if (limit > 0 && rounded(least) + scrub_bytes > limit) scrub_bytes = 0;
  least += scrub_bytes;
  if (limit > 0 && rounded(least) > limit)
    return Status(
        Code::kNoMemory,
        drives ? fmt::format("memory_bytes is {}: the buffers of the stream and the bf16 copies "
                             "take {}; raise it, or make chunk_bytes ({}) smaller",
                             limit, least, placement_.chunk_bytes())
               : fmt::format("memory_bytes is {}: the state takes {}; raise it, or give "
                             "directories for what does not fit",
                             limit, least));
  uint64_t resident = placement_.state_count();
  if (drives) {
    const uint64_t room = limit > 0 && !options_.read_only ? limit - least : 0;
    if (state_bytes > room) resident = std::min(resident, room / placement_.state_bytes_max());
  }
  uint64_t bytes = least;
  for (uint64_t c = 0; drives && c < placement_.state_count(); ++c)
    if (is_resident(c, resident, placement_.state_count()))
      bytes += placement_.state(c).layout->state_bytes;
  if (drives) WEIR_RETURN_IF_ERROR(open_stream(stream_bytes));
  WEIR_RETURN_IF_ERROR(budget_.grow(bytes - stream_bytes));
  const auto take = [&](uint64_t size, const std::string& use, ArenaBuffer* buffer) -> Status {
    if (size == 0) return {};
    Result<ArenaBuffer> taken = budget_.take(size, use);
    if (!taken.ok()) return taken.status();
    *buffer = taken.take();
    std::memset(buffer->data(), 0, buffer->bytes());
    return {};
  };
  WEIR_RETURN_IF_ERROR(take(scrub_bytes, "the background scrub", &scrub_buffer_));
  copies_.resize(groups.size());
  if (has_second_) second_.resize(resident_.size());
  if (has_second_) second_copies_.resize(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    if (!has_half_master(groups[i].format)) continue;
    const uint64_t size = groups[i].element_count * sizeof(uint16_t);
    WEIR_RETURN_IF_ERROR(take(size, "the bf16 copy of '" + groups[i].name + "'", &copies_[i]));
    if (has_second_) WEIR_RETURN_IF_ERROR(take(size, "undo", &second_copies_[i]));
  }
  for (uint64_t c = 0; c < placement_.state_count(); ++c) {
    if (!is_resident(c, resident, placement_.state_count())) continue;
    const uint64_t size = placement_.state(c).layout->state_bytes;
    WEIR_RETURN_IF_ERROR(take(size, "state", &resident_[c]));
    if (has_second_) WEIR_RETURN_IF_ERROR(take(size, "undo", &second_[c]));
  }
  return {};
}

Status StateHome::start_pool() {
  WorkerPoolOptions pool;
  pool.thread_count = thread_count();
  pool.cores = options_.cores;
  Result<std::unique_ptr<WorkerPool>> made = WorkerPool::create(pool);
  if (!made.ok()) return made.status();
  pool_ = made.take();
  return {};
}

// The buffers of the stream are an arena of their own, the first one: they alone carry transfers,
// and the disk tells the kernel of the whole arena.
Status StateHome::open_stream(uint64_t bytes) {
  WEIR_RETURN_IF_ERROR(budget_.grow(bytes));
  disk_ = options_.disk;
  if (disk_ == nullptr) {
    DiskOptions disk;
    disk.depth = kDiskDepth;
    disk.arena = budget_.first();
    disk.sqpoll = options_.sqpoll;
    disk.iopoll = options_.iopoll;
    for (const std::string& directory : options_.directories)
      disk.iopoll_directories.push_back(existing_part(directory));
    Result<std::unique_ptr<Disk>> opened = open_disk(disk);
    if (!opened.ok()) return opened.status();
    own_disk_ = opened.take();
    disk_ = own_disk_.get();
  }
  Result<std::unique_ptr<Pipeline>> made =
      Pipeline::create(disk_, budget_.first(), pipeline_options());
  if (!made.ok()) return made.status();
  pipeline_ = made.take();
  return {};
}

Result<std::unique_ptr<StateHome>> StateHome::create(const OptimizerOptions& options,
                                                     const std::vector<ParameterGroup>& groups) {
  Result<Placement> placement = Placement::make(options, groups);
  if (!placement.ok()) return placement.status();
  std::unique_ptr<StateHome> home(new StateHome(options, placement.take()));
  WEIR_RETURN_IF_ERROR(home->take_memory(groups));
  WEIR_RETURN_IF_ERROR(home->start_pool());
  if (options.directories.empty()) return home;
  StoreOptions store_options;
  store_options.timeout_ms = home->options_.timeout_ms;
  store_options.lock_wait_ms = kLockWaitMs;
  Result<std::unique_ptr<Store>> store = Store::create(
      *home->disk_, options.directories, home->placement_.description(), store_options);
  if (!store.ok()) return store.status();
  home->store_ = store.take();
  WEIR_RETURN_IF_ERROR(home->start_scrub());
  WEIR_RETURN_IF_ERROR(home->begin_step(0));
  return home;
}

Result<std::unique_ptr<StateHome>> StateHome::open(const OptimizerOptions& options,
                                                   const std::vector<ParameterGroup>& groups) {
  Result<Placement> placement = Placement::make(options, groups);
  if (!placement.ok()) return placement.status();
  std::unique_ptr<StateHome> home(new StateHome(options, placement.take()));
  WEIR_RETURN_IF_ERROR(home->take_memory(groups));
  WEIR_RETURN_IF_ERROR(home->start_pool());
  StoreOptions store_options;
  store_options.timeout_ms = home->options_.timeout_ms;
  store_options.read_only = options.read_only;
  const StoreDescription expected = home->placement_.description();
  store_options.lock_wait_ms = kLockWaitMs;
  Result<std::unique_ptr<Store>> store =
      Store::open(*home->disk_, options.directories, &expected, store_options);
  if (!store.ok()) return store.status();
  home->store_ = store.take();
  if (home->is_new())
    return Status(Code::kRefused,
                  fmt::format("the store in '{}' has no committed step: the run that created it "
                              "ended before its first one; create it again",
                              options.directories[0]));
  WEIR_RETURN_IF_ERROR(home->load_committed());
  WEIR_RETURN_IF_ERROR(home->start_scrub());
  return home;
}

// Damage found here takes the state back to the previous epoch.
Status StateHome::load_committed() {
  bool went_back = false;
  // Ranks agree on a step right after opening; on damage found later they could not agree.
  const bool agrees = options_.rank_count > 1 && !options_.read_only;
  if (options_.verify || agrees) WEIR_RETURN_IF_ERROR(ensure_whole(&went_back));
  if (went_back) return {};
  Status loaded = reload();
  if (loaded.ok() || loaded.code() == Code::kTimeout) return loaded;
  WEIR_RETURN_IF_ERROR(ensure_whole(&went_back));
  return went_back ? Status() : loaded;
}

uint64_t StateHome::resident_count() const {
  return static_cast<uint64_t>(std::count_if(resident_.begin(), resident_.end(),
                                             [](const auto& b) { return b.data() != nullptr; }));
}

uint16_t* StateHome::copy(uint32_t group) const {
  return reinterpret_cast<uint16_t*>(copies_[group].data());
}

uint16_t* StateHome::second_copy(uint32_t group) const {
  return reinterpret_cast<uint16_t*>(second_copies_[group].data());
}

void StateHome::swap_slots() {
  std::swap(resident_, second_);
  std::swap(copies_, second_copies_);
}

Status StateHome::run(Sweep* sweep, PipelineReport* report) {
  if (scrubber_ != nullptr) scrubber_->pause();
  Status status = pipeline_->run(sweep, report);
  if (scrubber_ != nullptr) scrubber_->resume();
  return status;
}

Status StateHome::visit(std::span<const uint64_t> chunks, Visit kind, const ChunkBody& body,
                        PipelineReport* report) {
  if (!on_drives()) {
    for (const uint64_t chunk : chunks) WEIR_RETURN_IF_ERROR(body(chunk, resident(chunk)));
    return {};
  }
  Sweep sweep(this, Sweep::Kind::kVisit, kind, &body);
  sweep.chunks.assign(chunks.begin(), chunks.end());
  if (kind != Visit::kRead)
    std::fill(written_.begin() + static_cast<std::ptrdiff_t>(placement_.state_count()),
              written_.end(), uint8_t{0});
  if (kind == Visit::kCommit)
    for (uint64_t c = placement_.state_count(); c < placement_.chunk_count(); ++c)
      sweep.chunks.push_back(c);
  return run(&sweep, report);
}

// ---- With directories ---------------------------------------------------------------------------

Status StateHome::begin_step(uint64_t step) {
  if (open_step_) WEIR_RETURN_IF_ERROR(store_->end_step());
  open_step_ = false;
  WEIR_RETURN_IF_ERROR(store_->begin_step(step));
  open_step_ = true;
  std::fill(written_.begin(), written_.end(), uint8_t{0});
  return {};
}

uint64_t StateHome::committed_step() const {
  return store_->committed() == nullptr ? 0 : store_->committed()->step;
}

std::vector<uint64_t> StateHome::unwritten() const {
  std::vector<uint64_t> chunks;
  for (uint64_t c = 0; c < written_.size(); ++c)
    if (!written_[c]) chunks.push_back(c);
  return chunks;
}

Status StateHome::commit() {
  WEIR_CHECK(open_step_, "a step that was visited can be committed");
  Sweep sweep(this, Sweep::Kind::kVisit, Visit::kCommit, nullptr);
  sweep.chunks = unwritten();
  if (!sweep.chunks.empty()) WEIR_RETURN_IF_ERROR(run(&sweep, nullptr));
  const uint64_t seed = options_.seed;
  unsigned char data[sizeof seed];
  std::memcpy(data, &seed, sizeof seed);
  const bool first = is_new();
  if (Status status = store_->commit(data); !status.ok()) {
    poisoned_ = true;
    return status;
  }
  // The other slot holds nothing yet that a rank could go back to.
  if (first) store_->peers_committed(store_->committed()->epoch);
  open_step_ = false;
  std::fill(written_.begin(), written_.end(), uint8_t{0});
  watch_committed();
  return {};
}

Status StateHome::abandon() {
  WEIR_RETURN_IF_ERROR(store_->abandon_step());
  watch_committed();
  open_step_ = false;
  std::fill(written_.begin(), written_.end(), uint8_t{0});
  return reload();
}

Status StateHome::reload() {
  Sweep sweep(this, Sweep::Kind::kLoad, Visit::kRead, nullptr);
  for (uint64_t c = 0; c < placement_.chunk_count(); ++c)
    if (c >= placement_.state_count() || resident(c) != nullptr) sweep.chunks.push_back(c);
  return sweep.chunks.empty() ? Status() : run(&sweep, nullptr);
}

Result<bool> StateHome::evict_one() {
  uint64_t chunk = placement_.state_count();
  while (chunk > 0 && resident(chunk - 1) == nullptr) --chunk;
  if (!on_drives() || chunk == 0) return false;
  --chunk;
  if (open_step_ && !written_[chunk]) {
    Sweep sweep(this, Sweep::Kind::kVisit, Visit::kCommit, nullptr);
    sweep.chunks = {chunk};
    WEIR_RETURN_IF_ERROR(run(&sweep, nullptr));
  }
  resident_[chunk].reset();
  return true;
}

void StateHome::leave_to_parent() {
  if (own_disk_ != nullptr) own_disk_->leave_to_parent();
}

std::string StateHome::describe() const {
  std::string text = fmt::format(
      "{} parameters in {} chunks of {} bytes, {} of them in memory, {} worker threads; memory: {}",
      placement_.element_count(), placement_.state_count(), placement_.chunk_bytes(),
      resident_count(), pool_->thread_count(), budget_.describe());
  if (disk_ != nullptr) text += "; disk: " + disk_->describe();
  return text;
}

}  // namespace weir::offload
