// SPDX-License-Identifier: Apache-2.0
// Network: the control network of one communicator. It carries everything that ranks tell each
// other beside the data: what each of them shows to all others (a notice), which ranks have left or
// died, messages between two ranks, and descriptors between ranks of a host. Its connections are
// proven and sparse: a rank holds about 2 log2(n) of them; a connection to any other rank is made
// when there is a message for it, and closed when it is idle.
//
// Notices and deaths travel from link to link. Each link sends only the latest state of a rank, so
// that nothing piles up behind a slow link, and a rank that dies separates no others while the
// remaining links still connect them.
//
// A rank has died when the connection to it ends without a goodbye and its address no longer
// answers, or when the kernel reports the end of its process. A link that breaks while the rank
// still answers, or whose path fails, is replaced and loses no message; a rank with which no new
// link can be made, or that sends what is no frame, is lost for this neighbor only.
//
// Ranks forward notices of others while they compute: a thread of the process makes progress. Every
// function may be called from any thread; only `join`, `fetch` and `flush` wait.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/control/link.h"
#include "core/control/network_address.h"
#include "net/auth.h"
#include "net/interfaces.h"
#include "net/ip_address.h"
#include "net/stream.h"
#include "net/tls.h"

namespace weir::control {

// The life of a rank; it never goes back.
enum class Life : uint8_t { kHere = 0, kLeft = 1, kLost = 2 };

struct NetworkConfig {
  uint64_t comm_id = 0;
  Rank rank = 0;
  Rank rank_count = 1;
  Secret secret{};                        // of the communicator
  std::string purpose = "control";        // two networks with one secret do not meet
  bool leaves_host = true;                // it listens for ranks of other hosts
  net::InterfaceFilter filter{};          // interfaces to listen at, where it leaves the host
  net::TlsMode tls = net::TlsMode::kOff;  // not kOff: TCP connections are inside TLS
  uint64_t unproven_ns = 2'000'000'000;   // from accept to proof
  size_t unproven_count = 256;            // connections without proof at a time
};

// A path to a rank that listens (`Network::listen`).
struct Path {
  net::IpAddress address{};
  uint16_t port = 0;
  net::IpAddress source{};  // of this host; not valid: by routing
  std::string device{};     // of this host; "": by routing
};

// What a connection of a transport is for; the same at both of its ends.
struct Purpose {
  uint8_t channel = 0;        // of which transport
  bool stays_secure = false;  // inside TLS also with WEIR_TLS=control
  uint64_t number = 0;        // the transport's

  bool operator==(const Purpose&) const = default;
};

// A connection of a transport, or why there is none.
struct Connected {
  Rank peer = 0;
  Purpose purpose{};
  net::Stream stream{};
  uint32_t path = kPeerCame;  // index into the paths that `connect` was given
  Status status{};            // kPeerLost, kTimeout, kRefused, kSystem, kUnsupported
  std::string passed_over{};  // other paths that were tried, and why they failed

  static constexpr uint32_t kPeerCame = UINT32_MAX;
};

class Network {
 public:
  using Key = std::array<unsigned char, kDescriptorKeyBytes>;
  using StillPossible = std::function<Status()>;

  // Listens. Errors: kSystem, kUnsupported (no interface that is allowed has an address).
  static Result<std::unique_ptr<Network>> open(const NetworkConfig& config);
  // Without `leave` before it the other ranks take this for a death. In a forked child it closes
  // the child's copies and tells no rank.
  virtual ~Network() = default;

  // Listens for ranks of other hosts, too. Before join; changes `address`. Errors as of `open`.
  virtual Status leave_host() = 0;
  // The bytes that the other ranks need to reach this one; at most kAddressBytesMax bytes.
  virtual std::string address() const = 0;
  // addresses[i] is what rank i's `address` gave. Returns when the links to the neighbors are
  // connected. Errors: kTimeout, which names the ranks that are missing; kRefused; what
  // `still_possible`, asked now and then, returns.
  virtual Status join(const std::vector<std::string>& addresses, uint64_t deadline_ns,
                      const StillPossible& still_possible = {}) = 0;
  // After join, of a rank whose address was not known then and which has connected by itself: what
  // its `address` gave. Until then it has no pair key, and nothing can be connected to it.
  // kRefused: it is no address of that rank.
  virtual Status set_address(Rank rank, const std::string& address) = 0;

