// SPDX-License-Identifier: Apache-2.0
// Plan: the faults that WEIR_FAULT requests, as a comma-separated list of key=number.
// docs/faults.md describes the same list for users.
//
//   delay_us=N      each operation is held back for up to N microseconds, drawn from the seed
//   drop_at=K       the K-th send is never made and never completes; what follows on its channel
//                   waits
//   duplicate_at=K  the K-th send is made twice
//   reorder_at=K    the K-th send is made behind the next one to the same peer and lane, or after
//                   kReorderMs if there is none
//   corrupt_at=K    the K-th receive (of at least a byte) arrives with one bit flipped
//   error_at=K      the K-th operation fails with WEIR_ERROR_SYSTEM
//   fail_from=K     from the K-th operation on all fail so, those under way included
//   still_from=K    from the K-th operation on none completes any more
//   connect_fails=1 connect fails with WEIR_ERROR_TIMEOUT, when all ranks have met
//   kill_at=K       the process is killed (SIGKILL) when it posts its K-th operation
//   stop_at=K       the process is stopped (SIGSTOP) there
//   rank=R          all of this happens on rank R only; without it on every rank
//   peer=P          fail_from and still_from are about operations with rank P only
//   seed=S          of delays and of the bit that is flipped; 1 without it
//
// K counts from 1, per rank and communicator. Values.
#pragma once

#include <stdint.h>

#include <string>
#include <string_view>

namespace weir::plugins::hook_fault {

inline constexpr uint64_t kEveryRank = UINT64_MAX;
inline constexpr uint64_t kReorderMs = 10;

struct Plan {
  uint64_t delay_us = 0;
  uint64_t drop_at = 0;  // 0: never, here and below
  uint64_t duplicate_at = 0;
  uint64_t corrupt_at = 0;
  uint64_t error_at = 0;
  uint64_t reorder_at = 0;
  uint64_t fail_from = 0;
  uint64_t still_from = 0;
  uint64_t connect_fails = 0;
  uint64_t kill_at = 0;
  uint64_t stop_at = 0;
  uint64_t rank = kEveryRank;
  uint64_t peer = kEveryRank;
  uint64_t seed = 1;
};

// Returns "", or what is wrong with the text, naming the key. Empty text is a plan without faults.
std::string parse_plan(std::string_view text, Plan* plan);

// A number that depends on all three and on nothing else.
uint64_t mix(uint64_t seed, uint64_t a, uint64_t b);

}  // namespace weir::plugins::hook_fault
