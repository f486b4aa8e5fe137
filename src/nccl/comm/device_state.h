// SPDX-License-Identifier: Apache-2.0
// DeviceState: how a communicator handles operations on device memory: what its ranks agreed on
// when it was made, what has changed since, and what has been logged already (stream/).
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace weir::comm {
class StreamMemory;
class StreamRecord;
}  // namespace weir::comm

namespace weir::nccl {

class Neighbors;

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
  // What operations need to be work of their streams alone; empty: they are staged. Set while the
  // communicator is made.
  const std::shared_ptr<comm::StreamMemory>& stream_memory() const { return stream_memory_; }
  void set_stream_memory(std::shared_ptr<comm::StreamMemory> memory) {
    stream_memory_ = std::move(memory);
  }
  // What the recorder keeps of them; empty: nothing. Set with it.
  const std::shared_ptr<comm::StreamRecord>& stream_record() const { return stream_record_; }
  void set_stream_record(std::shared_ptr<comm::StreamRecord> record) {
    stream_record_ = std::move(record);
  }
  // Each is explained once per communicator.
  enum class Event : uint32_t {
    kCopied = 1,       // a collective has been work of its stream alone
    kReduced = 2,      // a reduction has
    kSent = 4,         // messages have
    kTransported = 8,  // the transport takes messages itself
    kInWindows = 16    // a collective has used its buffers where they lie
  };
  // True the first time, of so many texts at most.
  bool is_new(const std::string& text) {
    constexpr size_t kTextsMax = 256;
    std::lock_guard lock(texts_lock_);
    return texts_.size() < kTextsMax && texts_.insert(text).second;
  }
  // True the first time.
  bool note(Event event) {
    const auto bit = static_cast<uint32_t>(event);
    return (noted_.fetch_or(bit) & bit) == 0;
  }

 private:
  std::atomic<uint64_t> chunk_bytes_{0};
  std::shared_ptr<Neighbors> neighbors_;
  std::shared_ptr<comm::StreamMemory> stream_memory_;
  std::shared_ptr<comm::StreamRecord> stream_record_;
  std::atomic<bool> in_one_process_{false};
  std::atomic<uint32_t> noted_{0};
  std::mutex texts_lock_;
  std::set<std::string> texts_;
};

}  // namespace weir::nccl
