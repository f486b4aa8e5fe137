// SPDX-License-Identifier: Apache-2.0
// StateHome: checks that the committed state is whole, at the start and in the background.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "offload/io/open_disk.h"
#include "offload/optimizer/state_home.h"
#include "offload/optimizer/state_sweep.h"

namespace weir::offload {
namespace {

constexpr uint64_t kTellNs = 100'000'000;   // between two calls of verify_progress
constexpr uint64_t kLogNs = 5'000'000'000;  // between two lines of the log

// Tells the caller and the log the progress of a verification.
class VerifyTeller {
 public:
  VerifyTeller(const OptimizerOptions& options, uint64_t chunk_bytes, uint64_t chunk_count)
      : options_(options),
        chunk_bytes_(chunk_bytes),
        total_bytes_(chunk_count * chunk_bytes),
        begin_ns_(now_ns()),
        told_ns_(begin_ns_),
        logged_ns_(begin_ns_) {}

  void at(uint64_t done) {
    const uint64_t now = now_ns();
    if (now - told_ns_ >= kTellNs) {
      told_ns_ = now;
      if (options_.verify_progress) options_.verify_progress(done * chunk_bytes_, total_bytes_);
    }
    if (now - logged_ns_ < kLogNs) return;
    logged_ns_ = now;
    log_info(text("verifying", done * chunk_bytes_));
  }

  void whole() {
    if (options_.verify_progress) options_.verify_progress(total_bytes_, total_bytes_);
    log_info(text("verified", total_bytes_));
  }

 private:
  std::string text(const char* what, uint64_t done_bytes) const {
    const double seconds = static_cast<double>(std::max<uint64_t>(1, now_ns() - begin_ns_)) * 1e-9;
    return fmt::format("offload: '{}': {} {:.2f} of {:.2f} GB of the committed step, {:.2f} GB/s",
                       options_.directories[0], what, static_cast<double>(done_bytes) * 1e-9,
                       static_cast<double>(total_bytes_) * 1e-9,
                       static_cast<double>(done_bytes) * 1e-9 / seconds);
  }

  const OptimizerOptions& options_;
  const uint64_t chunk_bytes_;
  const uint64_t total_bytes_;
  const uint64_t begin_ns_;
  uint64_t told_ns_;
  uint64_t logged_ns_;
};

}  // namespace

bool StateHome::scrubs() const {
  return options_.scrub_bytes_per_s > 0 && options_.disk == nullptr && !options_.read_only;
}

Status StateHome::start_scrub() {
  if (!scrubs()) return {};
  if (scrub_buffer_.data() == nullptr) {
    log_warn(
        fmt::format("offload: memory_bytes ({}) leaves no room for a chunk of {} bytes: no "
                    "background scrub",
                    options_.memory_bytes, placement_.chunk_bytes()));
    return {};
  }
  DiskOptions disk;
  disk.kind = DiskKind::kPosix;
  disk.depth = 1;
  disk.posix_threads = 1;
  Result<std::unique_ptr<Disk>> opened = open_disk(disk);
  if (!opened.ok()) return opened.status();
  ScrubOptions options;
  options.bytes_per_s = options_.scrub_bytes_per_s;
  options.timeout_ms = options_.timeout_ms;
  Result<std::unique_ptr<Scrubber>> scrubber =
      Scrubber::start(opened.take(), {scrub_buffer_.data(), scrub_buffer_.bytes()}, options);
  if (!scrubber.ok()) return scrubber.status();
  scrubber_ = scrubber.take();
  watch_committed();
  return {};
}

void StateHome::watch_committed() {
  if (scrubber_ == nullptr) return;
  const uint64_t writing = is_new() ? 0 : store_->committed()->writing;
  if (writing == watched_writing_) return;
  watched_writing_ = writing;
  scrubber_->watch(store_->scrub_target());
}

// Chunks that the scrub found whole need not be read again; those that it found bad must be.
void StateHome::take_over_scrub() {
  if (scrubber_ == nullptr) return;
  for (const uint64_t chunk : scrubber_->take_whole()) store_->trust(chunk);
  for (const uint64_t chunk : scrubber_->report().bad_chunks) store_->doubt(chunk);
}

Status StateHome::ensure_whole(bool* went_back) {
  *went_back = false;
  if (is_new() || open_step_) return {};
  if (scrubber_ != nullptr) scrubber_->pause();
  take_over_scrub();
  const uint64_t epoch = store_->committed()->epoch;
  Status status = verify_unread();
  if (status.ok() && store_->committed()->epoch != epoch) {
    *went_back = true;
    watch_committed();
    status = reload();
  }
  if (scrubber_ != nullptr) scrubber_->resume();
  return status;
}

Status StateHome::check_committed() {
  if (scrubber_ != nullptr) scrubber_->pause();
  take_over_scrub();
  Status status = store_->check_bad_chunks();
  if (scrubber_ != nullptr) scrubber_->resume();
  return status;
}

// All threads verify at the drives' speed. Only if they find damage, the state is read again chunk
// by chunk, so that the report names every bad chunk.
Status StateHome::verify_unread() {
  const uint64_t begin_ns = now_ns();
  Sweep sweep(this, Sweep::Kind::kVerify, Visit::kRead, nullptr);
  sweep.chunks = store_->unverified_chunks();
  if (sweep.chunks.empty()) return {};
  VerifyTeller teller(options_, placement_.chunk_bytes(), sweep.chunks.size());
  sweep.progress = [&](uint64_t done) { teller.at(done); };
  PipelineReport report;
  Status status = run(&sweep, &report);
  verify_bytes_ += report.read_bytes;
  if (!status.ok() && status.code() != Code::kTimeout) status = store_->ensure_whole();
  verify_ns_ += now_ns() - begin_ns;
  if (status.ok()) teller.whole();
  return status;
}

void StateHome::describe_store(StoreReport* report) const {
  report->chunk_count = placement_.chunk_count();
  report->epoch = is_new() ? 0 : store_->committed()->epoch;
  report->verified_chunk_count =
      is_new() ? 0 : report->chunk_count - store_->unverified_chunks().size();
  report->verify_bytes = verify_bytes_;
  report->verify_seconds = static_cast<double>(verify_ns_) * 1e-9;
  report->went_back = store_->fallback();
  report->mended = store_->mended();
  report->damage = store_->known_damage();
  if (scrubber_ != nullptr) report->scrub = scrubber_->report();
}

}  // namespace weir::offload
