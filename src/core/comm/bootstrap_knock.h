// SPDX-License-Identifier: Apache-2.0
// Knocking: how a rank comes to its parent in the tree. It connects, both sides prove that they
// hold the secret, and it is admitted or sent on. Functions; thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/comm/bootstrap_channel.h"
#include "core/comm/bootstrap_place.h"
#include "core/comm/bootstrap_wire.h"

namespace weir::comm {

struct Guest {
  Secret secret;
  Rank rank = 0;
  Rank rank_count = 0;
  uint64_t deadline_ns = 0;
  std::shared_ptr<const net::TlsContext> tls = nullptr;  // of `secret`; null: not asked for
};

// Who let us in, or, when `redirect` is set, to whom we were sent.
struct Entry {
  Channel channel;
  Rank host_rank = 0;
  int64_t host_pid = 0;
  std::optional<wire::DoorAddress> redirect;
};
using Knock = Result<std::optional<Entry>>;

// Knocks once at a door of this host. Nothing when nobody listens, or who listens hung up before it
// proved itself: knock again later.
Knock knock(const Guest& guest, const std::string& door_name);
// The same over the network, at each address of `place`. Nothing also when who listens there is
// somebody else: several secrets may share a port. `look` counts the calls: it chooses the port, and
// later looks wait longer for an answer.
Knock knock_at(const Guest& guest, const Place& place, uint32_t look);
// At the door to which an entry was sent.
Knock knock_at_door(const Guest& guest, const wire::DoorAddress& address);

// Whether somebody listens where `secret` and `place` lead; inside TLS where WEIR_TLS asks for it.
bool is_answered(const Secret& secret, const Place& place, uint64_t deadline_ns);

}  // namespace weir::comm
