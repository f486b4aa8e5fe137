// SPDX-License-Identifier: Apache-2.0
// The memory that a rank sends from and receives into: two arenas cut into slots. By default there
// are so many slots that using them in turn visits more memory than the last-level cache holds,
// over all local ranks; so no message is in a cache because the previous iteration left it there.
// One rank each; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <weir/weir.h>

#include "perf/harness/operation.h"
#include "perf/harness/options.h"

namespace weir::perf {

// Every slot ends with this many bytes that must never be written.
inline constexpr size_t kGuardBytes = 64;
inline constexpr uint8_t kGuardByte = 0xc5;
inline constexpr uint8_t kPoisonByte = 0xa5;

// How one sweep point uses the arenas; the same on every rank, so that symmetric memory stays
// symmetric.
struct SlotPlan {
  size_t slot_count = 1;
  size_t send_stride = 0;
  size_t recv_stride = 0;
};

struct SlotLimits {
  size_t cache_bytes = 0;
  int local_rank_count = 1;
  bool fixed = false;
  int slot_count_min = 1;  // operations in flight, or in one group
  size_t unaligned_bytes = 0;
};

// `send_bytes` and `recv_bytes`: the largest over ranks, in place included.
SlotPlan plan_slots(size_t send_bytes, size_t recv_bytes, const SlotLimits& limits);

class Buffers {
 public:
  Buffers() = default;
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Collective unless ordinary. The caller's thread touches the pages. Returns an
  // empty text, or the error.
  std::string allocate(weir_comm_t comm, size_t send_bytes, size_t recv_bytes,
                       Registration registration);
  // Collective; before the communicator is destroyed.
  std::string release();

  uint8_t* send() const { return send_; }
  uint8_t* recv() const { return recv_; }

 private:
  std::string allocate_in_arena(size_t send_bytes, size_t recv_bytes);
  std::string release_arena();

  weir_comm_t comm_ = nullptr;
  Registration registration_ = Registration::kNone;
  uint8_t* send_ = nullptr;
  uint8_t* recv_ = nullptr;
  weir_window_t send_window_ = nullptr;
  weir_window_t recv_window_ = nullptr;
  weir_arena_t arena_ = nullptr;
  void* pad_ = nullptr;  // before the buffers in the arena
};

// "weir_register: WEIR_ERROR_TIMEOUT: rank 2 …".
std::string error_text(const char* call, weir_result_t result, weir_comm_t comm);

}  // namespace weir::perf
