// SPDX-License-Identifier: Apache-2.0
// A simulated start: the Node of every rank, with its real frames, over a network that is only a
// queue of events. Hosts have some ranks each. A frame takes `latency_ns` on its way, and a rank
// needs `frame_ns` and a nanosecond for each byte of a frame that it reads or writes; what has
// arrived while it was busy is read in one turn. A handshake is `handshake_ns` of the parent's time
// and three latencies of the joining rank's. The same seed gives the same events.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "core/comm/start/bootstrap_node.h"

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
  // One all_gather of blobs of `blob_bytes`, which are compared and dropped; the time that it took.
  uint64_t all_gather(size_t blob_bytes);
  // From then on the rank does nothing, and its connections end.
  void kill_at(Rank rank, uint64_t time_ns);

  const Status& status(Rank rank) const { return ranks_[rank]->node.status(); }
  bool all_gathered() const { return gathered_count_ == network_.rank_count; }
  size_t connections_max() const { return connections_max_; }  // of any rank at any time
  size_t depth_max() const;                                    // links from a rank to the root
  uint64_t handshakes_of_root() const { return handshakes_of_root_; }
  uint64_t trace() const { return trace_; }  // a hash of all events in their order

 private:
  enum class Kind : uint8_t { kStart, kAsk, kAdmit, kFrame, kClosed, kTurn, kKill };
  struct Event {
    uint64_t time_ns = 0;
    uint64_t number = 0;  // of equal times the first that was made comes first
    Kind kind = Kind::kStart;
    Rank rank = 0;  // where it happens
    Rank from = 0;
    Node::Send frame{};
    bool operator>(const Event& other) const {
      return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
    }
  };
  struct One {
    One(Rank rank, Rank rank_count, uint64_t now_ns, uint64_t deadline_ns)
        : node(rank, rank_count, now_ns, deadline_ns) {}
    Node node;
    std::map<Node::Link, Rank> peers;
    std::map<Rank, Node::Link> links;
    std::deque<Event> inbox;
    std::vector<Event> waiting;  // joining ranks whom nobody can take as yet
    uint64_t free_at_ns = 0;
    bool turn_planned = false;
    bool started = false;
    bool dead = false;
    bool gathered = false;
  };

  void push(Event event);
  void note(const Event& event);
  void run(const std::function<bool()>& done);
  bool expire_one();
  void happen(Event event);
  void start(Rank rank);
  void take_turn(Rank rank);
  void handle(One& one, Event& event);
  bool answer(One& parent, const Event& event);
  void send_all(Rank rank);
  void check_gathered(Rank rank);
  void kill(Rank rank);
  bool is_settled(Rank rank) const;

  SimulatedNetwork network_;
  std::vector<std::unique_ptr<One>> ranks_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t event_count_ = 0;
  uint64_t now_ns_ = 0;
  std::vector<std::optional<Rank>> leaders_;  // by host: its first rank
  size_t blob_bytes_ = 0;
  Rank gathered_count_ = 0;
  std::mt19937_64 random_;
  size_t connections_max_ = 0;
  uint64_t handshakes_of_root_ = 0;
  uint64_t trace_ = 0xcbf29ce484222325;
};

}  // namespace weir::comm
