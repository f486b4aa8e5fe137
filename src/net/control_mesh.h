// SPDX-License-Identifier: Apache-2.0
// ControlMesh: one proven TCP connection between each pair of ranks of a communicator, for
// transports whose data goes another way. It carries no data but what a transport needs before it
// can begin and cannot learn by itself: over it each rank shows that it holds the job's secret
// before anything of it is believed, tells its card (its address in the transport's own network, of
// any form, up to 64 KiB), and says goodbye at its end; so the end of a connection without one is a
// death, seen at once. In between each rank may show a notice, which reaches all others past whatever
// the transport's own network carries, and tell a peer words, each of which is heard once and in order.
//
// Every rank listens at the addresses of its interfaces, never at a wildcard, while the mesh forms,
// and connects to all ranks below its own. A peer's addresses are tried in the order in which they
// are likely to be good (loopback where all ranks share a host, then a common subnet, then speed),
// each a little later than the one before; the first at which it answers in this protocol wins. With
// TLS (tls.h) all of a connection is inside it, the proofs, too; it is the same on all ranks.
// Nobody can hold the forming up: before its proof a connection has a bounded time, a fixed number
// of bytes, and a place in a bounded list whose oldest gives way. One thread at a time per object.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "net/give_way.h"
#include "net/mesh_link.h"
#include "net/mesh_wire.h"
#include "net/stream.h"
#include "net/tls.h"
#include "net/turned_away.h"

namespace weir::net {

struct MeshConfig {
  std::string purpose;  // "ucx": proofs of one purpose are of no use for another
  uint64_t comm_id = 0;
  uint32_t rank = 0;
  uint32_t rank_count = 1;
  const void* secret = nullptr;
  size_t secret_bytes = 0;
  uint64_t unproven_ns = 2'000'000'000;  // from accept to proof
  size_t unproven_count = 256;           // connections without proof at a time
  TlsMode tls = TlsMode::kOff;
  // Asked by `join`, in its thread, every few milliseconds: true ends it, as its deadline does. May
  // be empty.
  std::function<bool()> stop{};
};

class ControlMesh {
 public:
  enum class Outcome { kOk, kTimeout, kRefused, kUnsupported, kSystem, kBadAddress };
  enum class Life { kHere, kLeft, kLost };

  explicit ControlMesh(const MeshConfig& config);
  // Ends all connections; without `leave` the peers take it for a death. In a forked child it only
  // closes its copies.
  ~ControlMesh();
  ControlMesh(const ControlMesh&) = delete;
  ControlMesh& operator=(const ControlMesh&) = delete;

  // Listens at the address of every interface that the filter allows.
  Outcome listen(const InterfaceFilter& filter);
  // After listen; at most mesh::kAddressBytesMax bytes.
  size_t address(unsigned char* out) const;
  const mesh::Address& own_address() const { return own_; }

  // addresses[i] is what rank i's `address` wrote. Blocks until every peer's card has come, or the
  // deadline (CLOCK_MONOTONIC) has passed; ends the listening in either case. `card` has at most
  // mesh::kCardBytesMax bytes.
  Outcome join(const unsigned char* const* addresses, const size_t* address_bytes,
               const mesh::Bytes& card, uint64_t deadline_ns);
  // Why the latest call of listen or join was not kOk: who, what, and what to do.
  const std::string& text() const { return text_; }

  // After join, of a rank other than our own.
  const mesh::Bytes& card(uint32_t peer) const { return peers_[peer].link->card(); }
  // A key that only this rank and the peer know, different in both directions: what the peer calls
  // its inbound key is our outbound key.
  const Mac& outbound_key(uint32_t peer) const { return peers_[peer].link->own_key(); }
  const Mac& inbound_key(uint32_t peer) const { return peers_[peer].link->peer_key(); }
  // Our end of the connection to the peer; after join.
  IpAddress local_address(uint32_t peer) const;
  // To wait with poll for what the peer says. After join.
  int descriptor(uint32_t peer) const { return peers_[peer].stream.fd(); }
  // Both ranks run on one kernel and in one network namespace.
  bool shares_host(uint32_t peer) const { return peers_[peer].shares_host; }
  // "rank 0 at 10.0.0.1:4000 (over eth0: same subnet)"; "" of a peer that connected to us.
  const std::string& route(uint32_t peer) const { return peers_[peer].route; }
  // The same for people, of any peer: "rank 3, which came to 10.0.0.2 and chose the way". After join.
  std::string describe(uint32_t peer) const;

