// SPDX-License-Identifier: Apache-2.0
#include "core/comm/state/records.h"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/clock.h"

namespace weir::comm {

void Records::open(uint64_t comm_id, const std::vector<Introduction>& all,
                   const ClockReading& earlier, const StartTimes& start,
                   const std::string& folder) {
  RecorderIdentity identity;
  // Addresses differ from run to run, and every rank knows all of them.
  std::string addresses(reinterpret_cast<const char*>(&comm_id), sizeof comm_id);
  for (const Introduction& it : all) addresses += it.network + it.address;
  identity.comm_id = comm_id;
  identity.instance = XXH3_64bits(addresses.data(), addresses.size());
  identity.rank = state_.rank();
  identity.rank_count = state_.rank_count();
  identity.name = state_.name;
  identity.transport = state_.context.transport->name;
  identity.earlier = earlier;
  identity.start = start;
  constexpr size_t kGrowth = 64;
  for (Rank p = 0; p < state_.rank_count(); ++p) {
    if (p == state_.rank()) continue;
    const std::string way = way_to(p);
    identity.ways.push_back({p, way, way.size() + kGrowth});
  }
  state_.recorder.open(identity, folder);
}

std::string Records::way_to(Rank peer) const {
  const weir_transport_functions_t& transport = *state_.context.transport;
  constexpr size_t kEnd = offsetof(weir_transport_functions_t, describe_peer) + sizeof(void*);
  if (transport.struct_bytes < kEnd || transport.describe_peer == nullptr) return std::string();
  char text[kWayTextBytesMax + 1] = {};
  transport.describe_peer(state_.context.instance, peer, text, sizeof text);
  return std::string(text, strnlen(text, sizeof text - 1));
}

void Records::look_at_ways(uint64_t now_ns) {
  constexpr uint64_t kIntervalNs = 500'000'000;
  if (now_ns - looked_ns_ < kIntervalNs) return;
  looked_ns_ = now_ns;
  // A search for each; many ranks take turns.
  constexpr Rank kRanksMax = 16;
  for (Rank i = 0; i < std::min(kRanksMax, state_.rank_count()); ++i) {
    const Rank p = next_way_++ % state_.rank_count();
    if (p != state_.rank()) state_.recorder.way_changed(p, way_to(p));
  }
}

uint64_t Records::one_sided_begun(RecordKind kind, Rank peer, uint64_t units) {
  return state_.recorder.on() ? state_.recorder.message_begun(kind, peer, units) : 0;
}

void Records::one_sided_waits(uint64_t number, RecordKind kind, uint64_t units, uint64_t since_ns,
                              std::span<const Rank> awaited) {
  if (owner_ != nullptr) return owner_->one_sided_waits(number, kind, units, since_ns, awaited);
  if (number == 0) return;
  const uint64_t now = now_ns();
  // The holder of the lock may poll for long, and this is called again.
  if (now - since_ns < Recorder::kLongWaitNs || !state_.lock.try_lock()) return;
  const std::lock_guard lock(state_.lock, std::adopt_lock);
  if (!state_.recorder.on() || !state_.recorder.looked(since_ns, now)) return;
  Wait wait;
  wait.kind = kind;
  wait.sequence = number;
  wait.count = units;
  wait.since_ns = since_ns;
  wait.awaited = awaited;
  state_.recorder.waits(wait, now);
}

void Records::one_sided_done(uint64_t number) {
  if (owner_ != nullptr) return owner_->one_sided_done(number);
  if (number == 0 || !state_.recorder.on()) return;
  state_.recorder.message_finished(number);
  if (!state_.recorder.waits_of(number)) return;
  const std::lock_guard lock(state_.lock);
  state_.recorder.wait_ended();
}

}  // namespace weir::comm
