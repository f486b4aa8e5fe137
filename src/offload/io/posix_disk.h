// SPDX-License-Identifier: Apache-2.0
// PosixDisk: transfers by pread and pwrite on a few threads of its own, for machines where io_uring
// is not allowed. Same thread rule as Disk; its threads take no signals.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "offload/io/file_disk.h"
#include "offload/io/open_disk.h"

namespace weir::offload {

class PosixDisk final : public FileDisk {
 public:
  // `reason` (may be empty) says in describe() why this kind of disk was chosen.
  static Result<std::unique_ptr<PosixDisk>> create(const DiskOptions& options,
                                                   const std::string& reason = "");
  // Drops transfers that have not begun and waits for the others.
  ~PosixDisk() override;

  uint32_t depth() const override { return depth_; }
  uint32_t in_flight() const override { return in_flight_; }
  Result<uint32_t> submit(std::span<const Transfer> transfers) override;
  Status reap(uint32_t least, uint64_t deadline_ns, std::vector<Completion>* done) override;
  void cancel() override;
  std::string describe() const override;

 private:
  struct Request {
    Transfer transfer;
    int fd = -1;
    TransferOutcome outcome = TransferOutcome::kMore;
    TransferProgress progress;
  };

  explicit PosixDisk(const DiskOptions& options);
  void work();
  void run(Request* request) const;

  const uint32_t depth_;
  const uint64_t request_bytes_max_;
  uint32_t in_flight_ = 0;

  std::mutex mutex_;
  std::condition_variable work_;      // waiting_ has grown, or stop_
  std::condition_variable finished_;  // done_ has grown
  std::deque<Request> waiting_;       // guarded by mutex_, like all below
  std::vector<Request> done_;
  bool stop_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace weir::offload
