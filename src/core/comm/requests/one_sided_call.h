// SPDX-License-Identifier: Apache-2.0
// The description of a one-sided operation, and of a window as one rank knows it. Values; after a
// window has been made only its mutable members are written, with the carrier's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/record/record_format.h"
#include "weir/plugin.h"

namespace weir::comm {

struct OneSidedWindow {
  // One rank's memory in it.
  struct Part {
    uint64_t bytes = 0;
    unsigned char* mapped = nullptr;  // its address in this process; nullptr: not mapped
    bool on_device = false;
    uint64_t word_shift = 0;  // offsets of words are this, modulo 8
    // The key by which the network reaches it; empty: it does not. Opened at first use.
    std::vector<unsigned char> key;
    mutable weir_transport_remote_t* remote = nullptr;
    mutable uint32_t posted = 0;  // operations by the network that are under way
    // Its rank has retired it. Any thread may ask.
    mutable std::atomic<bool> is_retired{false};
  };
  uint32_t number = 0;
  unsigned char* own = nullptr;
  uint64_t own_bytes = 0;
  std::vector<Part> parts;  // by rank
  bool is_mapped = false;   // every rank maps the memory of all: the same on all ranks
  weir_transport_memory_t* registered = nullptr;  // this rank's, for the network
  mutable bool is_served = false;                 // peers' messages are looked for
  mutable bool has_ended = false;                 // this rank has retired its part
};

// Memory of other ranks that the maker of a window can reach without the transport.
struct OneSidedReach {
  std::vector<unsigned char*> addresses;  // by rank, in this process; nullptr: not reached
  bool is_everywhere = false;             // this rank reaches all memory of the window
};

enum class OneSidedKind : uint8_t {
  kPut,
  kGet,
  kPutSignal,
  kSignal,
  kWaitSignal,
  kFetchAdd,
  kCompareSwap,
  kFlush,
  kRetire
};

struct OneSidedCall {
  OneSidedKind kind = OneSidedKind::kPut;
  bool all_ranks = false;  // of a flush; otherwise the target is the request's peer
  const OneSidedWindow* window = nullptr;
  uint64_t offset = 0;
  const void* source = nullptr;
  void* destination = nullptr;
  uint64_t bytes = 0;
  const OneSidedWindow* signal_window = nullptr;
  uint64_t signal_offset = 0;
  uint64_t value = 0;     // of the signal, to add, or to set
  uint64_t expected = 0;  // of a compare and swap
  uint64_t* old = nullptr;

  // While it is under way:
  bool fenced = false;         // done after all earlier messages to its target
  bool after_network = false;  // begun when the network's operations with its target are done
  bool by_network = false;
  uint32_t index = 0;      // among those under way
  uint32_t awaited = 0;    // replies that a flush or the end of a window waits for
  bool has_asked = false;  // the end of a window: the other ranks were told
  // Of an operation by the network:
  uint64_t epoch = 0;      // flushes for its target before it
  uint64_t posted_ns = 0;  // core/base/clock.h
};

// The error of an operation that names a part of a window whose rank has retired it; else ok.
Status refused_by(const OneSidedCall& call, Rank target);

// The kind under which the recorder keeps it.
RecordKind record_kind(const OneSidedCall& call);
uint64_t record_units(const OneSidedCall& call);

// Loads and stores the word at `address`, a multiple of 8, as other processors do.
uint64_t load_word(const unsigned char* address);
uint64_t add_to_word(unsigned char* address, uint64_t value);  // what it was
uint64_t swap_word(unsigned char* address, uint64_t expected, uint64_t desired);

// Counters may wrap.
constexpr bool has_reached(uint64_t word, uint64_t value) {
  return static_cast<int64_t>(word - value) >= 0;
}

// [offset, offset + bytes) lies within `limit` bytes.
constexpr bool lies_within(uint64_t offset, uint64_t bytes, uint64_t limit) {
  return offset <= limit && bytes <= limit - offset;
}

}  // namespace weir::comm
