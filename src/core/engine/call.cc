// SPDX-License-Identifier: Apache-2.0
#include "core/engine/call.h"

#include <fmt/format.h>

namespace weir::engine {

namespace {

uint64_t mix(uint64_t h) {  // the finalizer of MurmurHash3
  h ^= h >> 33;
  h *= 0xff51afd7ed558ccdull;
  h ^= h >> 33;
  h *= 0xc4ceb9fe1a85ec53ull;
  h ^= h >> 33;
  return h;
}

bool is_reduction(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

}  // namespace

namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15ull;

uint32_t fold(uint64_t h) {
  const auto folded = static_cast<uint32_t>(h ^ (h >> 32));
  return folded != 0 ? folded : 1;
}

}  // namespace

uint32_t fingerprint(const Call& call, Rank rank_count) {
  if (call.block_counts == nullptr || call.recv_counts != nullptr) {
    return fingerprint(pack_what(call), call.count);
  }
  uint64_t h = mix(pack_what(call) + kOdd * (call.count + 1));
  for (Rank i = 0; i < rank_count; ++i) h = mix(h + kOdd * (call.block_counts[i] + 1));
  return fold(h);
}

uint32_t fingerprint(uint64_t what, uint64_t count) { return fold(mix(what + kOdd * (count + 1))); }

std::string describe(uint64_t what, uint64_t count) {
  const auto collective = static_cast<uint8_t>(what);
  const auto type = static_cast<uint8_t>(what >> 8);
  const auto fold = static_cast<uint8_t>(what >> 16);
  if (collective >= kCollectiveCount || type >= kDataTypeCount || fold >= kFoldCount) {
    return fmt::format("an unreadable call ({:#x})", what);
  }
  const auto purpose = static_cast<Purpose>(what >> 27 & 7);
  if (purpose == Purpose::kWindowCreate) return "window_create()";
  if (purpose == Purpose::kWindowDestroy) return "window_destroy()";
  if (purpose == Purpose::kMemoryAllocate) return "mem_alloc()";
  if (purpose == Purpose::kArenaCreate) return "arena_create()";
  if (purpose == Purpose::kMemoryRegister) return "register_symmetric()";
  if (purpose == Purpose::kDirect) return "an operation on memory of devices";
  if (purpose == Purpose::kSetup) return "an exchange that makes or changes a communicator";
  const auto kind = static_cast<Collective>(collective);
  if (kind == Collective::kBarrier) return "barrier()";
  const bool average = (what >> 24 & 1) != 0;
  const bool scaled = (what >> 25 & 1) != 0;
  const bool uneven = (what >> 26 & 1) != 0;
  const uint32_t leaf_count = leaf_count_of(what);
  const char* variant = uneven ? "_v" : leaf_count > 0 ? "_leaves" : "";
  std::string text =
      fmt::format("{}{}({}", name_of(kind), variant, name_of(static_cast<DataType>(type)));
  if (is_reduction(kind)) {
    text += fmt::format(", {}", average  ? "avg"
                                : scaled ? "premul_sum"
                                         : name_of(static_cast<Fold>(fold)));
  }
  if (kind != Collective::kAllToAll || !uneven) text += fmt::format(", count {}", count);
  if (leaf_count > 0) text += fmt::format(", leaf_count {}", leaf_count);
  if (is_rooted(kind)) text += fmt::format(", root {}", root_of(what));
  return text + ")";
}

std::string describe(const Call& call) { return describe(pack_what(call), call.count); }

}  // namespace weir::engine
