// SPDX-License-Identifier: Apache-2.0
#include "plugins/shm/notices.h"

#include <string.h>

namespace weir::plugins::shm {
namespace {

constexpr int kTriesMax = 10'000;  // of a reader whom a writer outruns; none is that fast

size_t words_of(size_t bytes) { return (bytes + 7) / 8; }

}  // namespace

void Notices::show(uint32_t rank, const void* notice, size_t bytes) {
  Board& board = boards_[rank];
  const uint64_t next = board.number.load(std::memory_order_relaxed) + 1;
  Place& place = board.places[next % 2];
  // Whoever still reads what stood here must see by the number that it is too late.
  std::atomic_thread_fence(std::memory_order_release);
  place.bytes.store(bytes, std::memory_order_relaxed);
  for (size_t i = 0; i < words_of(bytes); ++i) {
    uint64_t word = 0;
    const size_t part = bytes - 8 * i < 8 ? bytes - 8 * i : 8;
    memcpy(&word, static_cast<const unsigned char*>(notice) + 8 * i, part);
    place.words[i].store(word, std::memory_order_relaxed);
  }
  board.number.store(next, std::memory_order_release);
}

size_t Notices::read(uint32_t rank, void* notice) const {
  const Board& board = boards_[rank];
  for (int tries = 0; tries < kTriesMax; ++tries) {
    const uint64_t number = board.number.load(std::memory_order_acquire);
    if (number == 0) return 0;
    const Place& place = board.places[number % 2];
    const uint64_t length = place.bytes.load(std::memory_order_relaxed);
    if (length <= WEIR_TRANSPORT_NOTICE_BYTES_MAX) {
      for (size_t i = 0; i < words_of(length); ++i) {
        const uint64_t word = place.words[i].load(std::memory_order_relaxed);
        const size_t part = length - 8 * i < 8 ? length - 8 * i : 8;
        memcpy(static_cast<unsigned char*>(notice) + 8 * i, &word, part);
      }
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (board.number.load(std::memory_order_relaxed) != number) continue;
    // A length that cannot be was written by nobody who keeps to this file: no notice.
    return length <= WEIR_TRANSPORT_NOTICE_BYTES_MAX ? length : 0;
  }
  return 0;
}

}  // namespace weir::plugins::shm
