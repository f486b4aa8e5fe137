// SPDX-License-Identifier: Apache-2.0
// One-sided operations of a communicator: windows, puts, signals and waits.
//
// Each rank has counters of signals, one for every context, signal index and origin. Windows and
// counters are windows of the C API: a put is a weir_put_signal that adds one to the peer's
// counter, ordered after everything that this rank has put there before. A wait subtracts the
// requested number from a counter. Memory that this process reaches (its own ranks', and what
// ncclMemAlloc gave in processes of the same machine) is found here; the core writes it directly
// and uses messages for all other memory.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "nccl/host/gate.h"
#include "nccl/host/symmetric.h"
#include "weir/weir.h"

namespace weir::comm {
class DeviceWindow;
}

namespace weir::nccl {

class OneSided;

// A window as this rank sees it.
struct SharedWindow {
  struct Peer {
    unsigned char* address = nullptr;  // nullptr: it is reached by messages
    std::unique_ptr<PeerGate> gate;    // of other ranks' memory that has an address
    uint64_t bytes = 0;
    std::unique_ptr<Mapping> mapping;
    bool on_device = false;  // where no processor reaches it, so that nothing can be put there
  };
  std::shared_ptr<Allocation> owner;  // of it, where ncclMemAlloc gave it
  std::shared_ptr<cuda::DeviceMemory> device_owner;
  std::shared_ptr<Gate> gate;  // empty: no other rank writes to this rank's part directly
  std::vector<Peer> peers;
  bool everywhere = false;  // every rank reaches the memory of all
  uint64_t reachable = 0;   // Communicator::add_reachable's number, where collectives use it
  // On devices, where collectives use it there.
  std::shared_ptr<const comm::DeviceWindow> on_devices;

  // A put in progress holds it shared, so that the window ends before or after the put.
  std::shared_mutex ending;
  weir_window_t weir = nullptr;  // nullptr: it has ended
};

struct Awaited {
  int peer;
  uint32_t signal;
  uint32_t context;
  uint64_t count;
};

// Adds to the same signal's count, where the list has it.
void add_awaited(std::vector<Awaited>* all, const Awaited& one);

// The checked arguments of a call.
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
};

class OneSided {
 public:
  // Collective; waits for the other ranks. Does nothing where it is open already.
  static Outcome open(const char* function, Comm& comm);

  // Collective; waits for the other ranks.
  Outcome add_window(const char* function, Comm& comm, void* memory, size_t bytes,
                     std::shared_ptr<SharedWindow>* made);
  // Local. Returns when no rank writes to the memory any more.
  Outcome end_window(const char* function, const Comm& comm, SharedWindow& window) const;

  uint32_t contexts() const { return contexts_; }
  uint32_t signals() const { return signals_; }

  // Starts a put; with request == nullptr, runs it to its end.
  Outcome put(const char* function, const Comm& comm, const OneSidedCall& call,
              weir_request_t* request) const;
  Outcome wait(const char* function, const Comm& comm, const OneSidedCall& call);

 private:
  OneSided() = default;

  // Makes `window` of the range, and finds the peers' memory of it.
  Outcome share(const char* function, Comm& comm, void* memory, size_t bytes,
                SharedWindow* window) const;
  // Lets no other rank write to the parts directly, and returns when none does any more.
  Outcome keep_out(const char* function, const Comm& comm,
                   const std::vector<std::shared_ptr<Gate>>& gates) const;
  // The communicator ends, and with it its windows.
  static void leave(const Comm& comm);
  Outcome start_put(const char* function, const Comm& comm, const OneSidedCall& call,
                    weir_request_t* request) const;
  Outcome put_outcome(const char* function, const Comm& comm, const OneSidedCall& call,
                      weir_result_t result) const;
  size_t counter_index(int origin, uint32_t context, uint32_t signal) const;
  // Takes the signals if all are there; else names the ranks that have not sent theirs.
  bool take(const std::vector<Awaited>& awaited, std::vector<int>* missing);
  bool take_late(const Comm& comm, const std::vector<Awaited>& awaited);

  int rank_ = 0;
  int rank_count_ = 0;
  uint32_t contexts_ = 1;
  uint32_t signals_ = 1;
  SharedWindow counters_;        // ends with the communicator
  std::mutex taking_;            // guards taken_
  std::vector<uint64_t> taken_;  // of each counter, by waits
};

}  // namespace weir::nccl
