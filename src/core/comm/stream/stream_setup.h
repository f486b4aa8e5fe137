// SPDX-License-Identifier: Apache-2.0
// StreamSetup: makes a communicator's StreamMemory, which all its ranks do together, in three
// steps. Between the steps each rank sends what it has to all others, by whatever way they have; no
// step waits for another rank, but for the descriptor that rank 0 has offered.
//
// It may wait for the device: it is used while no stream waits for a rank of this communicator. One
// thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/process_number.h"
#include "core/base/status.h"
#include "core/comm/stream/direct_choice.h"
#include "core/comm/stream/reach.h"
#include "core/comm/stream/stream_memory.h"
#include "core/control/network.h"
#include "core/graph/device_ways.h"

namespace weir::comm {

class StreamSetup {
 public:
  struct Config {
    const char* function = "";  // of the program's call, for texts
    Rank rank = 0;
    Rank rank_count = 0;
    int device = 0;               // of this rank
    bool in_one_process = false;  // all ranks are
    DirectChoice choice = DirectChoice::kNoCuda;
    control::Network* network = nullptr;  // outlives this object; nullptr: there is one rank
    // Of the devices of all ranks, the same on these; nullptr: not known.
    std::shared_ptr<const graph::DeviceWays> links;
    bool deterministic = false;
  };

  // What each rank tells the others. Crosses the wire.
  struct Entry {
    uint32_t ok;       // 1: it can take part so far
    uint32_t kernels;  // 1: it has them
    uint64_t slot_bytes;
    uint64_t message_slot_bytes;
    uint64_t context;      // in its process
    uint32_t connections;  // hardware queues of its device; 0: without an end
    DirectChoice choice;
    ProcessNumber process;
    StreamFlagsKey key;  // of rank 0's flags
    DeviceRange scratch;
  };

  // For a process that uses CUDA.
  explicit StreamSetup(const Config& config);
  ~StreamSetup();
  StreamSetup(const StreamSetup&) = delete;
  StreamSetup& operator=(const StreamSetup&) = delete;

  // Allocates this rank's scratch and, on rank 0, makes the flags.
  const Entry& begin();
  // With the entries of all ranks: maps what is the others'. True: this rank can take part; else
  // `reason`, if it is this rank's.
  //
  // Ranks of one process that share a device share its hardware queues, where one rank's wait may
  // stand before what another rank must do. With fewer queues than such ranks all ranks get an
  // error (kInvalidUsage), if WEIR_DIRECT=1 demands it; else none of them can take part wherever
  // ranks share a device so.
  Result<bool> connect(const std::vector<Entry>& all);
  // Once all ranks have told whether they can: the memory, or empty where one of them cannot.
  std::shared_ptr<StreamMemory> end(bool all_can);

  // Why this rank cannot take part or, of a rank that can, why it has no kernels; "".
  const std::string& reason() const { return reason_; }

 private:
  bool prepare(uint64_t scratch_bytes);
  bool allocate(uint64_t bytes);
  // Other processes need access to what is made here.
  bool is_for_others() const { return !config_.in_one_process && config_.network != nullptr; }
  bool find_flags(const StreamFlagsKey& key);
  void withdraw();

  const Config config_;
  std::shared_ptr<StreamMemory> memory_;
  Entry mine_{};
  bool offered_ = false;
  Offers offers_;  // of scratch
  std::string reason_;
};

}  // namespace weir::comm
