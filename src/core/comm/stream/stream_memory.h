// SPDX-License-Identifier: Apache-2.0
// StreamMemory: what a rank of one communicator needs so that its collectives and messages on
// memory of devices are work of the program's stream alone (stream_program.h,
// cuda/kernels/message_arguments.h): scratch on its device, that of its peers as this rank reaches
// it, flags, kernels. stream_setup.h makes all of it, while no stream waits for another rank.
//
// Scratch of a rank, one after the other: the slots that peers read in collectives, the rank's own
// room, a factor, and for each rank, itself included, the slots of the messages to it.
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

#include "core/comm/stream/capture.h"
#include "core/comm/stream/context_check.h"
#include "core/comm/stream/device_kernels.h"
#include "core/comm/stream/device_window.h"
#include "core/comm/stream/stream_flags.h"
#include "core/comm/stream/stream_program.h"
#include "core/comm/stream/stream_ways.h"
#include "cuda/driver.h"
#include "cuda/kernels/message_arguments.h"

namespace weir::comm {

// Of a stream of the library's own, by the thread that enqueues.
using StreamLease = std::shared_ptr<const cuda::Stream>;

class StreamMemory {
 public:
  ~StreamMemory();
  StreamMemory(const StreamMemory&) = delete;
  StreamMemory& operator=(const StreamMemory&) = delete;

  // Whether all ranks can reduce and move messages.
  bool has_kernels() const { return has_kernels_; }
  const cuda::Driver& driver() const { return driver_; }
  cuda::Context context() const { return context_; }
  ContextCheck& context_check() const { return *context_check_; }
  Rank rank() const { return rank_; }
  Rank rank_count() const { return static_cast<Rank>(scratch_.size()); }
  uint64_t slot_bytes() const { return slot_bytes_; }
  // Of a rank: its slots, one after the other.
  char* scratch(Rank rank) const { return scratch_[rank]; }
  // This rank's own, of the size of a slot, behind its slots: for what no peer reads.
  char* own_room() const { return scratch_[rank_] + StreamProgram::kSlots * slot_bytes_; }
  // And behind that, for one element.
  char* factor_room() const { return own_room() + slot_bytes_; }
  // Of a slot for messages; its place for messages from one rank to another.
  uint64_t message_slot_bytes() const { return message_slot_bytes_; }
  char* message_slots(Rank writer, Rank reader) const {
    return scratch_[writer] + (StreamProgram::kSlots + 1) * slot_bytes_ + StreamProgram::kAlign +
           reader * kSlotsOfPair * message_slot_bytes_;
  }
  // As kernels reach it; and the word that ends those of this rank.
  kernels::MessageLane* lanes(Rank writer, Rank reader) const {
    return on_device<kernels::MessageLane>(flags_->offset_of_lanes(writer, reader));
  }
  const uint32_t* stop_word() const {
    return on_device<const uint32_t>(flags_->offset_of_stop(rank_));
  }
  cuda::DevicePointer flag(uint32_t index) const { return flags_base_ + flags_->offset_of(index); }
  StreamFlags& flags() const { return *flags_; }

  // Which way a collective takes.
  const StreamWays& ways() const { return ways_; }

  // The kernels for the current context, which must reach all scratch: that of this object, or one
  // that is given access now. nullptr: it cannot be, and `reason` says why.
  const DeviceKernels* kernels(std::string* reason);
  // Why a stream of the context that is current does not reach all ranks' memory; "": it does.
  std::string why_context_is_too_far() const;

  // Streams of the library's own in the current context, for calls without one; made at the first
  // call. `index`: of several of a kind.
  enum class OwnStream : uint8_t { kCollectives, kMessages, kForked };
  Status own_stream(const char* function, OwnStream which, cuda::Stream* stream, size_t index = 0);
  // One for work that is forked from a stream in this capture, or in none, and joins it again while
  // the lease lives: nothing else is forked to it meanwhile. It is in no other capture; a stream
  // stays in one until that ends.
  Status fork_stream(const char* function, const Capture& capture, StreamLease* lease);

  // Windows of the program's, which collectives use from now on, and no more (window_setup.h).
  // `next_window`: its number, the same on all ranks.
  uint64_t next_window() { return ++window_count_; }
  void add_window(std::shared_ptr<const DeviceWindow> window);
  std::shared_ptr<const DeviceWindow> take_window(const DeviceWindow* window);
  DeviceWindow::Place find_window(const void* memory, uint64_t bytes);

