// SPDX-License-Identifier: Apache-2.0
// A simulated start: the Node of every rank, with its real frames, over a network that is only a
// queue of events. Hosts have some ranks each. A frame takes `latency_ns` on its way, and a rank
// needs `frame_ns` for each frame that it reads or writes; what has arrived while it was busy is
// read in one turn. A handshake is `handshake_ns` of the host's time and three latencies of the
// guest's. The same seed gives the same events.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "core/comm/bootstrap_node.h"

namespace weir::comm {

struct SimulatedNetwork {
  Rank rank_count = 0;
  Rank ranks_per_host = 8;
  uint64_t seed = 1;
  uint64_t latency_ns = 20'000;
  uint64_t frame_ns = 2'000;
  uint64_t handshake_ns = 30'000;
  uint64_t skew_ns = 0;  // ranks start at random within this time
  uint64_t timeout_ns = 60'000'000'000;
  std::vector<Rank> absent = {};  // never start
};

class SimulatedStart {
 public:
  explicit SimulatedStart(const SimulatedNetwork& network);

  // Until every rank is done with joining, or has failed. Returns the time.
  uint64_t join();
  // One all_gather of blobs of `blob_bytes`; the time that it took.
  uint64_t all_gather(size_t blob_bytes);
  // This rank's connections end while the others are in the midst of it.
  void kill_at(Rank rank, uint64_t time_ns) { push({time_ns, 0, Event::kKill, rank, 0, {}}); }

  const Status& status(Rank rank) const { return ranks_[rank]->node.status(); }
  std::vector<std::string> take_blobs(Rank rank) { return ranks_[rank]->node.take_blobs(); }
  size_t connections_max() const { return connections_max_; }  // of any rank at any time
  size_t depth_max() const;                                    // links from a rank to the root
  uint64_t handshakes_of_root() const { return handshakes_of_root_; }
  uint64_t trace() const { return trace_; }  // a hash of all events in their order

 private:
  struct Event {
    enum Kind : uint8_t { kStart, kArrive, kDeliver, kClose, kTurn, kAdmit, kKill };
    uint64_t time_ns = 0;
    uint64_t number = 0;  // of equal times the first that was made comes first
    Kind kind = kStart;
    Rank rank = 0;
    Rank from = 0;
    std::string frame;
    bool operator>(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
    }
  };
  struct One {
    One(Rank rank, Rank count, uint64_t now, uint64_t deadline)
        : node(rank, count, now, deadline) {}
    Node node;
    std::map<Node::Link, Rank> peers;
    std::map<Rank, Node::Link> links;
    std::optional<Rank> parent;
    std::deque<Event> inbox;
    uint64_t free_at_ns = 0;
    bool turn_planned = false;
    bool alive = true;
    bool started = false;
    Node::Link next_link = 1;
  };

  void push(Event event);
  void run(uint64_t until_ns);
  bool all_done() const;
  void plan_turn(Rank rank, uint64_t now_ns);
  void take_turn(Rank rank, uint64_t now_ns);
  void knock(Rank guest, Rank host, uint64_t now_ns);
  void arrive(Rank guest, Rank host, uint64_t now_ns);
  void connect(Rank guest, Rank host, uint64_t now_ns);
  void send_all(Rank rank);
  void kill(Rank rank, uint64_t now_ns);
  Rank leader_of(Rank rank) const {
    return rank / network_.ranks_per_host * network_.ranks_per_host;
  }

  SimulatedNetwork network_;
  std::vector<std::unique_ptr<One>> ranks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t event_count_ = 0;
  uint64_t now_ns_ = 0;
  size_t connections_max_ = 0;
  uint64_t handshakes_of_root_ = 0;
  uint64_t trace_ = 0xcbf29ce484222325;
};

}  // namespace weir::comm
