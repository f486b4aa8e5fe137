// SPDX-License-Identifier: Apache-2.0
// How a joining rank connects to its parent in the tree: it connects, and both prove that they hold
// the secret (net/handshake.h), before either knows which rank the other is. Functions;
// thread-safe.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/comm/start/bootstrap_node.h"
#include "core/comm/start/bootstrap_place.h"
#include "core/control/link.h"
#include "net/tls.h"

namespace weir::comm {

struct JoiningRank {
  Secret secret{};
  Rank rank = 0;
  Rank rank_count = 0;
  uint64_t deadline_ns = 0;
  // Drawn at random for one join: by it a parent knows a rank that comes again over another path.
  uint32_t instance = 0;
  // How often a listener has not answered the proof.
  uint32_t unanswered_count = 0;
  std::function<void()> meanwhile{};  // JoinOptions::meanwhile; may be empty
};

// Names of Unix sockets: of the first rank of a host, and of a rank that takes redirected children.
// They reveal nothing about the secret, and differ between users, so that jobs of two users that
// happen to have the same launcher's numbers do not meet.
std::string socket_name(const Secret& secret);
std::string socket_name(const Secret& secret, Rank rank);

net::Identity identity_of(const JoiningRank& self);
// With WEIR_TLS=control and all, connections between hosts are inside it from the first byte on.
std::unique_ptr<const net::TlsContext> make_tls(const Secret& secret, std::string* reason);

// A rank that has proven that it holds the secret.
struct Parent {
  std::unique_ptr<control::Link> link = nullptr;  // null: no answer there; try again later
  int64_t process = kElsewhere;
  std::string number{};  // " (rank 3)", as far as it is known; "": it is not
  // Links that have sent their proof and got no answer in time. Their other end may count this rank
  // as its child, and would take their end for its death: they stay open until it has a parent.
  std::vector<std::unique_ptr<control::Link>> unanswered{};
};

// How long a rank waits for an answer over a network that lets it try `address_count` addresses.
uint64_t answer_patience_ns(const JoiningRank& self, size_t address_count);

// `number`: Parent::number.
Result<Parent> connect_locally(const JoiningRank& self, const std::string& name,
                               const std::string& number = "");
// Over the network, at each address of `place` at once. No parent, too, where another job answers:
// several secrets may share a port. `look` counts the calls: it chooses the port, and later looks
// wait longer for an answer. `tls`: null where WEIR_TLS does not ask for it; outlives the link.
Result<Parent> connect_to_place(const JoiningRank& self, const Place& place, uint32_t look,
                                const net::TlsContext* tls);
// Connects to the address at which a child of another parent takes children.
Result<Parent> connect_to(const JoiningRank& self, const ChildAddress& address,
                          const net::TlsContext* tls);

// The error that says why a process of this host did not become the parent.
Status unanswered(const JoiningRank& self, int64_t process, const std::string& number);
Status unreadable(const JoiningRank& self, int64_t process);

// Whether WEIR_TLS asks for TLS between hosts; fails if the settings are wrong.
Result<bool> is_tls_asked();
// Whether a process listens where `secret` and `place` lead; inside TLS where that is asked for.
bool is_answered(const Secret& secret, const Place& place, uint64_t deadline_ns);

// Waits until one of `entries` has an event or the time has come; a signal ends it early. Their
// `revents` are then valid.
Status wait_for_events(std::vector<pollfd>* entries, uint64_t until_ns);
// The same, and does other work meanwhile.
Status wait_for_events(const JoiningRank& self, std::vector<pollfd>* entries, uint64_t until_ns);
// Between two calls of `meanwhile`.
inline constexpr uint64_t kOtherWorkNs = 20'000'000;

}  // namespace weir::comm
