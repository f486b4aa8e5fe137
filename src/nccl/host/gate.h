// SPDX-License-Identifier: Apache-2.0
// Gate: how a rank that ends its part of a window keeps the ranks out that write to it directly.
// The rank has words in memory that all processes of its machine can map: one says that the part
// has ended, and each other rank has one that counts its writes in progress. A rank counts a write
// before it looks whether the part has ended, and the owner does the two in the other order: so
// either the writer sees the end, or the owner sees the write and waits for it.
//
// The peers map the words themselves, also in the same process, so that they are there as long as
// anybody looks at them.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>

#include "nccl/base/outcome.h"
#include "nccl/host/symmetric.h"

namespace weir::nccl {

// A cache line, since each is written by another rank.
struct alignas(64) GateWord {
  std::atomic<uint32_t> value;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Of this rank's own part.
class Gate {
 public:
  // Empty where there is no memory for it: then no rank can write directly.
  static std::shared_ptr<Gate> make(const char* function, int rank_count);
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  Share share() const { return words_->share_of(words_->base()); }
  // All ranks have opened it.
  void stop_sharing() { words_->stop_sharing(); }

  // From now on no write begins.
  void close();
  // Whether the rank has a write in progress.
  bool has_inside(int rank) const;

 private:
  explicit Gate(std::shared_ptr<Allocation> words) : words_(std::move(words)) {}

  GateWord* word(int index) const { return reinterpret_cast<GateWord*>(words_->base()) + index; }

  const std::shared_ptr<Allocation> words_;
};

// Of another rank's part.
class PeerGate {
 public:
  // `rank`: this rank. Empty when the words cannot be mapped.
  static std::unique_ptr<PeerGate> open(const Share& share, int rank, int rank_count);

  // False: the part has ended. Otherwise it does not end before leave().
  bool enter();
  void leave();

 private:
  PeerGate(std::unique_ptr<Mapping> words, int rank);

  const std::unique_ptr<Mapping> words_;
  GateWord* const end_;
  GateWord* const inside_;
};

// A write in progress, to a part that other ranks may reach without a gate (nullptr).
class Passage {
 public:
  explicit Passage(PeerGate* gate) : gate_(gate), open_(gate == nullptr || gate->enter()) {}
  ~Passage() {
    if (open_ && gate_ != nullptr) gate_->leave();
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

  bool is_open() const { return open_; }

 private:
  PeerGate* const gate_;
  const bool open_;
};

}  // namespace weir::nccl
