// SPDX-License-Identifier: Apache-2.0
#include "plugins/message/participant.h"

#include "net/tls.h"

namespace weir::plugins::message {

using common::text_of;

bool read_tls(const common::Report& report, bool* is_on, std::string* reason) {
  net::TlsMode mode = net::TlsMode::kOff;
  const bool known =
      net::tls_mode_of(report.setting("WEIR_TLS"), net::TlsMode::kControl, &mode, reason);
  *is_on = mode != net::TlsMode::kOff;
  return known;
}

weir_result_t Participant::begin(const weir_host_t* host, const char* name,
                                 const weir_transport_config_t& config) {
  report = {host, name};
  rank = config.rank;
  rank_count = config.rank_count;
  control.attach(host, rank, rank_count);
  if (rank_count > 1 && !control.is_there()) {
    return report.fail(WEIR_ERROR_INVALID_USAGE, "the host offers no control network");
  }
  bool is_on = false;
  std::string reason;
  if (read_tls(report, &is_on, &reason)) return WEIR_OK;
  return report.fail(WEIR_ERROR_UNSUPPORTED, reason);
}

weir_result_t Participant::check_peer(const char* call, uint32_t peer, bool allows_self) const {
  if (joined && peer < rank_count && (allows_self || peer != rank)) return WEIR_OK;
  return report.fail(joined ? WEIR_ERROR_INVALID_ARGUMENT : WEIR_ERROR_INVALID_USAGE,
                     std::string(call) + " of rank " + text_of(peer) + " of " +
                         text_of(rank_count) + " by rank " + text_of(rank) +
                         (joined ? "" : ": not connected"));
}

weir_result_t Participant::refuse_lane(uint32_t peer, uint32_t lane, uint32_t lane_count) const {
  if (!joined) return not_connected();
  return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                     "peer " + text_of(peer) + ", lane " + text_of(lane) + ": there are " +
                         text_of(rank_count) + " ranks and " + text_of(lane_count) + " lanes");
}

weir_result_t Participant::too_long(uint64_t bytes) const {
  return report.fail(WEIR_ERROR_INVALID_ARGUMENT,
                     "a message of " + text_of(bytes) + " bytes is above the limit");
}

weir_result_t Participant::is_dead(uint32_t peer) const {
  return report.fail(WEIR_ERROR_PEER_LOST,
                     "rank " + text_of(peer) + " is dead: its connections ended without a goodbye");
}

}  // namespace weir::plugins::message
