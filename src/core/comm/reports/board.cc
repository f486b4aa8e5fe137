// SPDX-License-Identifier: Apache-2.0
#include "core/comm/reports/board.h"

#include <algorithm>
#include <utility>

namespace weir::comm {

namespace {

constexpr uint64_t kBeatNs = 50'000'000;
constexpr uint64_t kBeatNsPerRank = 1'000'000;
// Above so many ranks the interval grows with the square of their number: each beat crosses every
// link, and there are n log n links.
constexpr uint64_t kRanksOfOneBeat = 64;

uint64_t beat_interval_of(uint64_t rank_count) {
  const uint64_t interval_ns = std::max(kBeatNs, kBeatNsPerRank * rank_count);
  return rank_count <= kRanksOfOneBeat ? interval_ns : interval_ns * rank_count / kRanksOfOneBeat;
}

// At most so many may be named by a run before they are sorted.
constexpr size_t kDraftRanks = 256;

}  // namespace

void Board::open(control::Network* network, Rank rank, Rank rank_count) {
  network_ = network;
  rank_ = rank;
  peers_.resize(rank_count);
  versions_.resize(rank_count);
  unreached_.reserve(rank_count);
  notice_.reserve(HealthReport::kBytesMax);
  for (Peer& peer : peers_) peer.report.waited.reserve(HealthReport::kWaitedRanksMax);
  read_.waited.reserve(HealthReport::kWaitedRanksMax);
  draft_.waited.reserve(kDraftRanks + size_t{rank_count} * 2);
  beat_interval_ns_ = beat_interval_of(rank_count);
}

void Board::look(uint64_t now_ns) {
  looked_ns_ = now_ns;
  const uint64_t count = network_->change_count();
  for (const auto& one : unreached_) peers_[one.rank].unreached_ns = 0;
  network_->collect_unreached(&unreached_);
  for (const auto& one : unreached_) peers_[one.rank].unreached_ns = one.since_ns;
  if (count == std::exchange(seen_count_, count)) return;
  for (Rank p = 0; p < rank_count(); ++p) {
    if (p == rank_ || !network_->read(p, &versions_[p], &notice_)) continue;
    Peer& peer = peers_[p];
    const auto* const bytes = reinterpret_cast<const unsigned char*>(notice_.data());
    if (!decode(bytes, notice_.size(), rank_count(), &read_)) continue;
    if (peer.known && peer.report.beat == read_.beat) continue;
    peer.known = true;
    peer.heard_ns = now_ns;
    std::swap(peer.report, read_);
  }
}

void Board::show(uint64_t now_ns) {
  shown_ns_ = now_ns;
  ++draft_.beat;
  unsigned char notice[HealthReport::kBytesMax];
  const size_t bytes = encode(draft_, notice);
  network_->show({reinterpret_cast<const char*>(notice), bytes});
}

}  // namespace weir::comm
