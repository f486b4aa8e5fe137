// SPDX-License-Identifier: Apache-2.0
// Instance: one rank's endpoints and flows, and the state of its peers. The core's control network
// (message/control.h) reports ends and deaths at once, even if UCX's transport does not notice
// them; UCX's own report of a broken endpoint is used, too. One-sided operations are in OneSided.
// One thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/auth.h"
#include "plugins/message/participant.h"
#include "plugins/ucx/flow.h"
#include "plugins/ucx/network.h"
#include "plugins/ucx/one_sided.h"

namespace weir::plugins::ucx {

using common::Report;
using common::text_of;

struct Instance;

struct Peer {
  enum class State : uint8_t {
    kHere,
    kBroken,  // UCX cannot reach it, for a reason not known yet
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
  bool told = false;             // of kLeft: it has said how much it has sent
  uint64_t signal_count = 0;     // of `told`
  bool ended = false;            // nothing more comes: its flows have failed
};

// ucx.cc has the functions of the table.
struct Instance : message::Participant {
  static constexpr char kName[] = "ucx";
  static constexpr uint32_t kRankCountMax = 1u << 16;  // as many as a tag tells apart (flow.h)
  using Op = ucx::Op;
  using OneSided = ucx::OneSided;
  // Keeps what UCX logs about a failure while a call is in progress.
  struct Inside {
    explicit Inside(Instance& instance) : listening(&instance.network.heard()) {}
    const Listening listening;
  };

  bool met = false;  // the addresses of all ranks are known: peers can be contacted
  Network network;
  std::vector<Peer> peers;
  std::vector<Flow> sends;  // [peer * kLaneCount + lane]
  std::vector<Flow> recvs;
  net::Mac key_proof{};  // of keys of remote memory
  OneSided one_sided_;
  uint32_t troubled_count = 0;  // peers in kBroken or kLeft that have not ended
  uint32_t idle_count = 0;      // calls of UCX that moved nothing
  uint32_t next_look = 0;       // peer

  Instance() = default;
  ~Instance();
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  static bool viable(const weir_host_t* host, std::string* text);
  static weir_result_t open(const weir_host_t* host, const weir_transport_config_t& config,
                            std::unique_ptr<Instance>* made);
  weir_result_t address(unsigned char* out, size_t* bytes) const;
  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns);
  // Defined in ucx.cc, the only caller.
  inline weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes, Op* op);
  inline weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes, Op* op);
  std::string device_gap() const;
  weir_result_t device_message(bool sending, uint32_t peer, uint32_t lane, void* data,
                               uint64_t bytes, int device, Op* op);
  inline weir_result_t test(Op* op);
  inline weir_result_t progress();
  weir_result_t peer_alive(uint32_t peer);
  weir_result_t peer_leave(uint32_t peer);
  std::string describe(uint32_t peer) const;
  // UCX does in software what a network cannot do.
  std::string remote_gap() const { return ""; }
  OneSided* one_sided() { return joined ? &one_sided_ : nullptr; }
  weir_result_t no_one_sided() const { return not_connected(); }

  // Lets UCX make progress, and checks on the peers from time to time.
  void move() {
    if (ucp_worker_progress(network.worker()) != 0) {
      idle_count = 0;
    } else if (++idle_count >= kIdleCountMax) {
      idle_count = 0;
      look_at_next();
    }
    one_sided_.move();
    if (troubled_count != 0) [[unlikely]]
      tend();
  }
  // Asks whether the peer is alive, and acts on the answer.
  void look_at(uint32_t rank);
  // UCX has given up the flow's peer, for a reason not known yet.
  bool is_unexplained(const Flow* flow) const {
    const Peer& peer = peers[index_of(flow) / kLaneCount];
    return peer.state == Peer::State::kBroken && !peer.ended;
  }
  // Gives the peer up. False: UCX may still read or write buffers of operations with it.
  bool leave(uint32_t rank);
  // Nothing is moved any more; the control network stays. Does nothing before connect.
  void quiesce();
  // Gives the host the reason of a flow's failure and returns its code.
  weir_result_t tell(Flow* flow);

 private:
  weir_result_t check_descriptors() const;
  inline weir_result_t post(Flow* flow, bool sending, void* data, uint64_t bytes,
                            ucs_memory_type_t memory, Op* op);
  weir_result_t fail_operation(Flow* flow, Op* op);
  weir_result_t fail_remote_operation(const RemoteOp& op);

  bool is_send(const Flow* flow) const {
    return flow >= sends.data() && flow < sends.data() + sends.size();
  }
  size_t index_of(const Flow* flow) const {
    return static_cast<size_t>(flow - (is_send(flow) ? sends.data() : recvs.data()));
  }

  static constexpr uint32_t kIdleCountMax = 4096;

  static void on_endpoint_error(void* peer, ucp_ep_h endpoint, ucs_status_t status);
  std::string card() const;
  weir_result_t gather_cards(const unsigned char* const* addresses, const size_t* address_bytes,
                             uint64_t deadline_ns, std::vector<std::string>* cards);
  weir_result_t make_endpoints(const std::vector<std::string>& cards);
  weir_result_t greet(uint64_t deadline_ns);
  weir_result_t greeting_failed(const std::vector<bool>& greeted, weir_result_t result);
  void look_at_next();
  void tend();
  void lose(Peer* peer);
  void hear_word(Peer* peer, const std::string& word);
  void note_leaving(Peer* peer);
  // Of a peer that has left: its signals have all come; all that it sent has been received;
  // something of it is waited for, or an operation with it under way.
  bool has_signals(const Peer& peer) const;
  bool has_all(const Peer& peer) const;
  bool awaits(const Peer& peer) const;
  void end_flows(Peer* peer);
  void close_endpoint(Peer* peer);
  void drain();
  void take_last_messages();
  void flush(uint64_t deadline_ns);
  void end_network();
  bool has_exchanged_with(uint32_t rank) const;
  std::string farewell_to(uint32_t rank) const;
  void say_farewells() const;

  std::vector<void*> closing_;  // requests of UCX
};

using message::monotonic_ns;

}  // namespace weir::plugins::ucx
