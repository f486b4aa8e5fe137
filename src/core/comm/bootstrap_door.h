// SPDX-License-Identifier: Apache-2.0
// Door: where a rank takes children. It listens, asks whoever knocks for proof of the secret, and
// hands over those who gave it; it does not judge what they claim. Nobody can hold it up: before
// the proof a connection has a bounded time, a fixed number of bytes, and a place in a bounded
// list, in which one gives way when it is full (net/give_way.h; an honest rank knocks again). From
// the network it lets in who begins with TLS and who does not, so that ranks which disagree about
// that can be told; the arrival's channel tells which it is. One thread at a time per object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/comm/bootstrap_channel.h"
#include "core/comm/bootstrap_place.h"
#include "core/comm/bootstrap_wire.h"
#include "net/give_way.h"
#include "net/tls.h"

namespace weir::comm {

// Names of abstract sockets: of the first rank of a host, and of rank `rank` when it takes children
// that others sent on. They tell nothing about the secret, and differ between users, so that two of
// them who happen to share a launcher's numbers do not meet.
std::string door_name(const Secret& secret);
std::string child_door_name(const Secret& secret, Rank rank);

struct DoorLimits {
  uint64_t unproven_ns = 2'000'000'000;  // from accept to proof
  size_t unproven_count = 128;           // connections without proof at a time
};

// A rank that holds the secret. Its welcome is already queued in the channel; whether it is admitted
// or sent on is the caller's to say.
struct Arrival {
  Channel channel;
  wire::Claim claim;
  int64_t pid = 0;
};

class Door {
 public:
  // Listens under `name` for the host `rank`. Null when somebody else does.
  static Result<std::unique_ptr<Door>> open(const Secret& secret, const std::string& name,
                                            Rank rank, Rank rank_count, const DoorLimits& limits);
  // Listens also at the addresses of `place`, at the ports that are derived from the secret or
  // given. Ranks of this host are let in whether this succeeds or not; the others name, in their
  // error, where they looked.
  void listen_at_place(const Place& place);
  // The same at any port, which is returned; 0 when none can be had.
  uint16_t listen_at_any_port(const Place& place);

  // The poll entries of the listeners and of the connections without proof.
  void append_poll_entries(std::vector<pollfd>* entries) const;
  size_t poll_entry_count() const { return 1 + network_listeners_.size() + knocks_.size(); }
  // When the next of them runs out of time.
  uint64_t next_expiry_ns() const;
  // Serves the events of the entries that append_poll_entries gave, which start at `first`. Only
  // what makes the door unusable is an error.
  Status serve(const pollfd* first, std::vector<Arrival>* arrivals);

  // "" or a sentence on who was turned away, for the error that tells of missing ranks.
  std::string turned_away() const;

 private:
  struct Knock {
    Channel channel;
    wire::Claim claim;
    int64_t pid = 0;  // kElsewherePid: it came over the network
    uint64_t accepted_ns = 0;
    bool begun = false;  // it is known whether the connection is inside TLS
    bool challenged = false;
    bool done = false;  // handed over or turned away
  };

  Door(const Secret& secret, Rank rank, Rank rank_count, const DoorLimits& limits)
      : secret_(secret), rank_(rank), rank_count_(rank_count), limits_(limits) {}

  int backlog() const;
  net::GivesWay who_gives_way() const;
  bool drop_silent();
  Status accept_all(const Fd& listener, std::vector<Arrival>* arrivals);
  Status admit(Fd connection, bool from_network, std::vector<Arrival>* arrivals);
  void begin(Knock* knock);
  void serve_knock(Knock* knock, std::vector<Arrival>* arrivals);
  void turn_away(Knock* knock, wire::TurnedAway reason);
  void check_proof(Knock* knock, std::vector<Arrival>* arrivals);

  Secret secret_;
  std::shared_ptr<const net::TlsContext> tls_;  // made when somebody begins with TLS
  Rank rank_;
  Rank rank_count_;
  DoorLimits limits_;
  Fd listener_;
  std::vector<Fd> network_listeners_;
  bool listening_ = true;      // false while no descriptor is free
  std::vector<Knock> knocks_;  // oldest first

  struct {
    uint32_t user = 0, version = 0, proof = 0, malformed = 0, silent = 0;
    uint32_t last_uid = 0, last_version = 0;
    int64_t last_pid = 0;
  } turned_away_;
};

}  // namespace weir::comm
