// SPDX-License-Identifier: Apache-2.0
#include "core/comm/board.h"

#include <algorithm>
#include <utility>

#include "weir/plugin.h"

namespace weir::comm {

namespace {

// Of every rank to every other, so that it grows with their number.
constexpr uint64_t kBeatNs = 50'000'000;
constexpr uint64_t kBeatNsPerRank = 1'000'000;
// As many as a run may name before they are sorted.
constexpr size_t kDraftRanks = 256;

}  // namespace

void Board::open(const engine::Context& context) {
  const bool notices = (context.transport->caps.bits & WEIR_CAP_NOTICE) != 0;
  if (context.mapped() || !notices || context.rank_count < 2) return;
  context_ = &context;
  peers_.resize(context.rank_count);
  for (Peer& peer : peers_) peer.standing.waited.reserve(Standing::kWaitedRanksMax);
  read_.waited.reserve(Standing::kWaitedRanksMax);
  draft_.waited.reserve(kDraftRanks + size_t{context.rank_count} * 2);
  beat_interval_ns_ = std::max(kBeatNs, kBeatNsPerRank * context.rank_count);
}

void Board::look(uint64_t now_ns) {
  looked_ns_ = now_ns;
  unsigned char notice[WEIR_TRANSPORT_NOTICE_BYTES_MAX];
  for (Rank p = 0; p < rank_count(); ++p) {
    if (p == context_->rank) continue;
    size_t bytes = 0;
    const weir_result_t result =
        context_->transport->notice_read(context_->instance, p, notice, &bytes);
    if (result > WEIR_IN_PROGRESS) continue;
    Peer& peer = peers_[p];
    if (result == WEIR_OK) {
      peer.unreached_ns = 0;
    } else if (peer.unreached_ns == 0) {
      peer.unreached_ns = now_ns;
    }
    if (bytes == 0) continue;
    if (!decode(notice, bytes, rank_count(), &read_)) continue;
    if (peer.known && peer.standing.beat == read_.beat) continue;
    peer.known = true;
    peer.heard_ns = now_ns;
    std::swap(peer.standing, read_);
  }
}

void Board::show(uint64_t now_ns) {
  shown_ns_ = now_ns;
  ++draft_.beat;
  unsigned char notice[WEIR_TRANSPORT_NOTICE_BYTES_MAX];
  const size_t bytes = encode(draft_, notice);
  // Nothing better can be done with an error here; who cannot be told finds out by its deadline.
  (void)context_->transport->notice_show(context_->instance, notice, bytes);
}

}  // namespace weir::comm
