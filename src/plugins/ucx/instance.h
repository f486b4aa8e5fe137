// SPDX-License-Identifier: Apache-2.0
// Instance: one rank's endpoints and flows, and what becomes of its peers. A control mesh
// (net/control_mesh.h) lets in only who holds the secret, carries UCX's addresses, and tells ends and deaths
// at once, whatever UCX's transport would notice of them; UCX's own report of a broken endpoint is heard, too.
// One-sided operations are OneSided's.
// One thread at a time.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "net/control_mesh.h"
#include "plugins/common/look.h"
#include "plugins/ucx/flow.h"
#include "plugins/ucx/network.h"
#include "plugins/ucx/one_sided.h"
#include "plugins/ucx/report.h"

namespace weir::plugins::ucx {

struct Instance;

struct Peer {
  enum class State : uint8_t {
    kHere,
    kBroken,  // UCX cannot reach it, and we do not know yet why
    kLeft,    // has said goodbye
    kLost,    // is dead
  };
  Instance* self = nullptr;
  uint32_t rank = 0;
  ucp_ep_h endpoint = nullptr;
  bool reports_errors = false;  // the endpoint's mode of UCX
  State state = State::kHere;
  ucs_status_t status = UCS_OK;  // why UCX gave the endpoint up
  uint64_t since_ns = 0;         // of kBroken; of kLeft: since when it is waited for
  bool ended = false;            // nothing more comes: its flows have failed
};

struct Instance {
  Report report;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
  pid_t owner = getpid();
  weir_result_t heard = WEIR_OK;  // from the host while the ranks meet
  bool joined = false;
  std::unique_ptr<net::ControlMesh> mesh;
  Network network;
  std::vector<Peer> peers;
  std::vector<Flow> sends;  // [peer * kLaneCount + lane]
  std::vector<Flow> recvs;
  net::Mac key_proof{};  // of keys of remote memory
  OneSided one_sided;
  uint32_t troubled_count = 0;  // peers in kBroken or kLeft that have not ended
  uint32_t idle_count = 0;      // calls of UCX that moved nothing
  uint32_t next_look = 0;       // peer

  Instance() = default;
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  // What the host has heard of other ranks ends the waiting for them.
  bool hears_bad_news() {
    heard = common::look(report.host);
    return heard != WEIR_OK;
  }
  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns);
  // Lets UCX work, and looks after the peers now and then.
  void move() {
    if (ucp_worker_progress(network.worker()) != 0) {
      idle_count = 0;
    } else if (++idle_count >= kIdleCountMax) {
      idle_count = 0;
      look_at_next();
    }
    one_sided.move();
    if (troubled_count != 0) [[unlikely]]
      tend();
  }
  // Asks whether the peer is there, and draws the consequences.
  void look_at(uint32_t rank);
  // UCX has given the flow's peer up, and we do not know yet why.
  bool is_unexplained(const Flow* flow) const {
    const Peer& peer = peers[index_of(flow) / kLaneCount];
    return peer.state == Peer::State::kBroken && !peer.ended;
  }
  // Gives the peer up. False: UCX may still read or write buffers of operations with it.
  bool leave(uint32_t rank);
  // Nothing is moved any more; the control connections stay.
  void quiesce();
  // Gives the host the reason of a flow's failure and returns its code.
  weir_result_t tell(Flow* flow);

 private:
  bool is_send(const Flow* flow) const {
    return flow >= sends.data() && flow < sends.data() + sends.size();
  }
  size_t index_of(const Flow* flow) const {
    return static_cast<size_t>(flow - (is_send(flow) ? sends.data() : recvs.data()));
  }

  static constexpr uint32_t kIdleCountMax = 4096;

  static void on_endpoint_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  weir_result_t make_endpoints();
  weir_result_t greet(uint64_t deadline_ns);
  weir_result_t greeting_failed(const std::vector<bool>& greeted, weir_result_t result);
  void look_at_next();
  void tend();
  void lose(Peer* peer);
  void hear_goodbye(Peer* peer);
  // Of a peer that has left: its signals have all come; all that it sent has been received;
  // something of it is waited for, or an operation with it under way.
  bool has_signals(const Peer& peer) const;
  bool has_all(const Peer& peer) const;
  bool awaits(const Peer& peer) const;
  void end_flows(Peer* peer);
  void close_endpoint(Peer* peer);
  void drain();
  void flush(uint64_t deadline_ns);
  void end_network();
  net::mesh::Bytes farewell_to(uint32_t rank) const;

  std::vector<void*> closing_;  // requests of UCX
};

uint64_t monotonic_ns();

}  // namespace weir::plugins::ucx
