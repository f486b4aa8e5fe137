// SPDX-License-Identifier: Apache-2.0
// DeviceStreams: the collectives of a communicator that go from device to device: each is work of
// one stream of each rank alone (core/comm/stream), on the caller's stream or one of the library's
// own. DeviceSide makes it ready, in a meeting of all ranks.
//
// A collective of zero elements is no work of a stream, and complete once it has been compared.
//
// Calls are put on their streams without the communicator's lock, since such a call to CUDA may
// wait until the stream goes on; in the order in which they were started. The chain of calls: each
// waits for the one before it, whatever its stream, since they share scratch and flags.
//
// With the communicator's lock held, but for `has_pending` and `enqueue_pending`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/device/graph_chains.h"
#include "core/comm/device/stream_parts.h"
#include "core/comm/record/start_times.h"
#include "core/comm/requests/request.h"
#include "core/comm/requests/requests.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/stream/capture.h"
#include "core/comm/stream/graph_order.h"
#include "core/comm/stream/stream_event.h"
#include "core/comm/stream/stream_setup.h"

namespace weir::comm {

class DeviceStreams {
 public:
  DeviceStreams(CommState& state, Requests& requests) : state_(state), requests_(requests) {}
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  // Whether such a collective can go from device to device at all.
  static bool can_take(const engine::Call& call);

  // ---- Getting ready: the steps of StreamSetup.
  // The first one. kUnsupported: this rank cannot take part.
  Status open(int device, control::Network* network);
  const StreamSetup::Entry& entry() const { return *entry_; }
  Status connect(const std::vector<StreamSetup::Entry>& all);
  // All ranks can; or one of them cannot.
  // `explains`: tells the way of each kind of call on standard error.
  void become_ready(std::shared_ptr<StreamOwner> owner, bool explains);
  void give_back();
  bool is_ready() const { return parts_.memory != nullptr; }
  const StreamParts& parts() const { return parts_; }
  int device() const { return device_; }

  // ---- Operations.
  void start(Request& request);
  // Those that are not on a stream yet, in order; takes them out.
  std::vector<Request*> take_pending();
  bool has_pending() const { return has_pending_.load(std::memory_order_acquire); }
  // Whether one of the group is not on its stream yet.
  bool has_pending_of(const CallGroup& group) const;
  // Without the lock, one thread at a time: puts those on their streams that can be. `comes_after`:
  // whether those of a group must wait until other calls of it are on their streams.
  void enqueue_pending(const std::function<bool(const CallGroup&)>& comes_after);
  // Completes those that have ended. True when one has.
  bool poll();
  // All that are under way fail with `status`, once their streams have passed them or, if
  // `at_once`, now, but for those that a thread is putting on a stream. True: none is left.
  bool fail_all(const Status& status, bool at_once);

  bool is_empty() const { return first_ == nullptr; }
  const Request* first() const { return first_; }
  Request* first_detached() const;
  // In a child made by fork.
  void leave_to_child();

 private:
  // The calls that follow each other: all that are in no graph, or those of one graph.
  struct Chain {
    Chain() = default;
    ~Chain();
    Chain(const Chain&) = delete;
    Chain& operator=(const Chain&) = delete;

    std::shared_ptr<Staging> words;
    std::shared_ptr<Staging> pinned;
    uint32_t number_latest = 0;
    std::shared_ptr<StreamEvent> end;  // of the latest call
    GraphOrder::Kept kept;             // of one graph
  };
  Request* next_pending(const std::function<bool(const CallGroup&)>& comes_after) const;
  // Without the lock, one thread at a time.
  Status enqueue(Request& request);
  void explain(const engine::Call& call, const std::string& way);
  // A call of no elements is numbered among the others, so that ranks which pass different counts
  // are told; nothing waits for it.
  void count_empty(const engine::Call& call, bool is_captured);
  Status find_chain(const char* function, const Capture& capture, std::shared_ptr<Chain>* chain,
                    std::shared_ptr<GraphWatches>* graph);
  Status enqueue_in(const Request& request, const char* function, cuda::Stream stream, Chain& chain,
                    const std::shared_ptr<GraphWatches>& graph,
                    std::shared_ptr<StreamWatch>* watch);
  // The stream of a call comes after the chain, and after what graphs hold of it.
  Status follow_chain(const char* function, cuda::Stream stream, Chain& chain, bool in_graph);
  // What follows comes after the call.
  Status end_chain(const char* function, cuda::Stream stream, Chain& chain, bool in_graph);
  void take_out(Request* before, Request& request);

  CommState& state_;
  Requests& requests_;
  int device_ = 0;  // of this rank
  std::unique_ptr<StreamSetup> setup_;
  const StreamSetup::Entry* entry_ = nullptr;
  ClockReading opened_;

  StreamParts parts_;  // once it is ready

  std::atomic<bool> has_pending_{false};  // and it is ready
  // Of the thread that enqueues.
  bool explains_ = false;
  std::set<std::string> explained_;
  std::shared_ptr<Chain> chain_;
  GraphChains<Chain> graphs_;
  GraphOrder order_;

  // In the order of the calls, linked by Request::next.
  Request* first_ = nullptr;
  Request* last_ = nullptr;
};

}  // namespace weir::comm
