// SPDX-License-Identifier: Apache-2.0
// One-sided operations of a communicator: windows, puts, signals and waits.
//
// Each rank has counters of signals, one for every context, signal index and origin. A put writes to
// the peer's window and then adds one to its counter; a wait takes as many from it as it was told to.
// Memory that this process can reach (its own ranks', and what ncclMemAlloc gave in processes of the
// same machine) is written directly and the peer need not do anything. All other goes by a courier.
// Either way a put has arrived when `finish` returns, so that what follows it does so at the peer, too.
//
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "nccl/comm.h"
#include "nccl/courier.h"
#include "nccl/outcome.h"
#include "nccl/symmetric.h"

namespace weir::nccl {

class OneSided;

// A window as this rank sees it.
struct SharedWindow {
  struct Peer {
    unsigned char* address = nullptr;  // nullptr: only the courier reaches it
    uint64_t bytes = 0;
    std::unique_ptr<Mapping> mapping;
  };
  uint64_t number = 0;
  unsigned char* memory = nullptr;  // this rank's
  uint64_t bytes = 0;
  std::shared_ptr<Allocation> owner;  // of it, where ncclMemAlloc gave it
  std::vector<Peer> peers;
  bool everywhere = false;  // every rank reaches the memory of all
  uint64_t reachable = 0;   // Communicator::add_reachable's number, where collectives go by it
};

struct Awaited {
  int peer;
  uint32_t signal;
  uint32_t context;
  uint64_t count;
};

// Adds to the same signal's count, where the list has it.
void add_awaited(std::vector<Awaited>* all, const Awaited& one);

// What a call asks for, checked.
struct OneSidedCall {
  std::shared_ptr<OneSided> state;
  // A put: to `peer`; no window: a signal only.
  bool wait = false;
  int peer = 0;
  const void* data = nullptr;
  uint64_t bytes = 0;
  std::shared_ptr<SharedWindow> window;
  uint64_t offset = 0;
  uint32_t signal = 0;
  uint32_t context = 0;
  // A wait:
  std::vector<Awaited> awaited;
  // While it runs:
  std::shared_ptr<Parcel> parcel;
  uint64_t record = 0;  // its number in the recorder
};

class OneSided : private Courier::Receiver {
 public:
  // Collective; waits for the other ranks. Does nothing where it is open already.
  static Outcome open(const char* function, Comm& comm);
  ~OneSided() override;

  // Collective; waits for the other ranks.
  Outcome add_window(const char* function, Comm& comm, void* memory, size_t bytes,
                     std::shared_ptr<SharedWindow>* made);
  // Waits until nothing is being received into it.
  void remove_window(const SharedWindow& window);

  uint32_t contexts() const { return contexts_; }
  uint32_t signals() const { return signals_; }
  void abort();

  // The two halves of an operation: what can be done at once, and what must be waited for.
  Outcome begin(const char* function, const Comm& comm, OneSidedCall& call);
  Outcome finish(const char* function, const Comm& comm, OneSidedCall& call);

 private:
  OneSided() = default;

  unsigned char* place(uint64_t window, uint64_t offset, uint64_t bytes) override;
  void arrived(uint64_t window) override;
  bool signal(int origin, uint32_t context, uint32_t signal) override;

  Outcome reach(const char* function, Comm& comm, void* memory, size_t bytes,
                const std::shared_ptr<Allocation>& owner, std::vector<SharedWindow::Peer>* peers,
                bool* everywhere);
  size_t counter_index(int origin, uint32_t context, uint32_t signal) const;
  // Takes the signals if all are there; else names the ranks that have not sent theirs.
  bool take(const std::vector<Awaited>& awaited, std::vector<int>* missing);
  Outcome stopped(const char* function, const Comm& comm) const;
  Outcome wait_for_parcel(const char* function, const Comm& comm, const OneSidedCall& call);
  Outcome wait_for_signals(const char* function, const Comm& comm, const OneSidedCall& call);

  int rank_ = 0;
  int rank_count_ = 0;
  uint32_t contexts_ = 1;
  uint32_t signals_ = 1;
  std::shared_ptr<Allocation> counters_;           // this rank's
  std::vector<SharedWindow::Peer> peer_counters_;  // by rank
  std::mutex taking_;                              // guards taken_
  std::vector<uint64_t> taken_;                    // of each counter, by waits

  std::mutex lock_;  // guards what follows
  struct Known {
    unsigned char* memory;
    uint64_t bytes;
    int receiving;
  };
  std::unordered_map<uint64_t, Known> windows_;
  uint64_t next_window_ = 1;
  std::condition_variable received_;
  std::unique_ptr<Courier> courier_;  // set once, before any window that needs it
};

}  // namespace weir::nccl
