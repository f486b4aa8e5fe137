// SPDX-License-Identifier: Apache-2.0
// Instance: one rank's connections over the loaded plugin, and the state of its peers. The core's
// control network (message/control.h) carries the plugin's handles, and reports ends and deaths at
// once, even if the plugin does not notice them. One thread at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ncclnet/loaded_plugin.h"
#include "plugins/message/participant.h"
#include "plugins/ncclnet/flow.h"

namespace weir::plugins::ncclnet {

inline constexpr uint32_t kLaneCount = 6;  // four are for the programs of collectives

using common::Report;
using common::text_of;

struct Peer {
  enum class State : uint8_t {
    kHere,
    kBroken,  // the plugin has failed with it, for a reason not known yet
    kLeft,    // has said goodbye
    kLost,    // is dead
  };
  State state = State::kHere;
  uint64_t since_ns = 0;                 // of kBroken and kLeft
  bool told = false;                     // of kLeft: it has said how much it has sent
  uint64_t sent_count[kLaneCount] = {};  // on each lane; of `told`
  std::string card{};                    // its handles for this rank, while the ranks are joined
  bool ended = false;                    // nothing more comes: its flows have failed
};

// ncclnet.cc has the functions of the table.
struct Instance : message::Participant {
  static constexpr char kName[] = "ncclnet";
  static constexpr uint32_t kRankCountMax = 64;
  using Op = ncclnet::Op;

  LoadedPlugin* plugin = nullptr;
  void* context = nullptr;
  bool has_context = false;
  int device = 0;
  weir::ncclnet::DeviceProperties properties;
  std::vector<void*> listeners;  // [peer * kLaneCount + lane]
  std::unique_ptr<unsigned char[]> slot_memory;
  std::vector<Flow> sends;  // [peer * kLaneCount + lane]
  std::vector<Flow> recvs;
  std::vector<Peer> peers;
  Flow* active = nullptr;
  uint32_t troubled_count = 0;  // peers in kBroken or kLeft that have not ended
  uint32_t idle_count = 0;
  uint32_t next_look = 0;

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
  // Defined in ncclnet.cc, the only caller.
  inline weir_result_t send(uint32_t peer, uint32_t lane, const void* data, uint64_t bytes, Op* op);
  inline weir_result_t recv(uint32_t peer, uint32_t lane, void* data, uint64_t bytes, Op* op);
  inline weir_result_t test(Op* op);
  inline weir_result_t progress();
  weir_result_t peer_alive(uint32_t peer);

  // Drives all flows that have something to do, and checks on the peers from time to time.
  void move();
  void make_active(Flow* flow);
  // The plugin gives back the memory of all operations, which are not accessed any more. Does
  // nothing before connect.
  void quiesce();
  // Asks whether the peer is alive, and acts on the answer.
  void look_at(uint32_t peer);
  // The flow's peer failed in the plugin, and the reason may still become known.
  bool is_unexplained(const Flow* flow);
  // Gives the host the reason of a flow's failure and returns its code.
  weir_result_t tell(Flow* flow);
  // Reports a failed call of the plugin.
  weir_result_t plugin_failed(weir_result_t code, const char* what, weir::ncclnet::Result result);

 private:
  // Loads the plugin that the setting names, and chooses its fastest device.
  weir_result_t open_plugin(uint64_t comm_id);
  inline weir_result_t check_message(uint32_t peer, uint32_t lane, uint64_t bytes) const;
  inline weir_result_t post(Flow* flow, void* data, uint64_t bytes, Op* op);
  weir_result_t fail_operation(Flow* flow, Op* op);

  bool is_send(const Flow* flow) const {
    return flow >= sends.data() && flow < sends.data() + sends.size();
  }
  size_t index_of(const Flow* flow) const {
    return static_cast<size_t>(flow - (is_send(flow) ? sends.data() : recvs.data()));
  }
  weir_result_t check_address(uint32_t peer, const unsigned char* address, size_t bytes) const;
  weir_result_t listen();
  weir_result_t hear_handles(uint64_t deadline_ns);
  weir_result_t connect_flows(uint64_t deadline_ns);
  weir_result_t connect_flow(uint32_t index, bool* moved);
  weir_result_t greet(uint64_t deadline_ns);
  weir_result_t look_while_joining(uint64_t now, uint64_t deadline_ns, const char* what);
  void hear_word(uint32_t peer, const std::string& word);
  void note_leaving(uint32_t peer);
  void tend();
  void break_off(uint32_t peer);
  void end_flows(uint32_t peer);
  bool has_all(uint32_t peer) const;
  bool is_waited_for(uint32_t peer) const;
  void flush(uint64_t deadline_ns);
  bool has_exchanged_with(uint32_t peer) const;
  std::string farewell_to(uint32_t peer) const;
  void say_farewells() const;
};

using message::monotonic_ns;

}  // namespace weir::plugins::ncclnet
