// SPDX-License-Identifier: Apache-2.0
// Rendezvous: how the ranks of one communicator come to map the same memory. Rank 0 listens on an
// abstract SOCK_SEQPACKET socket with a random name, makes a memfd and hands its descriptor to
// every other rank:
//
//   rank i                         rank 0
//   Hello (who, token, key)   ->
//                                  waits until all ranks said hello
//                             <-   Reply kWelcome (token, members, descriptor)
//   Ready (mapped, or why not) ->
//                                  waits until all ranks are ready
//                             <-   Reply kVerdict (OK for all, or one error for all)
//
// Before anything is parsed each side asks the kernel for the other's user id; then the token (the
// communicator's secret) is compared in constant time. A guest that is silent, wrong or gone costs
// rank 0 one poll entry, never time. Every wait ends at the deadline, and rank 0 tells those who
// came who did not.
//
// One thread at a time per Party.
#pragma once

#include <stdint.h>

#include <vector>

#include "plugins/shm/memory.h"
#include "plugins/shm/report.h"

namespace weir::plugins::shm {

inline constexpr uint32_t kTokenBytesMax = 64;
inline constexpr uint32_t kNameBytes = 16;
inline constexpr uint32_t kKeyBytes = 16;

// A process that carries a rank. `pid` means something only in the process-id namespace
// `pid_namespace` (0: unknown).
struct Member {
  int64_t pid = 0;
  uint64_t pid_namespace = 0;
};

Member this_process();

// What all calls of one instance have in common.
struct Party {
  Report report;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
  uint64_t comm_id = 0;
  unsigned char token[kTokenBytesMax] = {};
  uint32_t token_bytes = 0;
  unsigned char name[kNameBytes] = {};  // of rank 0's socket
  int listener = -1;                    // rank 0 only
};

// Rank 0: makes `name` and `listener`.
weir_result_t start_listening(Party* party);

// Zeroed memory that all ranks map; `huge_bytes` of it from the start are worth huge pages. With
// `part_bytes`, each rank asks at once for the huge pages of the part at rank * part_bytes, so that
// they lie near it.
struct Wanted {
  uint64_t bytes = 0;
  uint64_t huge_bytes = 0;
  uint64_t part_bytes = 0;
};

// Collective. `key` names the call and is the same on all ranks. `members` (may be null) gets one
// entry per rank.
weir_result_t share_memory(const Party& party, const unsigned char* key, const Wanted& wanted,
                           uint64_t deadline_ns, Mapping* mapping, std::vector<Member>* members);

}  // namespace weir::plugins::shm
