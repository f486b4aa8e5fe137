// SPDX-License-Identifier: Apache-2.0
// Instance: one rank's connections over the loaded plugin, and what becomes of its peers. A control mesh
// (net/control_mesh.h) lets in only who holds the secret, carries the plugin's handles as cards, and tells ends
// and deaths at once, whatever the plugin notices of them. One thread at a time.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "ncclnet/loaded_plugin.h"
#include "net/control_mesh.h"
#include "plugins/common/look.h"
#include "plugins/ncclnet/flow.h"
#include "plugins/ncclnet/report.h"

namespace weir::plugins::ncclnet {

inline constexpr uint32_t kLaneCount = 5;  // one, and four that programs of collectives may use
inline constexpr uint32_t kRankCountMax = 64;

struct Peer {
  enum class State : uint8_t {
    kHere,
    kBroken,  // the plugin has failed with it, and we do not know yet why
    kLeft,    // has said goodbye
    kLost,    // is dead
  };
  State state = State::kHere;
  uint64_t since_ns = 0;                 // of kBroken and kLeft
  uint64_t sent_count[kLaneCount] = {};  // what it has sent on each lane, of kLeft
  bool ended = false;                    // nothing more comes: its flows have failed
};

struct Instance {
  Report report;
  uint32_t rank = 0;
  uint32_t rank_count = 0;
  pid_t owner = getpid();
  weir_result_t heard = WEIR_OK;  // from the host while the ranks meet
  bool joined = false;
  std::unique_ptr<net::ControlMesh> mesh;
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

  // Loads the plugin that the setting names, and chooses its fastest device.
  weir_result_t open_plugin(uint64_t comm_id);
  // What the host has heard of other ranks ends the waiting for them.
  bool hears_bad_news() {
    heard = common::look(report.host);
    return heard != WEIR_OK;
  }
  weir_result_t connect(const unsigned char* const* addresses, const size_t* address_bytes,
                        uint64_t deadline_ns);
  // Drives all flows that have something to do, and looks after the peers now and then.
  void move();
  void make_active(Flow* flow);
  // The plugin lets go of the memory of all operations, which are not looked at any more.
  void quiesce();
  // Asks whether the peer is there, and draws the consequences.
  void look_at(uint32_t peer);
  // The flow's peer failed in the plugin, and it may still turn out why.
  bool is_unexplained(const Flow* flow);
  // Gives the host the reason of a flow's failure and returns its code.
  weir_result_t tell(Flow* flow);
  // Of a call of the plugin.
  weir_result_t plugin_failed(weir_result_t code, const char* what, weir::ncclnet::Result result);

 private:
  bool is_send(const Flow* flow) const {
    return flow >= sends.data() && flow < sends.data() + sends.size();
  }
  size_t index_of(const Flow* flow) const {
    return static_cast<size_t>(flow - (is_send(flow) ? sends.data() : recvs.data()));
  }
  weir_result_t check_card(uint32_t peer, const net::mesh::Bytes& card);
  weir_result_t listen(net::mesh::Bytes* card);
  weir_result_t connect_flows(uint64_t deadline_ns);
  weir_result_t connect_flow(uint32_t index, bool* moved);
  weir_result_t greet(uint64_t deadline_ns);
  weir_result_t look_while_joining(uint64_t now, uint64_t deadline_ns, const char* what);
  void tend();
  void break_off(uint32_t peer);
  void end_flows(uint32_t peer);
  bool has_all(uint32_t peer) const;
  bool is_waited_for(uint32_t peer) const;
  void flush(uint64_t deadline_ns);
  net::mesh::Bytes farewell_to(uint32_t peer) const;
};

uint64_t monotonic_ns();

}  // namespace weir::plugins::ncclnet
