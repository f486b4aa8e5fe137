// SPDX-License-Identifier: Apache-2.0
// simulate(): runs the programs of an algorithm, on all ranks, over a simulated network in virtual
// time. It executes the same operations as the engine, generated step by step as each rank reaches
// them, so that 10,240 ranks need memory only for operations in flight and not for their programs.
//
// Model. Ports contend as network.h says, or the links of a graph as Options::links says. A rank
// has one core: overheads, copies and reductions of its lanes take turns on it, in time order.
// Sends do not wait for the receiver (eager, buffered). Copies and reductions from peers' memory
// take the reader's core and no port, but the links of a graph. The same inputs give the same
// result to the bit, trace hash included. Thread-safe: no shared state.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/algo/algorithm.h"
#include "core/base/status.h"
#include "core/cost/chunk_bytes.h"
#include "core/cost/task_costs.h"
#include "core/graph/link_graph.h"
#include "core/sim/network.h"

namespace weir::sim {

// Overheads, ports, copies and reductions of `rank` take `factor` times as long; latency does not.
struct SlowRank {
  Rank rank = 0;
  double factor = 1;  // 0.001 to 1e6
};

// `rank` starts no operation at or after `at_ns`. Messages that it has sent arrive.
struct DeadRank {
  Rank rank = 0;
  double at_ns = 0;
};

struct Progress {
  uint64_t steps_done = 0;  // of the algorithm, over all ranks
  uint64_t steps_total = 0;
  uint64_t events = 0;
  double time_ns = 0;  // virtual
};

struct Options {
  Network network;
  // Null: messages claim the ports of `network`. Otherwise a message claims the links of its way
  // (graph/routes.h) one after another, cut-through: a link starts as soon as the link before has
  // started, and is taken for max(gap, bytes / bandwidth); one without a limit, not at all. The
  // message arrives the sum of the links' latencies later. Of `network` remain overheads, gaps,
  // copies and reductions; a signal takes `signal_ns` and the latency of the way, and a byte at a
  // peer `remote_ns_per_byte`; then it claims the links of its way like a message, without gap and
  // latency.
  // The links of a slow rank are slow too. The graph has as many ranks as the problem and outlives
  // the call; which ranks are on one node is said by the problem, as ever.
  const graph::LinkGraph* links = nullptr;
  // ns per byte of the NIC of each node, in place of network.nic.ns_per_byte; empty: nodes are
  // alike. Not with links.
  std::vector<double> nic_ns_per_byte_of_node;
  // Null: as above. Otherwise ranks and messages take the task times of a table, and `network` is
  // not used; `links` are those within hosts, which accesses and messages take while the cores
  // work: the table's times are of links that nobody else uses. The sender's core copies a message
  // in while the receiver's copies it out, which is done no sooner than the slowest of sender,
  // receiver and wire allows. Messages between hosts claim the card of the sender, and after their
  // latency that of the receiver. Outlives the call; made for the same problem, bytes and slicing.
  const cost::TaskCosts* tasks = nullptr;
  // The simulation ends, incomplete, when no rank can be done before this time. 0: at the end.
  double time_max_ns = 0;
  cost::Slicing slicing;  // whole chunks, unless set otherwise
  // A lane waits while the target has not received as many messages that it has sent there. 0: it
  // never waits.
  uint32_t credit = 0;
  std::vector<SlowRank> slow;
  std::vector<DeadRank> dead;
  // Called about every million events; may be empty. Returning false stops with kAborted.
  std::function<bool(const Progress&)> progress;
  // Activities of the first `timeline_ranks` ranks are kept, at most `timeline_spans_max` of them.
  uint32_t timeline_ranks = 0;
  // The lanes of this rank and what takes its ports or links are kept, as many spans of each.
  std::optional<Rank> lanes_of;
  uint64_t timeline_spans_max = 100'000;
  // Limits on memory: messages sent and not yet received, operations generated and not yet executed
  // (a lane that is far ahead of another). Exceeding one is kNoMemory.
  uint64_t messages_in_flight_max = 6'000'000;
  uint64_t operations_pending_max = 12'000'000;
};

// The parts of the time on the longest chain of dependences. They sum up to `total_ps`.
struct CriticalPath {
  Rank rank = 0;      // that finishes last
  uint64_t hops = 0;  // messages and signals on the path
  uint64_t overhead_ps = 0;
  uint64_t latency_ps = 0;     // of messages and signals
  uint64_t transfer_ps = 0;    // bytes through ports
  uint64_t compute_ps = 0;     // copies and reductions
  uint64_t contention_ps = 0;  // waiting for a port or for the rank's own core
};

// A lane that could not continue.
struct Blocked {
  Rank rank = 0;
  uint32_t lane = 0;
  Rank waits_for = 0;
  bool for_signal = false;  // else for a message
  uint64_t since_ps = 0;
};

// Why lanes are blocked: a dead rank, or ranks that wait for each other.
struct Culprit {
  std::vector<Rank> ranks;  // one dead rank, or the ranks of a cycle in order, or one rank that
                            // has finished without sending
  enum class Kind : uint8_t { kDead, kCycle, kFinished } kind = Kind::kDead;
  uint64_t victim_count = 0;  // ranks that wait for it, directly or through others
};

struct Span {
  enum class Kind : uint8_t { kSend, kRecv, kCompute, kWait } kind = Kind::kSend;
  Rank rank = 0;
  uint32_t lane = 0;
  Rank peer = 0;  // not for kCompute
  uint64_t begin_ps = 0;
  uint64_t end_ps = 0;
};

// A message at a port of Options::lanes_of, or over a link that begins or ends at it.
struct Transfer {
  graph::LinkId link = graph::kNone;  // kNone: the port of the two-level network
  bool out = false;                   // from the rank
  Rank peer = 0;
  uint64_t begin_ps = 0;
  uint64_t end_ps = 0;
};

struct PortUse {
  uint64_t egress_ps = 0;  // time that the port is taken
  uint64_t ingress_ps = 0;
};

struct LinkUse {
  uint64_t busy_ps = 0;  // time that the link is taken
  uint64_t messages = 0;
  uint64_t bytes = 0;
};

struct Report {
  bool complete = false;               // every rank finished
  uint64_t total_ps = 0;               // when the last rank finished or stopped
  std::vector<uint64_t> finish_ps;     // per rank; when it stopped, if it did not finish
  std::vector<uint64_t> core_busy_ps;  // per rank
  CriticalPath critical_path;

