// SPDX-License-Identifier: Apache-2.0
// Meeting: how the ranks of a communicator come to hold one TCP connection per pair of ranks, on which
// both ends have proven that they hold the secret (handshake.h). libfabric knows no trust, and its
// reliable datagram endpoints report no deaths; over these connections the ranks tell each other the
// names of their endpoints, and by their end they know that a peer has ended.
//
// Every rank listens at the addresses of its interfaces, never at a wildcard, and connects to all
// ranks below its own. Which of a peer's addresses is used is found by connecting: loopback where
// all ranks share a host, then addresses of a common subnet, the fastest first, then others, each a
// little later than the one before; the first at which the peer answers in this protocol wins.
//
// Nobody can hold a meeting up: before its proof a connection has a bounded time, fixed frames and a
// place in a bounded list whose oldest gives way (an honest rank comes again). One thread at a time
// per object.
#pragma once

#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "net/interfaces.h"
#include "plugins/ofi/handshake.h"

namespace weir::plugins::ofi {

// Where a rank listens. Its bytes (integers little-endian):
//
//   offset  bytes  field
//        0     24  identity of the host; zero when unknown
//       24      1  number of offers, 1 to kOffersMax
//       25     25  for each offer:
//                    0   1  family: 4 or 6
//                    1   1  flags: 1 loopback, 2 asked for by name
//                    2   2  port
//                    4   4  speed of the interface, Mbit/s; 0 when unknown
//                    8   1  bits of the subnet's prefix
//                    9  16  address, network order
struct Offer {
  net::IpAddress address;
  uint16_t port = 0;
  uint32_t speed_mbits = 0;
  uint32_t prefix_bits = 0;
  bool is_loopback = false;
  bool is_asked_for = false;
};

inline constexpr size_t kOffersMax = 5;
inline constexpr size_t kPlaceBytesMax = 25 + kOffersMax * 25;

struct Place {
  net::HostIdentity host;
  std::vector<Offer> offers;
};

// Writes at most kPlaceBytesMax bytes and returns how many.
size_t encode(const Place& address, unsigned char* out);
// Takes what it needs from the front; 0: these bytes are not the address of a listener.
size_t decode(const unsigned char* bytes, size_t byte_count, Place* address);

enum class MeetingResult : uint8_t {
  kMet,
  kTimeout,      // the text names the missing ranks
  kRefused,      // a rank refuses ours: another secret, group, rank count or version
  kUnreachable,  // no interface, or a peer offers none that leads to it
  kInvalid,      // the choice of interfaces does not parse
  kSystem,
};

struct MeetingLimits {
  uint64_t unproven_ns = 2'000'000'000;  // from accept to proof
  size_t unproven_count = 256;           // connections without proof at a time
};

class Meeting {
 public:
  explicit Meeting(const Identity& identity, const MeetingLimits& limits = {})
      : identity_(identity), limits_(limits) {}
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Listens at the address of every interface that the two settings (null: not set) allow.
  MeetingResult listen(const char* weir_ifname, const char* nccl_socket_ifname);
  const Place& own_address() const { return own_; }

  // Blocks until every peer is connected or the deadline (CLOCK_MONOTONIC) has passed. `peers` is by
  // rank. Ends the listening in either case. kTimeout, kRefused, kUnreachable, kSystem: text().
  MeetingResult meet(const std::vector<Place>& peers, uint64_t deadline_ns);
  const std::string& text() const { return text_; }

  // After meet: the connection to a peer (nonblocking); the caller's from then on.
  int take(uint32_t peer);
  // "rank 0 at 10.0.0.1:4000 (over eth0: same subnet)"; empty for peers that came to us.
  const std::string& route(uint32_t peer) const { return peers_[peer].route; }

 private:
  struct Listener {
    int fd = -1;
    net::Interface interface;
  };
  // An address of a peer that this rank may connect to.
  struct Candidate {
    Offer offer;
    net::IpAddress source;
    std::string why;      // it is where it is in the order
    std::string failure;  // of the latest attempt
    bool refused = false;
  };
  struct Peer {
    std::vector<Candidate> candidates;  // the likely ones first; empty: the peer comes to us
    size_t next_candidate = 0;
    uint64_t next_start_ns = 0;
    uint32_t round = 0;
    uint32_t under_way = 0;
    bool proving = false;  // one attempt has sent its proof
    int fd = -1;
    std::string route;
  };
  // A connection that this rank makes.
  struct Attempt {
    int fd;
    uint32_t peer;
    size_t candidate;
    bool connecting;
    bool proving;
    Handshake handshake;
  };
  // A connection that somebody made to this rank.
  struct Visitor {
    int fd;
    net::IpAddress from;
    uint64_t expiry_ns;
    Handshake handshake;
  };
  enum class Step { kGoesOn, kProven, kEnded };

  MeetingResult find_candidates(const std::vector<Place>& peers);
  std::vector<Candidate> candidates_of(const Place& peer, bool all_here) const;
  MeetingResult start_attempts(uint64_t now);
  bool start_attempt(uint32_t peer, size_t candidate);
  void drop_attempt(size_t index, const std::string& failure);
  void forget_attempt(size_t index);
  void serve_attempt(size_t index);
  void serve_visitor(Visitor* visitor);
  void serve_all(bool was_accepting);
  void accept_all(int listener);
  MeetingResult wait(uint64_t deadline_ns);
  static Step exchange(int fd, Handshake* handshake, int* error_number);
  void settle(uint32_t peer, int fd);
  MeetingResult fail(MeetingResult result, const std::string& text);
  MeetingResult refused(uint32_t peer);
  MeetingResult time_out();
  void stop_listening();

  Identity identity_;
  MeetingLimits limits_;
  Place own_;
  std::string text_;
  std::vector<Listener> listeners_;
  bool accepting_ = true;  // false while no descriptor is free
  std::vector<Peer> peers_;
  std::vector<Attempt> attempts_;
  std::vector<Visitor> visitors_;  // oldest first
  std::vector<pollfd> entries_;
  uint32_t missing_ = 0;
  struct {
    uint32_t proof = 0, version = 0, malformed = 0, silent = 0;
    net::IpAddress last;
  } turned_away_;
};

}  // namespace weir::plugins::ofi
