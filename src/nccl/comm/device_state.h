// SPDX-License-Identifier: Apache-2.0
// DeviceState: how a communicator handles operations on device memory: what its ranks agreed on
// when it was made, what has changed since, and what has been logged already (direct/, stream/).
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "weir/weir.h"

namespace weir::nccl {

class Neighbors;
class StreamMemory;
class StreamRecord;

class DeviceState {
 public:
  // ---- Agreed, the same on all ranks ----
  struct Agreed {
    uint64_t chunk_bytes = 0;     // size of the slices of large operations; 0: not cut
    bool in_one_process = false;  // all ranks are
  };
  // Before the communicator is used.
  void agree(const Agreed& agreed) {
    chunk_bytes_ = agreed.chunk_bytes;
    in_one_process_ = agreed.in_one_process;
  }
  uint64_t chunk_bytes() const { return chunk_bytes_.load(std::memory_order_relaxed); }
  bool in_one_process() const { return in_one_process_.load(std::memory_order_relaxed); }
  // Of the ranks of this process; empty: this is the only one that uses CUDA. Set while the
  // communicator is made.
  const std::shared_ptr<Neighbors>& neighbors() const { return neighbors_; }
  void set_neighbors(std::shared_ptr<Neighbors> neighbors) { neighbors_ = std::move(neighbors); }
  // What collectives need to be work of their streams alone; empty: they are staged. Set while the
  // communicator is made.
  const std::shared_ptr<StreamMemory>& stream_memory() const { return stream_memory_; }
  void set_stream_memory(std::shared_ptr<StreamMemory> memory) {
    stream_memory_ = std::move(memory);
  }
  // What the recorder keeps of such collectives; empty: nothing. Set with it.
  const std::shared_ptr<StreamRecord>& stream_record() const { return stream_record_; }
  void set_stream_record(std::shared_ptr<StreamRecord> record) {
    stream_record_ = std::move(record);
  }
  // The communicator for answers to direct messages, which Comm owns; nullptr: messages are not
  // tried directly.
  weir_comm_t answers() const { return answers_.load(std::memory_order_acquire); }
  void set_answers(weir_comm_t comm) { answers_.store(comm, std::memory_order_release); }

  // A peer that cannot access what this rank sends to it.
  void give_up_messages_to(int peer) {
    std::lock_guard lock(lock_);
    unreachable_for_.insert(peer);
  }
  bool tries_messages_to(int peer) const {
    std::lock_guard lock(lock_);
    return unreachable_for_.count(peer) == 0;
  }
  // Each is explained once per communicator.
  enum class Event : uint32_t {
    kCopied = 1,       // a collective has been work of its stream alone
    kReduced = 2,      // a reduction has
    kSent = 4,         // a message has
    kNotShared = 8,    // a message could not: CUDA does not share its buffer
    kTransported = 16  // the transport takes messages itself
  };
  // True the first time.
  bool note(Event event) {
    const auto bit = static_cast<uint32_t>(event);
    return (noted_.fetch_or(bit) & bit) == 0;
  }

 private:
  std::atomic<uint64_t> chunk_bytes_{0};
  std::shared_ptr<Neighbors> neighbors_;
  std::shared_ptr<StreamMemory> stream_memory_;
  std::shared_ptr<StreamRecord> stream_record_;
  std::atomic<bool> in_one_process_{false};
  std::atomic<weir_comm_t> answers_{nullptr};
  std::atomic<uint32_t> noted_{0};
  mutable std::mutex lock_;
  std::unordered_set<int> unreachable_for_;
};

}  // namespace weir::nccl
