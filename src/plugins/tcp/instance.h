// SPDX-License-Identifier: Apache-2.0
// Instance: the state of this transport for one communicator, and what its functions have in
// common. There is no connection to a peer before the first operation with it, on either side: then
// its lanes or rails are connected, by whichever of the two needs them, through the control
// network. One thread at a time per object.
#pragma once

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "plugins/tcp/address.h"
#include "plugins/tcp/arrivals.h"
#include "plugins/tcp/batch.h"
#include "plugins/tcp/bundle.h"
#include "plugins/tcp/channel.h"
#include "plugins/tcp/clock.h"
#include "plugins/tcp/rejoin.h"
#include "plugins/tcp/report.h"
#include "plugins/tcp/ways.h"
#include "plugins/tcp/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::tcp {

// Up to so many connections are tried one by one; with more, one poll finds those that are ready.
inline constexpr size_t kDirectMax = 8;
// Likewise peers to which rails lead; with more, one call of epoll finds where something arrived.
inline constexpr size_t kDirectPeersMax = 4;

// A peer's state, from its first use on.
struct Peer {
  uint32_t rank = 0;
  std::vector<Way> ways;               // of its lanes
  std::unique_ptr<Channel[]> lanes;    // kLaneCount; null: it has rails
  bool asked[kLaneCount] = {};         // its connection is being made
  uint64_t waits_ns[kLaneCount] = {};  // since when a receive waits for a connection
  std::unique_ptr<Bundle> bundle;
  std::string way;      // as it was chosen, as text
  std::string problem;  // why there is no connection
  // When a connection, or all rails, were seen to have ended without a goodbye; 0: they were not.
  uint64_t ended_ns = 0;
};

struct Instance final : Rejoin::Connector {
  Report report;
  uint32_t rank = 0;
  uint32_t rank_count = 1;
  pid_t owner = getpid();
  const weir_control_t* control = nullptr;  // null: no peers
  PeerAddress own;
  std::vector<net::Interface> interfaces;  // at which it listens, as own.offers
  std::vector<int> listeners;              // until connect
  bool joined = false;
  bool all_here = false;  // all ranks share a host
  IoMode io_mode = IoMode::kAuto;
  std::unique_ptr<Batch> batch;  // null: each connection is asked by itself
  ZeroCopy::Mode zero_copy = ZeroCopy::Mode::kAuto;
  Shares shares;                             // of rails
  std::vector<std::string> addresses;        // [peer], as they were given
  std::vector<std::unique_ptr<Peer>> peers;  // [peer]; null: not used yet
  std::unique_ptr<Rejoin> rejoin;            // null: all have one rail
  Channel* active = nullptr;                 // channels with queued operations
  size_t active_count = 0;
  Arrivals arrivals;                     // on rails, if there are so many peers
  std::vector<uint32_t> active_bundles;  // peers whose bundles have something to do
  uint32_t progress_calls = 0;
  uint64_t looked_ns = 0;       // when all bundles were last looked after
  uint64_t waited_ns = 0;       // the same for channels that wait for a connection
  std::vector<pollfd> entries;  // room for two per channel

  ~Instance();

  // The peer's state, made at the first call. Null, with the error reported: no memory, or no
  // descriptors.
  Peer* use(uint32_t peer);
  // Begins to make a lane's connection.
  void connect_lane(Peer* peer, uint32_t lane);
  // Takes the connections that have come, and looks after the operations that wait for one.
  void step(uint64_t now_ns);
  // Waits until the peer's host has what was copied for it.
  void flush(uint32_t peer, Bundle* bundle);
  // WEIR_LIFE_*.
  int life(uint32_t peer) const {
    return control == nullptr ? int{WEIR_LIFE_HERE} : control->life(control->context, peer);
  }
  Bundle* bundle_of(uint32_t peer) const {
    return peers[peer] == nullptr ? nullptr : peers[peer]->bundle.get();
  }

 private:
  // Rejoin::Connector.
  void connect(uint32_t peer, const Subject& subject, const std::vector<Way>& ways,
               uint64_t deadline_ns) override;
  weir_result_t make(uint32_t peer);
  void take_arrived(uint64_t now_ns);
  void take(const weir_control_connection_t& connection, weir_result_t result, uint64_t now_ns);
  void take_lane(Peer* peer, uint32_t lane, Stream stream,
                 const weir_control_connection_t& connection, weir_result_t result);
};

inline Instance* from(weir_transport_t* instance) { return reinterpret_cast<Instance*>(instance); }

// Reports a failed direction of a lane, and names the parties.
weir_result_t tell(Instance* self, uint32_t peer, uint32_t lane, bool is_send, Failure* failure);

// Functions of the transport's table.
weir_result_t viable(void*, const weir_host_t* host, char* reason, size_t reason_bytes);
weir_result_t open(void*, const weir_host_t* host, const weir_transport_config_t* config,
                   weir_transport_t** instance);
weir_result_t address(weir_transport_t* instance, unsigned char* out, size_t* bytes);
weir_result_t connect(weir_transport_t* instance, const unsigned char* const* addresses,
                      const size_t* address_bytes, uint64_t deadline_ns);
weir_result_t peer_leave(weir_transport_t* instance, uint32_t peer);

}  // namespace weir::plugins::tcp
