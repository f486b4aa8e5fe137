// SPDX-License-Identifier: Apache-2.0
#include "offload/io/posix_disk.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>

namespace weir::offload {
namespace {

std::chrono::steady_clock::time_point time_point(uint64_t deadline_ns) {
  constexpr uint64_t kFarNs = uint64_t{1} << 62;  // of signed time points, 146 years
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(std::min(deadline_ns, kFarNs)));
}

}  // namespace

PosixDisk::PosixDisk(const DiskOptions& options)
    : FileDisk(options.direct),
      depth_(options.depth),
      request_bytes_max_(options.request_bytes_max) {}

Result<std::unique_ptr<PosixDisk>> PosixDisk::create(const DiskOptions& options,
                                                     const std::string& reason) {
  WEIR_RETURN_IF_ERROR(offload::check(options));
  std::unique_ptr<PosixDisk> disk(new PosixDisk(options));
  if (!reason.empty()) disk->note(reason);
  // Signals are left to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status started;
  try {
    const uint32_t count = std::min(options.posix_threads, options.depth);
    for (uint32_t i = 0; i < count; ++i)
      disk->threads_.emplace_back([raw = disk.get()] { raw->work(); });
  } catch (const std::system_error& error) {
    started = system_error("start an I/O thread", error.code().value());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started.ok()) return started;
  return disk;
}

PosixDisk::~PosixDisk() {
  {
    const std::lock_guard lock(mutex_);
    waiting_.clear();
    stop_ = true;
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void PosixDisk::run(Request* request) const {
  const Transfer& t = request->transfer;
  while (request->outcome == TransferOutcome::kMore) {
    const uint64_t done = request->progress.done_bytes;
    const auto bytes = static_cast<size_t>(std::min(t.bytes - done, request_bytes_max_));
    const auto offset = static_cast<off_t>(t.offset_bytes + done);
    const ssize_t moved = t.write ? pwrite(request->fd, t.buffer + done, bytes, offset)
                                  : pread(request->fd, t.buffer + done, bytes, offset);
    request->outcome = request->progress.add(moved < 0 ? -errno : moved, t, request->fd);
  }
}

void PosixDisk::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (stop_) return;
    Request request = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    run(&request);
    lock.lock();
    done_.push_back(request);
    finished_.notify_one();
  }
}

Result<uint32_t> PosixDisk::submit(std::span<const Transfer> transfers) {
  WEIR_RETURN_IF_ERROR(FileDisk::check(transfers));
  const auto count = static_cast<uint32_t>(std::min<size_t>(transfers.size(), depth_ - in_flight_));
  {
    const std::lock_guard lock(mutex_);
    for (const Transfer& transfer : transfers.first(count)) {
      waiting_.push_back(Request{.transfer = transfer,
                                 .fd = file(transfer.file).fd,
                                 .outcome = TransferOutcome::kMore,
                                 .progress = {}});
      ++file(transfer.file).transfers;
    }
  }
  if (count == 1)
    work_.notify_one();
  else if (count > 1)
    work_.notify_all();
  in_flight_ += count;
  return count;
}

Status PosixDisk::reap(uint32_t least, uint64_t deadline_ns, std::vector<Completion>* done) {
  least = std::min(least, in_flight_);
  std::vector<Request> finished;
  bool in_time = true;
  {
    std::unique_lock lock(mutex_);
    in_time =
        finished_.wait_until(lock, time_point(deadline_ns), [&] { return done_.size() >= least; });
    finished.swap(done_);
  }
  for (const Request& request : finished) {
    done->push_back(
        {request.transfer.tag, status_of(request.transfer, request.outcome, request.progress)});
    --file(request.transfer.file).transfers;
    --in_flight_;
  }
  if (in_time) return Status();
  return Status(Code::kTimeout,
                fmt::format("{} of {} transfers completed before the deadline, {} are under way",
                            finished.size(), least, in_flight_));
}

void PosixDisk::cancel() {
  const std::lock_guard lock(mutex_);
  for (Request& request : waiting_) {
    request.outcome = TransferOutcome::kFailed;
    request.progress.error_number = ECANCELED;
    done_.push_back(request);
  }
  waiting_.clear();
}

std::string PosixDisk::describe() const {
  return fmt::format("pread and pwrite on {} threads, depth {}{}", threads_.size(), depth_,
                     notes());
}

}  // namespace weir::offload