  // Numbers the collectives of this rank that are not captured, from 1 on.
  uint64_t next_call() { return ++call_count_; }
  // Of these, those that have a root.
  void next_rooted_call() { ++rooted_call_count_; }
  uint64_t rooted_call_count() const { return rooted_call_count_; }

  // The communicator has failed: what its ranks still read of this rank's scratch does not matter.
  void spoil() { spoiled_.store(true, std::memory_order_release); }
  // What this rank has on a stream may never end, or not be seen to end: neither its scratch nor
  // the flags are used again.
  void lose() { lost_.store(true, std::memory_order_release); }
  // Lets a stream of this rank pass what it waits for in a collective with this fingerprint.
  void release(uint32_t fingerprint) const;
  // Ends this rank's kernels that move messages, now and later.
  void stop_messages() const { flags_->stop(rank_).store(1, std::memory_order_release); }
  // Of these, which the stream of this rank waits for, those that have put nothing into slots that
  // it has not given back.
  std::vector<Rank> silent_among(const std::vector<Rank>& writers) const;
  // Those for which the stream may wait: nothing lies there that it has not begun to take. They may
  // also have given all that they have for the call.
  std::vector<Rank> awaited_among(const std::vector<Rank>& writers) const;
  // Those that have put data of another call there than that with this fingerprint.
  std::vector<Rank> others_among(const std::vector<Rank>& writers, uint32_t fingerprint) const;
  // The ranks that have not taken what this one has put into its slots for them.
  std::vector<Rank> slow_readers() const;
  // Of collectives on memory of devices that other ranks have called, and this rank has not:
  // "; rank 1 called ...", or "" while ranks do not number these calls alike.
  std::string calls_ahead() const;
  // Changes with every flag that this rank's collectives wait for.
  uint64_t progress_mark() const;

 private:
  friend class StreamSetup;  // makes it
  static constexpr uint64_t kSlotsOfPair = kernels::kMessageLanes * kernels::kMessageSlots;

  explicit StreamMemory(const cuda::Driver& driver) : driver_(driver) {}
  // Of the writers, those none of whose flags to this rank is set, or clear.
  using FlagOf = uint32_t (*)(Rank rank_count, uint32_t phase, uint32_t slot, Rank writer,
                              Rank reader);
  std::vector<Rank> without(const std::vector<Rank>& writers, FlagOf flag_of, bool is_set) const;
  // Those of the messages to this rank.
  template <typename Visit>
  void for_each_message_flag(Visit&& visit) const;
  template <typename T>
  T* on_device(uint64_t offset) const {
    return reinterpret_cast<T*>(static_cast<uintptr_t>(flags_base_ + offset));
  }
  // Takes scratch of the right size that nothing uses any more; false: there is none.
  bool take_resting(bool is_mapped);
  bool register_flags(std::string* reason);

  const cuda::Driver& driver_;
  cuda::Context context_ = nullptr;
  std::shared_ptr<ContextCheck> context_check_;
  Rank rank_ = 0;
  uint64_t slot_bytes_ = 0;
  uint64_t message_slot_bytes_ = 0;
  uint64_t scratch_bytes_ = 0;   // of this rank's allocation
  uint64_t scratch_number_ = 0;  // its number (reach.h)
  bool scratch_is_mapped_ = false;
  char* own_scratch_ = nullptr;
  std::vector<char*> scratch_;
  std::vector<uint64_t> contexts_in_process_;  // of ranks of this process; 0 for others
  std::shared_ptr<StreamFlags> flags_;
  bool entered_ = false;
  bool has_kernels_ = false;
  StreamWays ways_;
  uint32_t use_count_ = 0;  // of the flags
  cuda::DevicePointer flags_base_ = 0;
  std::atomic<uint64_t> call_count_{0};
  std::atomic<uint64_t> rooted_call_count_{0};
  std::atomic<bool> spoiled_{false};
  std::atomic<bool> lost_{false};
  std::mutex lock_;
  struct Own {
    cuda::Context context;
    OwnStream which;
    size_t index;
    cuda::Stream stream;
    std::weak_ptr<const cuda::Stream> lease;  // of kForked
  };
  // With the lock.
  Status make_own_stream(const char* function, const Own& own);
  std::vector<Own> own_streams_;
  uint64_t window_count_ = 0;
  std::vector<std::shared_ptr<const DeviceWindow>> windows_;
  std::vector<std::pair<cuda::Context, const DeviceKernels*>> kernels_;
};

}  // namespace weir::comm
