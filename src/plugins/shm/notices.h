// SPDX-License-Identifier: Apache-2.0
// Notices: what each rank shows to all others, in memory that they share. Each rank has two places
// and writes the one that its counter does not point at, so that a writer that is killed in the
// middle has changed nothing that anybody reads. Lock-free; one writer per rank, any readers.
//
//   offset                bytes  what (per rank)
//   0                        64  notices shown so far; the latest is in place (number % 2)
//   64 + place * 1088         8  its bytes
//   64 + place * 1088 + 64 1024  the notice
//
// What a peer wrote is checked: a length is read once and held against the room.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <atomic>

#include "weir/plugin.h"

namespace weir::plugins::shm {

class Notices {
 public:
  static uint64_t bytes(uint32_t rank_count) { return sizeof(Board) * uint64_t{rank_count}; }

  Notices() = default;
  // `shared` is zeroed memory of bytes(rank_count), aligned to 64.
  explicit Notices(unsigned char* shared) : boards_(reinterpret_cast<Board*>(shared)) {}

  // `bytes` is at most WEIR_TRANSPORT_NOTICE_BYTES_MAX.
  void show(uint32_t rank, const void* notice, size_t bytes);
  // The bytes of what `rank` shows, copied to `notice`; 0 when there is nothing.
  size_t read(uint32_t rank, void* notice) const;

 private:
  static constexpr size_t kWords = WEIR_TRANSPORT_NOTICE_BYTES_MAX / 8;
  struct alignas(64) Place {
    std::atomic<uint64_t> bytes;
    alignas(64) std::atomic<uint64_t> words[kWords];
  };
  struct alignas(64) Board {
    std::atomic<uint64_t> number;
    Place places[2];
  };

  Board* boards_ = nullptr;
};

}  // namespace weir::plugins::shm
