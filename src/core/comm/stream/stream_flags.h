// SPDX-License-Identifier: Apache-2.0
// StreamFlags: memory of the host that all ranks of a communicator map, where their streams set and
// await the flags of StreamProgram, where their kernels count the pieces of messages
// (cuda/kernels/message_arguments.h), and where ranks tell which calls they have made. It lies in
// memory of the host so that a flag can be set without a call to the driver: when a rank has died
// or aborted, a thread of the host releases the streams of the others by plain stores, whatever
// holds the driver's locks.
//
// Rank 0's process makes it and offers its descriptor under a random key (control::Network); the
// others fetch it. A process keeps what it has mapped, since the driver has
// it registered: to end that may wait for the device. A piece is used again by another communicator
// of rank 0's process once all ranks have left it; if a rank has died, only its descriptor is given
// back.
//
//   offset        bytes             what
//   0             64                users: ranks that have it and have not left; uses before
//   64            n * 64 * 32       records of calls of each rank: number, what, count, fingerprint
//   after those   flag_count * 64   flags, one in each cache line
//   after those   n * 64            of each rank: 4 bytes, of which not 0 stops its kernels that
//                                   move messages; at 8, the last call that its stream has come to;
//                                   at 16, how many calls it has captured; at 24, the last call
//                                   that its stream has passed
//   after those   n * n * 8 * 128   lanes of messages, of each writer and reader
//
// Thread-safe, except that a rank's records have one writer.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/base/types.h"
#include "cuda/kernels/message_arguments.h"

namespace weir::comm {

using StreamFlagsKey = std::array<unsigned char, 16>;  // a key of control::Network

class StreamFlags {
 public:
  static constexpr uint32_t kRecords = 64;  // of each rank

  // One call that a rank has made; the first one has the number 1.
  struct Record {
    std::atomic<uint64_t> number;  // 0: none
    uint64_t what;                 // engine::pack_what
    uint64_t count;
    uint64_t fingerprint;
  };

  // On rank 0: memory that no communicator uses, made or used before; all flags at their first
  // values, no records. *descriptor: to be offered; it stays this object's.
  static Result<std::shared_ptr<StreamFlags>> make(Rank rank_count, StreamFlagsKey* key,
                                                   int* descriptor);
  // nullptr: the process has not mapped it yet.
  static std::shared_ptr<StreamFlags> find(const StreamFlagsKey& key);
  // Maps it; `descriptor` stays the caller's.
  static Result<std::shared_ptr<StreamFlags>> map(const StreamFlagsKey& key, int descriptor,
                                                  Rank rank_count);

  static uint64_t bytes_for(Rank rank_count);

  ~StreamFlags();
  StreamFlags(const StreamFlags&) = delete;
  StreamFlags& operator=(const StreamFlags&) = delete;

  // A rank uses it from `enter` to `leave`, also if the communicator has failed. One that has died,
  // or may still use it, never leaves: then it is not used again.
  void enter() { users().fetch_add(1); }
  void leave() { users().fetch_sub(1); }
  bool is_left() const { return users().load() == 0; }
  // How often it has been used again: it was left by all in between.
  uint32_t use_count() const { return words()[1].load(); }

  void* memory() const { return memory_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t offset_of(uint32_t flag) const { return flags_offset_ + uint64_t{flag} * kLine; }
  std::atomic<uint32_t>& flag(uint32_t index) const {
    return *reinterpret_cast<std::atomic<uint32_t>*>(memory_ + offset_of(index));
  }
  uint64_t offset_of_stop(Rank rank) const { return stops_offset() + uint64_t{rank} * kLine; }
  std::atomic<uint32_t>& stop(Rank rank) const {
    return *reinterpret_cast<std::atomic<uint32_t>*>(memory_ + offset_of_stop(rank));
  }
  // The last call that the rank's stream has come to, as far as its thread that watches has seen.
  std::atomic<uint64_t>& reached(Rank rank) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(memory_ + offset_of_stop(rank) + 8);
  }
  // The last call that it has passed, likewise.
  std::atomic<uint64_t>& passed(Rank rank) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(memory_ + offset_of_stop(rank) + 24);
  }
  // Where ranks have captured as many calls as each other, they number the other calls alike.
  std::atomic<uint64_t>& captured(Rank rank) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(memory_ + offset_of_stop(rank) + 16);
  }
  // Of the messages of a pair: kernels::kMessageLanes.
  uint64_t offset_of_lanes(Rank writer, Rank reader) const {
    return stops_offset() + uint64_t{rank_count_} * kLine +
           (uint64_t{writer} * rank_count_ + reader) * kPairBytes;
  }
  kernels::MessageLane* lanes(Rank writer, Rank reader) const {
    return reinterpret_cast<kernels::MessageLane*>(memory_ + offset_of_lanes(writer, reader));
  }
  void note_call(Rank rank, uint64_t number, uint64_t what, uint64_t count, uint32_t fingerprint);
  // False: the rank has not made a call of that number, or so many since that it is forgotten.
  bool read_call(Rank rank, uint64_t number, uint64_t* what, uint64_t* count,
                 uint32_t* fingerprint) const;
  // Also where it is forgotten.
  bool has_called(Rank rank, uint64_t number) const {
    return record(rank, number).number.load(std::memory_order_acquire) >= number;
  }

 private:
  static constexpr uint64_t kLine = 64;
  static constexpr uint64_t kPairBytes = kernels::kMessageLanes * sizeof(kernels::MessageLane);

  StreamFlags() = default;
  std::atomic<uint32_t>* words() const { return reinterpret_cast<std::atomic<uint32_t>*>(memory_); }
  std::atomic<uint32_t>& users() const { return words()[0]; }
  Record& record(Rank rank, uint64_t number) const {
    return reinterpret_cast<Record*>(memory_ + kLine)[rank * kRecords + number % kRecords];
  }
  uint64_t stops_offset() const;
  void reset();

  char* memory_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t flags_offset_ = 0;
  Rank rank_count_ = 0;
  int descriptor_ = -1;  // on the rank that has made it
  StreamFlagsKey key_{};
};

}  // namespace weir::comm
