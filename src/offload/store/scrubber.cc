// SPDX-License-Identifier: Apache-2.0
#include "offload/store/scrubber.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <system_error>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "offload/store/chunk_trailer.h"
#include "offload/store/transfer_all.h"

namespace weir::offload {

Scrubber::Scrubber(std::unique_ptr<Disk> disk, std::span<unsigned char> buffer,
                   const ScrubOptions& options)
    : disk_(std::move(disk)), buffer_(buffer), options_(options) {}

Result<std::unique_ptr<Scrubber>> Scrubber::start(std::unique_ptr<Disk> disk,
                                                  std::span<unsigned char> buffer,
                                                  const ScrubOptions& options) {
  WEIR_CHECK(options.bytes_per_s > 0, "a scrubber without a rate is not started");
  std::unique_ptr<Scrubber> scrubber(new Scrubber(std::move(disk), buffer, options));
  // Signals are left to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    scrubber->thread_ = std::thread([raw = scrubber.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    started = system_error("start the scrub's thread", error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.ok()) return started;
  return scrubber;
}

Scrubber::~Scrubber() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  files_.clear();
}

void Scrubber::watch(ScrubTarget target) {
  {
    const std::lock_guard lock(mutex_);
    WEIR_CHECK(target.chunk_bytes <= buffer_.size(), "a chunk fits the scrub's buffer");
    target_ = std::move(target);
    ++generation_;
    left_ = target_.chunk_count;
    if (next_ >= target_.chunk_count) next_ = 0;
    rest_until_ns_ = 0;
    whole_.clear();
    report_.pass_count = 0;
    report_.damage = {};
    report_.bad_chunks.clear();
  }
  changed_.notify_all();
}

void Scrubber::pause() {
  const std::lock_guard lock(mutex_);
  ++pause_count_;
}

void Scrubber::resume() {
  {
    const std::lock_guard lock(mutex_);
    --pause_count_;
  }
  changed_.notify_all();
}

ScrubReport Scrubber::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

std::vector<uint64_t> Scrubber::take_whole() {
  const std::lock_guard lock(mutex_);
  return std::exchange(whole_, {});
}

bool Scrubber::may_read() const { return pause_count_ == 0 && left_ > 0 && report_.stopped.ok(); }

void Scrubber::run() {
  std::unique_lock lock(mutex_);
  uint64_t earliest_ns = 0;  // of the next read
  while (!stop_) {
    if (left_ == 0 && rest_until_ns_ > 0 && now_ns() >= rest_until_ns_) {
      left_ = target_.chunk_count;
      rest_until_ns_ = 0;
    }
    const uint64_t now = now_ns();
    if (!may_read() || now < earliest_ns) {
      uint64_t until_ns = may_read() ? earliest_ns : rest_until_ns_;
      if (until_ns <= now) {
        changed_.wait(lock);
      } else {
        changed_.wait_for(lock, std::chrono::nanoseconds(until_ns - now));
      }
      continue;
    }
    const ScrubTarget target = target_;
    const uint64_t generation = generation_;
    const uint64_t chunk = next_;
    if (files_generation_ != generation) files_.clear();
    files_generation_ = generation;
    lock.unlock();
    Status found;
    const Status read = read_chunk(target, chunk, &found);
    // The pause counts from the end of the read: the read's own time is not made up for.
    earliest_ns = now_ns() + static_cast<uint64_t>(static_cast<double>(target.chunk_bytes) * 1e9 /
                                                   static_cast<double>(options_.bytes_per_s));
    lock.lock();
    report_.read_bytes += target.chunk_bytes;
    if (generation != generation_) continue;
    if (!read.ok()) {
      report_.stopped = read;
      log_warn("offload: the background scrub has stopped: " + read.text());
      continue;
    }
    if (found.ok()) {
      whole_.push_back(chunk);
    } else {
      found_bad(chunk, found);
    }
    next_ = (chunk + 1) % target.chunk_count;
    if (--left_ == 0) {
      ++report_.pass_count;
      rest_until_ns_ = now_ns() + options_.rest_ms * 1'000'000u;
    }
  }
}

Status Scrubber::read_chunk(const ScrubTarget& target, uint64_t chunk, Status* found) {
  if (files_.empty()) {
    for (const std::string& path : target.files) {
      Result<OpenFile> file = OpenFile::open(*disk_, path, OpenMode::kReadOnly);
      if (!file.ok()) return file.status();
      files_.push_back(file.take());
    }
  }
  Transfer read;
  read.file = files_[chunk % files_.size()].id();
  read.offset_bytes = chunk / files_.size() * target.chunk_bytes;
  read.buffer = buffer_.data();
  read.bytes = target.chunk_bytes;
  const BatchOutcome outcome = transfer_all(*disk_, {&read, 1}, options_.timeout_ms);
  WEIR_RETURN_IF_ERROR(outcome.status);
  *found = outcome.first_error();
  if (found->ok()) {
    *found = check_chunk({target.id, chunk, target.epoch, target.writing}, buffer_.data(),
                         target.chunk_bytes);
  }
  return {};
}

void Scrubber::found_bad(uint64_t chunk, const Status& why) {
  if (std::count(report_.bad_chunks.begin(), report_.bad_chunks.end(), chunk) > 0) return;
  report_.bad_chunks.push_back(chunk);
  ChunkDamage& damage = report_.damage;
  damage.chunk_count = target_.chunk_count;
  damage.epoch = target_.epoch;
  damage.step = target_.step;
  damage.add(chunk, target_.files[chunk % target_.files.size()],
             chunk / target_.files.size() * target_.chunk_bytes, why.text());
  if (damage.bad_count > 1) return;
  log_warn("offload: the background scrub found damage: " + damage.text());
}

}  // namespace weir::offload
