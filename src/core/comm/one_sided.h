// SPDX-License-Identifier: Apache-2.0
// OneSided: the windows of a communicator, and how an operation on one is done: by loads and stores
// where this process maps the target's memory, otherwise by the OneSidedService of the carrier, a
// communicator of the same ranks that carries nothing else. The carrier is made with the first
// window, so that a communicator without windows does not pay for it.
//
// Every atomic on a word takes one path, since a processor's and a network's are not atomic with
// each other: it is done by a processor that maps the word, the caller's or the target's.
//
// Thread-safe, except that windows are made and ended by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/windows.h"
#include "core/comm/communicator.h"
#include "core/comm/device/device_route.h"
#include "core/comm/messages/one_sided_service.h"
#include "core/comm/requests/one_sided_call.h"
#include "core/comm/state/comm_state.h"
#include "core/comm/state/records.h"

namespace weir::comm {

class OneSided {
 public:
  static constexpr size_t kWindowsMax = 4096;

  // What this object needs of the communicator that owns the windows; outlives this object.
  struct Owner {
    CommState& state;
    const Windows& windows;
    const DeviceRoute& devices;
    Records& records;
    std::function<Status(const engine::Call&)> run;  // a collective, to its end
  };

  // `carrier` has a OneSidedService; `carrier_state` is the carrier's state.
  OneSided(Owner owner, std::unique_ptr<Communicator> carrier, CommState& carrier_state);
  ~OneSided();
  // In a child made by fork: as Communicator::leave_to_parent.
  static void leave_to_parent(std::unique_ptr<OneSided> side);
  OneSided(const OneSided&) = delete;
  OneSided& operator=(const OneSided&) = delete;

  // The communicator that carries messages; its requests are those of operations.
  Communicator& carrier() { return *carrier_; }

  // Collective; either all ranks give a `reach` or none does. A window with a `reach` does not use
  // the network's puts and gets.
  Result<const OneSidedWindow*> create(void* memory, uint64_t bytes,
                                       const OneSidedReach* reach = nullptr);
  Status destroy(const OneSidedWindow* window);
  // Not collective: see weir_window_retire.
  Status retire(const OneSidedWindow* window);
  // The number of a window of which this rank's part begins in this memory; 0: there is none.
  uint32_t window_in(const void* memory, uint64_t bytes) const;

  // If it is possible now, does the operation by loads and stores and records it.
  bool do_directly(const OneSidedCall& call, Rank target);
  // Fails without effect, or later in the request, which belongs to the carrier.
  Status start(Request& request);
  void fence(Rank target);

 private:
  bool go_directly(const OneSidedCall& call, Rank target);
  // Collects the `bytes` of every rank, by rank.
  Status gather(engine::Purpose purpose, const void* mine, size_t bytes, void* all);
  // Returns when all ranks have called it; kMismatch: for different windows.
  Status meet_to_destroy(const OneSidedWindow& window);
  Status exchange(OneSidedWindow* window, uint64_t word, bool on_device,
                  const OneSidedReach* reach);
  // The network's keys of a window that is not mapped, where the transport has puts and gets.
  Status exchange_keys(OneSidedWindow* window);
  void deregister(const OneSidedWindow& window);  // with the carrier's lock
  std::unique_ptr<OneSidedWindow> take(const OneSidedWindow* window);
  void end_watches(uint32_t count);
  // Runs an operation of this object's own to its end.
  Status run(const OneSidedCall& call);

  const Owner owner_;
  std::unique_ptr<Communicator> carrier_;
  CommState& carrier_state_;
  OneSidedService* service_;  // the carrier's
  uint32_t next_number_ = 1;
  std::vector<std::unique_ptr<OneSidedWindow>> windows_;
};

}  // namespace weir::comm
