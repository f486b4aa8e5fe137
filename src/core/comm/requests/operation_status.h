// SPDX-License-Identifier: Apache-2.0
// The interface through which the health of a communicator learns about the operations under way,
// and ends them. With the communicator's lock held.
#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/record/recorder.h"
#include "core/comm/requests/request.h"
#include "core/engine/lane_run.h"

namespace weir::comm {

// An operation has failed, and the communicator with it.
struct OperationFailure {
  bool happened() const { return !status.ok(); }

  Status status;                     // kMismatch without a text: another rank made another call
  const Request* request = nullptr;  // nullptr: none of this rank
  Rank peer = 0;                     // then the rank whose messages failed
};

class OperationStatus {
 public:
  virtual ~OperationStatus() = default;

  virtual bool any() const = 0;
  // Ranks that the request needs in order to continue; ascending.
  virtual void collect_awaited(const Request& request, std::vector<Rank>* ranks) const = 0;
  // The ranks that all operations under way need: a peer must not conclude that this rank does not
  // need some rank because the operation that is waited for first does not. Allocates nothing once
  // `ranks` has room for every rank twice.
  virtual void collect_awaited_by_all(std::vector<Rank>* ranks) const = 0;
  // The collective that runs or is next; nullptr: there is none.
  virtual const Request* first_collective() const = 0;
  // A library such as NCCL runs it: the ranks that it waits for are unknown.
  virtual bool is_with_device(const Request& request) const = 0;
  // A message, or a collective on a device, that its stream has not reached.
  virtual bool waits_for_stream(const Request& request) const = 0;
  // A thread of its own watches its deadline.
  virtual bool is_watched(const Request&) const { return false; }
  // Of a message whose other end lies in another kind of memory: what is known of that; else "".
  virtual std::string other_end_of(const Request&) const { return ""; }
  // Of collectives on memory of devices that other ranks have called, and this rank has not; or "".
  virtual std::string calls_on_devices() const { return ""; }
  // The latest collective that was finished.
  virtual uint64_t finished_sequence() const = 0;
  // Where no memory is shared: the header of this rank's latest collective, and one of a peer's
  // that did not fit.
  virtual const engine::LaneRun::Header& own_header() const = 0;
  virtual const engine::LaneRun::Header& other_header() const = 0;
  virtual Rank other_rank() const = 0;
  // What the request waits for, without the ranks and the time since when.
  virtual Wait describe_wait(const Request& request) const = 0;
  // The rank has ended or left: operations that only need its agreement continue without it.
  virtual void excuse(Rank) {}
  // Ends all of them.
  virtual void fail_all(const Status& status) = 0;
};

}  // namespace weir::comm
