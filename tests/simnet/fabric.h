// SPDX-License-Identifier: Apache-2.0
// Fabric: the network of a simulated job, as a transport (weir/plugin.h). Bytes leave the sender's
// memory and come into the receiver's only while their rank is inside the transport, a random piece
// at a time; in between they are on their way for a random time. First in, first out holds per
// (sender, receiver, lane) and nowhere else: lanes and pairs overtake each other as they like. What
// it promises is what plugin.h asks for and no more: a message that has no credit, or is long,
// waits for its receiver.
//
// One world at a time (Fabric::use); one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/control/network.h"
#include "simnet/world.h"
#include "weir/plugin.h"

namespace weir::simnet {

struct FabricOptions {
  uint64_t eager_bytes = 4096;    // up to this long a message does not need its receiver
  uint64_t window_bytes = 65536;  // that may be on their way per (peer, lane)
  uint64_t piece_bytes_max = 8192;
  uint64_t near_ns = 2 * kMicrosecond;  // latency within a host
  uint64_t far_ns = 20 * kMicrosecond;  // between hosts
  uint64_t jitter_ns = 20 * kMicrosecond;
  uint32_t lane_count = 16;
  uint32_t credit = 4;
  bool shares_memory = false;   // WEIR_CAP_SEGMENT: then no messages are needed
  bool sees_death = true;       // WEIR_CAP_PEER_FAILURE
  bool death_loses = true;      // some of what a rank has sent is lost when it dies
  bool progress_tells = false;  // `progress` fails, too, when an operation has
  // Against the contract: the end of a message leaves with a later call of its sender.
  bool withholds = false;
  uint64_t damaged_piece = 0;  // the k-th piece of all has a bit turned on its way; 0: none
};

// Between two ranks, both ways: what would arrive then arrives at `until_ns`, or never.
struct Stall {
  uint32_t a = 0;
  uint32_t b = 0;
  uint64_t from_ns = 0;
  uint64_t until_ns = kNever;
};

struct Instance;
struct Pipe;
struct Mesh;

class Fabric {
 public:
  Fabric(World& world, const FabricOptions& options, std::vector<uint32_t> host_of_rank);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  // The table of the transport; the same for ever, with the capabilities of the fabric in use.
  static const weir_transport_functions_t* transport();
  // One rank's control network, of the fabric in use.
  static std::unique_ptr<control::Network> network(uint64_t comm_id, uint32_t rank,
                                                   uint32_t rank_count);

  void add_stall(const Stall& stall) { stalls_.push_back(stall); }
  // The rank dies, or stops until `until_ns`, when it posts its `count`-th operation from now on.
  void kill_at_post(uint32_t rank, uint64_t count);
  void stop_at_post(uint32_t rank, uint64_t count, uint64_t until_ns);
  // At once, and for ever.
  void kill(uint32_t rank);
  void stop(uint32_t rank);
  uint64_t fault_ns() const { return fault_ns_; }  // when a rank died or stopped; kNever: not yet

  // What every rank has posted that is not complete, and what lies between them.
  std::string waits() const;
  // Bytes or messages that a rank left behind when all have closed in order; "" when there are
  // none.
  const std::string& leftovers() const { return leftovers_; }
  uint64_t post_count(uint32_t rank) const { return post_counts_[rank]; }
  uint64_t message_count() const { return message_count_; }

 private:
  friend struct Functions;
  friend class FabricNetwork;

  Mesh* mesh_of(uint64_t comm_id, uint32_t rank_count);

  uint64_t arrival_ns(uint32_t from, uint32_t to, uint64_t at_ns);
  void die(uint32_t rank);
  void count_post(uint32_t rank);
  Pipe& pipe(Mesh& mesh, uint32_t from, uint32_t to, uint32_t lane);
  void release(Instance& instance);  // what it has withheld
  void pump(Pipe& pipe);             // out of the sender's memory
  void drain(Pipe& pipe);            // into the receiver's
  void end_pipes(Instance& instance, bool died);
  void close(Instance* instance);

  World& world_;
  FabricOptions options_;
  std::vector<uint32_t> host_of_rank_;
  std::vector<Stall> stalls_;
  std::map<uint64_t, std::unique_ptr<Mesh>> meshes_;
  std::vector<uint64_t> post_counts_;
  std::vector<uint64_t> kill_at_, stop_at_, stop_until_ns_;
  uint64_t fault_ns_ = kNever;
  uint64_t message_count_ = 0;
  uint64_t piece_count_ = 0;
  std::string leftovers_;
};

}  // namespace weir::simnet
