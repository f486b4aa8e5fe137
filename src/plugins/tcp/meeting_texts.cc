// SPDX-License-Identifier: Apache-2.0
// What a meeting says: which ways were chosen and why, and who did not come.
#include <sys/socket.h>

#include <algorithm>

#include "net/missing_ranks.h"
#include "plugins/tcp/meeting.h"

namespace weir::plugins::tcp {
namespace {

std::string describe(const Offer& offer) { return net::to_string(offer.address, offer.port); }

}  // namespace

void Meeting::tell_route(uint32_t rank) {
  Peer& peer = peers_[rank];
  const auto is_chosen = [&](size_t i) {
    return std::find(peer.chosen.begin(), peer.chosen.end(), i) != peer.chosen.end();
  };
  std::string chosen, others;
  for (size_t i = 0; i < peer.candidates.size(); ++i) {
    const Candidate& candidate = peer.candidates[i];
    if (is_chosen(i)) {
      chosen +=
          (chosen.empty() ? "" : ", ") + describe(candidate.way.offer) + " (" + candidate.way.why;
      if (peer.chosen.size() > 1) chosen += ")";
    } else if (i < peer.chosen.front() || (candidate.way.is_rail && peer.chosen.size() > 1)) {
      others += "; not " + describe(candidate.way.offer) + ": " +
                (candidate.failure.empty() ? "no answer yet" : candidate.failure);
    }
  }
  peer.route = "rank " + text_of(rank) + " at " + chosen + others;
  if (peer.chosen.size() == 1) peer.route += ")";
  if (peer.rail_count > 1) peer.route += ", " + text_of(peer.rail_count) + " rails";
}

std::string Meeting::way_text(uint32_t rank) const {
  const Peer& peer = peers_[rank];
  if (!peer.route.empty()) return peer.route;
  sockaddr_storage name{};
  socklen_t bytes = sizeof name;
  auto* address = reinterpret_cast<sockaddr*>(&name);
  std::string here = "this rank";
  if (!peer.slots.empty() && getsockname(peer.slots[0].stream.fd(), address, &bytes) == 0) {
    here = net::to_string(net::from_sockaddr(address));
  }
  return "rank " + text_of(rank) + ", which came to " + here + " and chose the way" +
         (peer.rail_count > 1 ? ", " + text_of(peer.rail_count) + " rails" : "");
}

weir_result_t Meeting::refused(uint32_t rank) const {
  std::string text = "tcp: rank " + text_of(rank) + " cannot be joined:";
  for (const Candidate& candidate : peers_[rank].candidates) {
    text += " " + describe(candidate.way.offer) + " " + candidate.failure + ";";
  }
  text += " do all ranks run the same version with the same id?";
  return report_.fail(WEIR_ERROR_REFUSED, text);
}

weir_result_t Meeting::time_out() const {
  net::MissingRanks missing;
  std::string details;
  for (uint32_t rank = 0; rank < identity_.rank_count; ++rank) {
    if (!is_missing(rank) || !missing.add(rank)) continue;
    for (const Candidate& candidate : peers_[rank].candidates) {
      details += "; " + describe(candidate.way.offer) + " of rank " + text_of(rank) + ": " +
                 (candidate.failure.empty() ? "no answer" : candidate.failure);
    }
  }
  return report_.fail(WEIR_ERROR_TIMEOUT,
                      "tcp: " + missing.text(identity_.rank, identity_.rank_count) + details +
                          acceptor_->turned_away().text(identity_.tls != nullptr));
}

}  // namespace weir::plugins::tcp