  uint64_t messages = 0;
  uint64_t message_bytes_intra_node = 0;
  uint64_t message_bytes_inter_node = 0;
  uint64_t copied_bytes = 0;  // by copies and reductions, local and from peers: bytes written
  uint64_t remote_bytes = 0;  // read from or written to peers' memory
  uint64_t signals = 0;
  // Over a link graph the use of each link, by its number; otherwise of each port.
  std::vector<LinkUse> links;
  std::vector<PortUse> rank_ports;
  std::vector<PortUse> nic_ports;  // [node * rails + rail]
  uint32_t rails = 1;

  std::vector<Blocked> blocked;   // by rank and lane; empty when complete
  std::vector<Rank> dead;         // ranks that stopped before they had finished
  std::vector<Culprit> culprits;  // most victims first

  uint64_t events = 0;  // that passed the time-ordered queue
  uint64_t operations = 0;
  uint64_t messages_in_flight_peak = 0;
  uint64_t trace_hash = 0;  // of every event in order
  std::vector<Span> timeline;
  std::vector<Span> lanes;  // of Options::lanes_of
  std::vector<Transfer> transfers;
};

// What simulate() checks whatever the algorithm is: faults, the network, the cards of the nodes.
Status check(const algo::Problem& problem, const Options& options);

// `bytes` is the size of the largest buffer of a rank (see cost::ChunkBytes). A slot of Scratch or
// Staging that is sent counts as the longest chunk. Errors: a problem that the algorithm does not
// support, figures out of range, limits on memory exceeded.
Result<Report> simulate(const algo::Algorithm& algorithm, const algo::Problem& problem,
                        uint64_t bytes, const Options& options);

}  // namespace weir::sim
