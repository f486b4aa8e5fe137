// SPDX-License-Identifier: Apache-2.0
// Operations: all operations of a communicator that are under way: its collectives on memory of the
// host and of devices, its messages, and the one-sided operations that it carries. Polls move them.
//
// With the communicator's lock held, but for the parts' own functions that say otherwise.
#pragma once

#include <memory>
#include <vector>

#include "core/comm/collective/collective_queue.h"
#include "core/comm/device/device_side.h"
#include "core/comm/messages/messages.h"
#include "core/comm/messages/one_sided_service.h"
#include "core/comm/messages/tag_service.h"
#include "core/comm/reports/peer_reports.h"
#include "core/comm/requests/operation_status.h"
#include "core/comm/requests/requests.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/state/records.h"
#include "core/comm/state/wait.h"

namespace weir::comm {

class Operations final : public OperationStatus {
 public:
  // All outlive it.
  Operations(CommState& state, Requests& requests, const PeerReports& reports, Windows& windows,
             const DeviceRoute& devices)
      : state_(state),
        reports_(reports),
        requests_(requests),
        queue_(state, requests, windows),
        messages_(state, requests, devices),
        device_side_(state, requests, queue_) {}

  // Before all else.
  void open(std::unique_ptr<engine::Planner> planner);
  // From now on the communicator carries one-sided operations of another one, which records them.
  void open_one_sided(Requests& requests, Records& records);

  // Takes an operation over. Fails without effect, or with `failure`.
  Status start(Request& request, OperationFailure* failure);
  // True when something moved. `failure`: the communicator must fail.
  bool poll(OperationFailure* failure);
  // Lets the transport, and messages with tags, go on with what is left of complete operations.
  void tend(OperationFailure* failure);

  // Before the end: what this rank has told others of messages with tags leaves; waits for 200 ms
  // at most.
  void send_rest();

  CollectiveQueue& queue() { return queue_; }
  Messages& messages() { return messages_; }
  DeviceSide& device_side() { return device_side_; }
  OneSidedService* one_sided_service() { return service_.get(); }

  // The place at which a thread that waits for the request sleeps.
  SleepPlace sleep_place(const Request& request);

  bool any() const override;
  void collect_awaited(const Request& request, std::vector<Rank>* ranks) const override;
  void collect_awaited_by_all(std::vector<Rank>* ranks) const override;
  const Request* first_collective() const override { return queue_.first(); }
  bool is_with_device(const Request& request) const override {
    return device_side_.has(request) && !DeviceSide::waits_for_stream(request);
  }
  bool waits_for_stream(const Request& request) const override {
    return messages_.waits_for_stream(request) || DeviceSide::waits_for_stream(request);
  }
  bool is_watched(const Request& request) const override { return DeviceSide::is_watched(request); }
  std::string other_end_of(const Request& request) const override;
  std::string calls_on_devices() const override;
  uint64_t finished_sequence() const override { return queue_.finished_sequence(); }
  const engine::LaneRun::Header& own_header() const override { return queue_.lane_run().header(); }
  const engine::LaneRun::Header& other_header() const override {
    return queue_.lane_run().other_header();
  }
  Rank other_rank() const override { return queue_.lane_run().other_rank(); }
  Wait describe_wait(const Request& request) const override;
  void excuse(Rank rank) override;
  void fail_all(const Status& status) override;

 private:
  bool poll_one_sided(OperationFailure* failure);
  Status start_tagged(Request& request, OperationFailure* failure);
  bool poll_tagged(OperationFailure* failure);
  void collect_may_send(std::vector<Rank>* ranks) const;  // the ranks that have not left

  CommState& state_;
  const PeerReports& reports_;
  Requests& requests_;
  CollectiveQueue queue_;
  Messages messages_;
  DeviceSide device_side_;
  std::unique_ptr<TagService> tags_;  // from the first message with a tag on
  std::unique_ptr<OneSidedService> service_;
  Requests* service_requests_ = nullptr;  // where there is one
  std::vector<Rank> awaited_;  // of a thread that goes to sleep; kept to avoid allocation
};

}  // namespace weir::comm
