// SPDX-License-Identifier: Apache-2.0
// UringDisk: transfers by io_uring, with registered files and the arena's memory registered. Same
// thread rule as Disk: the kernel delivers completions only to the thread that submits (which makes
// DEFER_TASKRUN fast). So the ring is bound to the thread of the first submit; it moves to another
// one, which registers everything again, only while nothing is under way. Only in builds with
// liburing (WEIR_HAVE_URING).
#pragma once

#include <memory>

#include "offload/io/file_disk.h"
#include "offload/io/open_disk.h"

namespace weir::offload {

class UringDisk final : public FileDisk {
 public:
  // kUnsupported where the kernel or its administrator does not allow io_uring.
  static Result<std::unique_ptr<UringDisk>> create(const DiskOptions& options);
  // Cancels transfers under way and waits for those that cannot be cancelled: afterwards the kernel
  // touches no buffer.
  ~UringDisk() override;

  uint32_t depth() const override;
  uint32_t in_flight() const override;
  Result<uint32_t> submit(std::span<const Transfer> transfers) override;
  Status reap(uint32_t least, uint64_t deadline_ns, std::vector<Completion>* done) override;
  void cancel() override;
  void leave_to_parent() override;
  std::string describe() const override;

 private:
  struct State;

  explicit UringDisk(const DiskOptions& options);
  Status opened(FileId id) override;
  Status closing(FileId id) override;

  Status start_ring();
  void stop_ring();
  Status bind_to_this_thread();
  void register_memory();
  Status register_file(FileId id);
  int arena_index(const Transfer& transfer, uint64_t done, uint64_t bytes) const;
  bool queue(uint32_t slot);
  Status flush();
  void fail_unsubmitted();
  void collect(std::vector<Completion>* done);
  void complete(uint32_t slot, TransferOutcome outcome, std::vector<Completion>* done);

  std::unique_ptr<State> state_;
};

}  // namespace weir::offload
