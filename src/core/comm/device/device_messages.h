// SPDX-License-Identifier: Apache-2.0
// DeviceMessages: the messages of a communicator that go from device to device: work of streams
// alone (core/comm/stream/message_call.h), with what DeviceStreams has made.
//
// On a stream of the caller's a message, or all messages of a group, are one kernel in the order of
// the stream. The collectives of the group do not wait for it: it then has a stream of the
// library's own, forked from the caller's, and is enqueued before them, and what waits for its end
// after them.
//
// Messages without a stream depend on each other only by the order of their pair and direction, so
// their kernels run beside each other, each on a stream of its own, and nothing stands behind them:
// their ends are read from the counters of the lanes. Those that are called meanwhile with the same
// peer in the same direction are enqueued, together, when the earlier ones have ended.
//
// With the communicator's lock held, but for `has_pending`, `enqueue_pending` and `enqueue_ends`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/comm/device/graph_chains.h"
#include "core/comm/device/stream_parts.h"
#include "core/comm/device/words_pool.h"
#include "core/comm/requests/request.h"
#include "core/comm/requests/requests.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/stream/graph_order.h"
#include "core/comm/stream/message_call.h"
#include "core/comm/stream/message_watch.h"
#include "core/comm/stream/stream_event.h"

namespace weir::comm {

class DeviceMessages {
 public:
  DeviceMessages(CommState& state, Requests& requests) : state_(state), requests_(requests) {}
  DeviceMessages(const DeviceMessages&) = delete;
  DeviceMessages& operator=(const DeviceMessages&) = delete;

  void become_ready(const StreamParts& parts);
  // Before it is ready, messages stay until it is, or until they are taken.
  void start(Request& request);
  std::vector<Request*> take_pending();

  // Of a group: whether some of its calls are not on their streams yet.
  using IsPending = std::function<bool(const CallGroup&)>;
  bool has_pending() const { return has_pending_.load(std::memory_order_acquire); }
  bool has_pending_of(const CallGroup& group) const;
  // Without the lock, one thread at a time: puts those on their streams that can be.
  // `collectives`: of the same communicator.
  void enqueue_pending(const IsPending& collectives);
  // The same, after the collectives: what comes behind them.
  void enqueue_ends(const IsPending& collectives);

  // Completes those that have ended. True when one has.
  bool poll();
  // As DeviceStreams::fail_all.
  bool fail_all(const Status& status, bool at_once);
  // The communicator ends, and no other thread uses it: kernels that will not end by themselves
  // tell their ends.
  void tell_ends();

  bool is_empty() const { return count_ == 0; }
  const Request* first() const;
  Request* first_detached() const;
  // Of all that have not ended, as often as there are messages.
  void collect_peers(std::vector<Rank>* peers) const;
  // Whether a peer receives a message of this rank on its device, or has sent one from there, and
  // no message of this rank on its device is the other end.
  bool waits_on_device(Rank peer, bool sends) const;
  // In a child made by fork.
  void leave_to_child();

 private:
  // The end of the latest call with each peer in each direction.
  struct PairEnd {
    Rank peer = 0;
    bool sends = false;
    std::shared_ptr<StreamEvent> end;
  };
  // What the calls in no graph, or those of one graph, share.
  struct Chain {
    WordsPool words;
    std::vector<PairEnd> ends;
    GraphOrder::Kept kept;  // of one graph
  };
  // The messages of one kernel.
  struct Batch {
    std::vector<Request*> requests;  // nullptr: it is complete
    std::vector<StreamMessage> messages;
    std::shared_ptr<const CallGroup> group;
    std::vector<cuda::Stream> streams;  // of the caller; the first one leads. Empty: none
    std::unique_ptr<MessageCall> call;
    std::vector<size_t> lasts;  // of each pair and direction, once it is enqueued
    std::shared_ptr<MessageWatch> watch;
    std::shared_ptr<GraphWatches> graph;
    std::shared_ptr<Chain> chain;
    const char* function = "";
    StreamWords words;
    size_t own_stream = 0;  // without a stream of the caller's: the number of the library's
    cuda::Stream kernel_stream = nullptr;
    Capture capture;        // of the caller's
    StreamLease forked_to;  // until its end is enqueued
    bool is_forked = false;
    bool is_being_enqueued = true;
    bool is_open = false;       // its end is not enqueued yet
    bool by_counters = false;   // nor will be, unless the communicator fails
    bool is_abandoned = false;  // it has been, after that

    bool on_stream() const { return !streams.empty(); }
    // Its end must be told, since the communicator has failed.
    bool must_be_abandoned() const {
      return (is_open || by_counters) && !is_abandoned && !is_being_enqueued;
    }
  };

  // What keeps pending messages from being enqueued, by pair and direction.
  struct Holds;
  size_t pair_of(const Request& request) const;
  // Held by batches and earlier messages of its pair alone.
  static bool is_single(const Request& request) {
    return !request.device->on_stream && request.device->group == nullptr;
  }
  void add_pending(Request& request);
  void clear_pending();
  // Of batches, by pair and direction. While it is the same, no single message can be enqueued that
  // could not before.
  size_t count_unfinished() const;
  Holds look_at_batches() const;
  std::vector<bool> find_held() const;
  // Of two messages without a stream.
  bool may_share_kernel(const Request& a, const Request& b) const;
  Batch* take_batch(const IsPending& collectives);

  // Without the lock.
  Status enqueue(Batch& batch);
  Status find_chain(Batch& batch);
  Status choose_stream(Batch& batch);
  Status make_call(Batch& batch);
  Status enqueue_kernel(Batch& batch);
  Status enqueue_end(Batch& batch);
  // The stream of the kernel comes after earlier calls with the same peers, also those in graphs.
  Status follow_pairs(const Batch& batch, cuda::Stream stream);
  // What follows with these peers comes after the stream, as far as graphs are concerned.
  Status end_pairs(const Batch& batch, cuda::Stream stream);
  void abandon(Batch& batch);

  void enqueued(Batch& batch, const Status& status);
  void complete(Batch& batch, const Status& status);
  void complete_one(Request*& request, const Status& status);
  void remove(const Batch& batch);

  CommState& state_;
  Requests& requests_;
  StreamParts parts_;  // once it is ready
  std::atomic<bool> has_pending_{false};

  std::vector<Request*> pending_;       // in the order of the calls
  std::vector<size_t> single_pending_;  // of these, by pair and direction
  size_t other_pending_ = 0;            // the rest of them
  size_t seen_unfinished_ = 0;          // at the latest look
  std::vector<std::unique_ptr<Batch>> batches_;
  size_t count_ = 0;                     // of the messages that are not complete
  std::vector<bool> own_streams_;        // whether a batch uses it
  std::vector<StreamWords> words_back_;  // of calls that have ended
  // Of the thread that enqueues.
  std::shared_ptr<Chain> chain_ = std::make_shared<Chain>();
  GraphChains<Chain> graphs_;
  std::map<std::pair<Rank, bool>, GraphOrder> orders_;  // of pairs that have been in graphs
};

}  // namespace weir::comm
