// SPDX-License-Identifier: Apache-2.0
// Properties of memory that all ranks map: the segment and windows.
#include <string.h>

#include <algorithm>
#include <atomic>

#include "conformance/harness.h"

namespace weir::conformance {
namespace {

bool all_zero(const unsigned char* data, uint64_t bytes) {
  return std::all_of(data, data + bytes, [](unsigned char c) { return c == 0; });
}

std::vector<unsigned char> pattern(uint32_t rank, uint64_t bytes) {
  std::vector<unsigned char> data(bytes);
  for (uint64_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<unsigned char>(rank * 37 + i * 11 + i / 4096 + 1);
  }
  return data;
}

// Zero at the start; what a rank stores before the barrier, all ranks load after it.
void check_memory(Rank& r, const weir_segment_t& s, uint64_t wanted_bytes) {
  r.require(
      s.base != nullptr && s.bytes_per_rank >= wanted_bytes && s.stride_bytes >= s.bytes_per_rank,
      "the memory is smaller than was asked for");
  r.require(reinterpret_cast<uintptr_t>(s.base) % 64 == 0 && s.stride_bytes % 64 == 0,
            "the memory is not aligned to cache lines");
  unsigned char* mine = s.base + r.rank() * s.stride_bytes;
  r.require(all_zero(mine, wanted_bytes), "the memory is not zero at the start");
  r.barrier();
  memcpy(mine, pattern(r.rank(), wanted_bytes).data(), wanted_bytes);
  r.barrier();
  for (uint32_t rank = 0; rank < r.count(); ++rank) {
    r.require(memcmp(s.base + rank * s.stride_bytes, pattern(rank, wanted_bytes).data(),
                     wanted_bytes) == 0,
              "what rank " + std::to_string(rank) + " stored is not seen");
  }
  r.barrier();
}

// A counter in the memory is one counter for all.
void check_atomics(Rank& r, const weir_segment_t& s) {
  auto* counter = reinterpret_cast<std::atomic<uint64_t>*>(s.base);
  if (r.rank() == 0) counter->store(0);
  r.barrier();
  for (int i = 0; i < 1000; ++i) counter->fetch_add(1);
  r.barrier();
  r.require(counter->load() == 1000u * r.count(), "atomic additions were lost");
  r.barrier();
}

void segment(const Variant& variant) {
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{100'000}, (uint64_t{2} << 20) + 1}) {
    run_ranks(variant, variant.rank_count(4), [bytes](Rank& r) {
      r.config.segment_bytes = bytes;
      r.join();
      weir_segment_t s{};
      r.require_ok(r.f().segment(r.instance(), &s), "segment");
      check_memory(r, s, bytes);
      check_atomics(r, s);
    });
  }
}

void window(const Variant& variant) {
  run_ranks(variant, variant.rank_count(3), [](Rank& r) {
    r.join();
    weir_segment_t open_windows[4] = {};
    const uint64_t sizes[4] = {1, 4096, 70'001, (uint64_t{3} << 20) + 5};
    for (uint32_t i = 0; i < 4; ++i) {
      unsigned char key[16] = {static_cast<unsigned char>(i + 1), 9};
      r.require_ok(r.f().window_open(r.instance(), key, sizes[i], monotonic_ns() + 20'000'000'000,
                                     &open_windows[i]),
                   "window_open");
      check_memory(r, open_windows[i], sizes[i]);
    }
    // All of them at once, and none lies in another.
    for (uint32_t i = 0; i < 4; ++i) {
      memset(open_windows[i].base + r.rank() * open_windows[i].stride_bytes,
             static_cast<int>(i + 1), sizes[i]);
    }
    r.barrier();
    for (uint32_t i = 0; i < 4; ++i) {
      const unsigned char* other =
          open_windows[i].base + (r.rank() + 1) % r.count() * open_windows[i].stride_bytes;
      r.require(other[0] == i + 1 && other[sizes[i] - 1] == i + 1, "windows lie in each other");
    }
    r.barrier();
    for (const uint32_t i : {2u, 0u, 3u}) r.f().window_close(r.instance(), &open_windows[i]);
    check_atomics(r, open_windows[1]);  // the last one is left to close
  });
}

void window_with_a_missing_rank(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    r.join();
    if (r.rank() != 2) {
      unsigned char key[16] = {5};
      weir_segment_t w{};
      const uint64_t start = monotonic_ns();
      const weir_result_t result =
          r.f().window_open(r.instance(), key, 4096, start + 300'000'000, &w);
      r.require_error(result, {WEIR_ERROR_TIMEOUT}, {"2"});
      r.require(monotonic_ns() - start < 1'000'000'000, "window_open went past its deadline");
    }
    r.barrier();
  });
}

void different_window_sizes(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    unsigned char key[16] = {6};
    weir_segment_t w{};
    const weir_result_t result = r.f().window_open(
        r.instance(), key, r.rank() == 0 ? 4096 : 1 << 20, monotonic_ns() + 5'000'000'000, &w);
    r.require_error(result, {WEIR_ERROR_MISMATCH, WEIR_ERROR_INVALID_ARGUMENT});
    r.barrier();
  });
}

}  // namespace

const std::vector<Property>& memory_properties() {
  static const std::vector<Property> properties = {
      {"StoresToTheSegmentAreSeenByAll", WEIR_CAP_SEGMENT, 1, segment},
      {"StoresToWindowsAreSeenByAll", WEIR_CAP_WINDOW, 1, window},
      {"AWindowWithAMissingRankNamesIt", WEIR_CAP_WINDOW, 3, window_with_a_missing_rank},
      {"WindowsOfDifferentSizesAreRefused", WEIR_CAP_WINDOW, 2, different_window_sizes},
  };
  return properties;
}

}  // namespace weir::conformance