  // Asks the kernel, once, whether the peer is still there. Does not wait.
  Life look(uint32_t peer);
  // What the peer said with its goodbye; empty before.
  const mesh::Bytes& farewell(uint32_t peer) const { return peers_[peer].link->farewell(); }
  // What this rank shows to all others from now on: at most mesh::kNoticeBytesMax bytes. Never waits,
  // allocates nothing: what cannot leave for a peer leaves in later calls of these two functions, as
  // what is shown by then. After join.
  void show(const unsigned char* notice, size_t bytes);
  // Looks at the peer, and gives the latest notice that has come from it; empty before the first, and
  // kept beyond its end. `arrived`: what this rank shows has come to the peer's host, or never will.
  const mesh::Bytes& read_notice(uint32_t peer, bool* arrived);
  // What this rank shows.
  const mesh::Bytes& own_notice() const { return notice_; }
  // Tells a peer a word of at most mesh::kWordBytesMax bytes, behind those before it. Never waits: what
  // cannot leave leaves in later calls of `has_left` or `hear`. A peer holds mesh::kWordCountMax that it
  // has not heard. After join.
  void tell(uint32_t peer, const unsigned char* word, size_t bytes);
  // Whether all that the peer was told has left for it, or never will.
  bool has_left(uint32_t peer);
  // Looks at the peer and takes the oldest word of it that was not heard; false: there is none.
  bool hear(uint32_t peer, mesh::Bytes* word);
  // Says goodbye to one peer, behind the latest notice, with a farewell of at most mesh::kFarewellBytesMax bytes.
  void leave(uint32_t peer, const mesh::Bytes& farewell);

 private:
  struct Listener {
    int fd = -1;
    Interface interface;
  };
  // An address of a peer that this rank may connect to.
  struct Candidate {
    mesh::Offer offer;
    IpAddress source;
    std::string why;      // it is where it is in the order
    std::string failure;  // of the latest attempt
    bool refused = false;
    bool under_way = false;
    uint32_t attempt_count = 0;
    uint64_t retry_ns = 0;
  };
  struct Peer {
    std::vector<Candidate> candidates;  // the likely ones first; empty: the peer comes to us
    int proving = -1;                   // the candidate whose connection was challenged
    Stream stream;
    std::unique_ptr<mesh::MeshLink> link;  // from the proof on
    Life life = Life::kHere;
    bool deaf = false;  // nothing can be sent any more
    uint32_t sent_version = 0;
    uint32_t arrived_version = 0;
    bool shares_host = false;
    std::string route;
  };
  // One that is not settled yet, made by us (a guest's end) or by somebody else.
  struct Connection {
    Stream stream;
    bool is_guest;
    bool connecting;
    uint32_t peer;  // of a guest's end
    size_t candidate;
    IpAddress from;        // of a host's end
    uint64_t accepted_ns;  // of a host's end
    uint64_t expiry_ns;
    std::unique_ptr<mesh::MeshLink> link;
  };

  Outcome fail(Outcome outcome, std::string text);
  // False: no memory.
  bool secure(Stream* stream, Stream::Role role) const;
  Outcome find_candidates(const std::vector<mesh::Address>& addresses);
  Outcome form(uint64_t deadline_ns);
  Outcome start_attempts(uint64_t now);
  bool start_attempt(uint32_t rank, size_t index, uint64_t now);
  void wait_for_events(uint64_t now, uint64_t deadline_ns);
  uint64_t next_event_ns(uint64_t now, uint64_t deadline_ns) const;
  // Of those without proof. `room_ns` tells when a newcomer may be accepted.
  GivesWay who_gives_way(uint64_t now_ns) const;
  bool drop_silent();
  void accept_all(int listener, uint64_t deadline_ns);
  void serve(Connection* connection, uint64_t deadline_ns);
  // Sends and receives what can be without waiting; false: the connection has ended.
  static bool exchange(Connection* connection, int* error_number);
  void end_connection(Connection* connection, int error_number);
  void settle(Connection* connection);
  Outcome time_out();
  // Sends what is said already; false: not all of it could leave.
  static bool push(Peer* peer);
  bool send_notice(Peer* peer) const;  // false: it waits
  void send_notices();
  bool is_stopped(uint64_t now);
  void stop_listening();

  MeshConfig config_;
  mesh::Identity identity_;
  std::unique_ptr<const TlsContext> tls_;  // before all streams
  std::string tls_reason_;                 // why there is none
  mesh::Address own_;
  pid_t owner_;
  std::string text_;
  std::vector<Listener> listeners_;
  uint64_t next_ask_ns_ = 0;  // whether to stop
  bool accepting_ = true;     // false while no descriptor is free
  mesh::Bytes card_;
  std::vector<Peer> peers_;
  std::vector<Connection> connections_;  // oldest first
  std::vector<pollfd> entries_;
  uint32_t open_count_ = 0;  // peers that are missing
  mesh::Bytes notice_;
  uint32_t notice_version_ = 0;  // 0: none was shown
  bool notice_waits_ = false;    // for some peer
  TurnedAway turned_away_;
};

}  // namespace weir::net
