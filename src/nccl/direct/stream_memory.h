// SPDX-License-Identifier: Apache-2.0
// StreamMemory: what a rank of one communicator needs so that its collectives on memory of devices
// are work of the program's stream alone (core/comm/device/stream_program.h): scratch on its
// device, that of its peers as this rank reaches it, flags, kernels. All of it is made with the
// communicator, while no stream waits for another rank, since making it may wait for the device.
//
// Scratch is kept and used again by later communicators; it is not given back to CUDA before the
// process ends. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/comm/device/stream_flags.h"
#include "core/comm/device/stream_program.h"
#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/cuda/driver.h"
#include "nccl/direct/direct_choice.h"
#include "nccl/direct/reduce_kernels.h"

namespace weir::nccl {

class StreamMemory {
 public:
  // Collective. *made stays empty on all ranks where one of them cannot take part; on that rank
  // *reason says why. The same where only reductions are impossible (`reduces`).
  //
  // Ranks of one process that share a device share its hardware queues, where one rank's wait may
  // stand before what another rank must do. With fewer queues than such ranks all ranks get an
  // error, if WEIR_DIRECT=1 demands it; else (kCollectives) *made stays empty wherever ranks share
  // a device so.
  static Outcome make(const char* function, Comm& comm, DirectChoice choice,
                      std::shared_ptr<StreamMemory>* made, std::string* reason);
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  // Whether all ranks can reduce.
  bool reduces() const { return reduces_; }
  const cuda::Driver& driver() const { return driver_; }
  cuda::Context context() const { return context_; }
  Rank rank() const { return rank_; }
  Rank rank_count() const { return static_cast<Rank>(scratch_.size()); }
  uint64_t slot_bytes() const { return slot_bytes_; }
  // Of a rank: its slots, one after the other.
  char* scratch(Rank rank) const { return scratch_[rank]; }
  // This rank's own, of the size of a slot, behind its slots: for what no peer reads.
  char* own_room() const { return scratch_[rank_] + comm::StreamProgram::kSlots * slot_bytes_; }
  // And behind that, for one element.
  char* factor_room() const { return own_room() + slot_bytes_; }
  cuda::DevicePointer flag(uint32_t index) const { return flags_base_ + flags_->offset_of(index); }
  comm::StreamFlags& flags() const { return *flags_; }

  // The kernels for the current context, which must reach all scratch: that of this object, or one
  // that is given access now. nullptr: it cannot be, and `reason` says why.
  const ReduceKernels* kernels(std::string* reason);

  // A stream of the library's own in the current context, for calls without one and for those that
  // must not share one; made at the first call.
  Outcome own_stream(const char* function, cuda::Stream* stream);

  // Numbers the collectives of this rank that are not captured, from 1 on.
  uint64_t next_call() { return ++call_count_; }

  // A failure may have left flags of this communicator as no other one can use them.
  void spoil() { spoiled_.store(true, std::memory_order_release); }
  // Lets a stream of this rank pass what it waits for in a call with this fingerprint.
  void release(uint32_t fingerprint) const;
  // Other ranks of which no data are here yet in a call with this fingerprint.
  std::vector<Rank> silent_ranks(uint32_t fingerprint) const;
  // Changes with every flag that this rank waits for.
  uint64_t progress_mark() const;

 private:
  explicit StreamMemory(const cuda::Driver& driver) : driver_(driver) {}
  bool prepare(Comm& comm, uint64_t scratch_bytes, std::string* reason);

  const cuda::Driver& driver_;
  cuda::Context context_ = nullptr;
  Rank rank_ = 0;
  uint64_t slot_bytes_ = 0;
  uint64_t scratch_bytes_ = 0;  // of this rank's allocation
  char* own_scratch_ = nullptr;
  std::vector<char*> scratch_;
  std::vector<uint64_t> contexts_in_process_;  // of ranks of this process; 0 for others
  std::shared_ptr<comm::StreamFlags> flags_;
  bool entered_ = false;
  bool reduces_ = false;
  uint32_t use_count_ = 0;  // of the flags
  cuda::DevicePointer flags_base_ = 0;
  std::atomic<uint64_t> call_count_{0};
  std::atomic<bool> spoiled_{false};
  std::mutex lock_;
  std::vector<std::pair<cuda::Context, cuda::Stream>> own_streams_;
  std::vector<std::pair<cuda::Context, const ReduceKernels*>> kernels_;
};

}  // namespace weir::nccl
