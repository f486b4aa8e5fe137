// SPDX-License-Identifier: Apache-2.0
// What a meeting says: which ways were chosen and why, and who did not come.
#include <sys/socket.h>

#include <algorithm>

#include "plugins/tcp/meeting.h"

namespace weir::plugins::tcp {
namespace {

std::string text_of(uint64_t number) { return std::to_string(number); }

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
  std::string ranks;
  std::string details;
  uint32_t count = 0;
  for (uint32_t rank = 0; rank < identity_.rank_count; ++rank) {
    const Peer& peer = peers_[rank];
    if (!is_missing(rank)) continue;
    if (++count > 16) continue;
    ranks += (count > 1 ? ", " : "") + text_of(rank);
    for (const Candidate& candidate : peer.candidates) {
      details += "; " + describe(candidate.way.offer) + " of rank " + text_of(rank) + ": " +
                 (candidate.failure.empty() ? "no answer" : candidate.failure);
    }
  }
  if (count > 16) ranks += " and " + text_of(count - 16) + " more";
  std::string text = std::string("tcp: timed out: ") + (count == 1 ? "rank " : "ranks ") + ranks +
                     " of " + text_of(identity_.rank_count) + (count == 1 ? " is" : " are") +
                     " not connected to rank " + text_of(identity_.rank) + details;
  const uint32_t turned_away = turned_away_.proof + turned_away_.version + turned_away_.malformed +
                               turned_away_.no_tls + turned_away_.silent;
  if (turned_away > 0) {
    text += "; connections turned away meanwhile: " + text_of(turned_away_.proof) +
            " without the secret, " + text_of(turned_away_.version) + " of another version, " +
            text_of(turned_away_.malformed) + " of another protocol, " +
            (identity_.tls == nullptr ? "" : text_of(turned_away_.no_tls) + " without TLS, ") +
            text_of(turned_away_.silent) + " silent (last: " + net::to_string(turned_away_.last) +
            ")";
  }
  return report_.fail(WEIR_ERROR_TIMEOUT, text);
}

}  // namespace weir::plugins::tcp