  // ---- What ranks show, and whether they live.
  // Shows at most kNoticeBytesMax bytes to all others in place of what this rank showed before.
  virtual void show(std::string_view notice) = 0;
  // Grows whenever a notice or a life changes.
  virtual uint64_t change_count() const = 0;
  // Reads the latest notice of `rank` that has arrived, or of this rank, if it is another than the
  // one that `*version` stands for (0: none). False: it is the same, and nothing was changed.
  virtual bool read(Rank rank, uint32_t* version, std::string* notice) const = 0;
  virtual Life life(Rank rank) const = 0;
  // Of a lost rank: whether it has answered since, so that it lives and only the way to it is lost.
  virtual bool is_cut_off(Rank) const { return false; }
  // A rank that is linked with this one and whose host has not acknowledged data that was sent to
  // it, and since when.
  struct Unreached {
    Rank rank;
    uint64_t since_ns;
  };
  virtual void collect_unreached(std::vector<Unreached>* ranks) const = 0;
  // Says goodbye to all others: from now on this rank counts as having left.
  virtual void leave() = 0;

  // ---- Messages between two ranks, in order on each channel.
  // Queues a message of at most kMessageBytesMax bytes. kPeerLost: the rank has left or died.
  virtual Status send(Rank peer, uint8_t channel, std::string_view message) = 0;
  // Takes the oldest message of `peer` on the channel; false: there is none.
  virtual bool receive(Rank peer, uint8_t channel, std::string* message) = 0;
  // Waits until all messages to `peer` have left this process.
  virtual Status flush(Rank peer, uint64_t deadline_ns) = 0;

  // ---- Descriptors, between ranks of a host.
  virtual bool shares_host(Rank rank) const = 0;
  // Other ranks may fetch it under this key, from now until `withdraw` or the end. Copied.
  virtual Status offer(const Key& key, int fd) = 0;
  virtual void withdraw(const Key& key) = 0;
  // Waits until `peer` offers a descriptor under this key; the copy is the caller's. Errors:
  // kTimeout, kPeerLost, kUnsupported (another host), what `still_possible` returns.
  virtual Result<int> fetch(Rank peer, const Key& key, uint64_t deadline_ns,
                            const StillPossible& still_possible = {}) = 0;

  // ---- Connections of the transports: proven as links are, and then theirs. They are made and
  // accepted whatever the ranks do meanwhile. After join.
  // Accepts at this listener, which the network then owns.
  virtual Status listen(int listener) = 0;
  // Begins to connect to a peer that listens, until the deadline: the paths are tried with a short
  // delay between them, again and again. When both ends begin for one purpose, one connection
  // results. Nothing is begun while one is under way, or has come and was not taken yet. Only the
  // higher rank may begin again for a purpose that already had a connection.
  virtual void connect(Rank peer, const Purpose& purpose, std::vector<Path> paths,
                       uint64_t deadline_ns) = 0;
  // Takes the next result of `connect`, here or at a peer, in order of arrival; false: there is
  // none, which is cheap.
  virtual bool connected(uint8_t channel, Connected* connected) = 0;

  // 32 bytes that only this rank and `peer` know (and a process that holds the secret and has seen
  // all addresses), the same at both ends. After join.
  virtual net::Mac pair_key(Rank peer, std::string_view purpose) const = 0;
  // "rank 0 over a Unix socket", "rank 3 at 10.0.0.1:4000 (over eth0: same subnet)", "" without a
  // link.
  virtual std::string describe(Rank peer) const = 0;
  // The address of this rank's host at which its link with `peer` ends: one that leads to the peer.
  // Not valid without a link, and over a Unix socket.
  virtual net::IpAddress own_address(Rank peer) const = 0;
};

}  // namespace weir::control
