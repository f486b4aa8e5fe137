// SPDX-License-Identifier: Apache-2.0
// DeviceWindow: memory of the program's own, on the devices of all ranks of a communicator, that
// each rank reaches. Collectives whose buffers lie in windows at the same places on all ranks use
// them where they lie (StreamProgram).
//
// All ranks make it together, in three steps, between which each rank sends what it has to all
// others, as of StreamSetup. That may wait for the device, and so does the end of its mappings.
// Made by one thread; then immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/process_number.h"
#include "core/base/types.h"
#include "core/comm/stream/reach.h"
#include "core/control/network.h"
#include "cuda/driver.h"

namespace weir::comm {

class DeviceWindow {
 public:
  struct Config {
    Rank rank = 0;
    Rank rank_count = 0;
    cuda::Context context = nullptr;      // of the communicator's device
    control::Network* network = nullptr;  // outlives the making
    uint64_t number = 0;                  // the same on all ranks, and of no other window
  };
  // What each rank tells the others. Crosses the wire.
  struct Entry {
    uint32_t ok;  // 1: this rank can take part so far
    uint32_t zero;
    uint64_t bytes;
    ProcessNumber process;
    DeviceRange range;
  };
  // A place in a window, the same on all ranks.
  struct Place {
    std::shared_ptr<const DeviceWindow> window;  // empty: it lies in none
    uint64_t offset = 0;
  };

  // `wanted`: false where this rank has no such memory, or does not want it to be used; it takes
  // part in the steps all the same.
  DeviceWindow(const cuda::Driver& driver, const Config& config, void* memory, uint64_t bytes,
               bool wanted);
  // The mappings end; no stream uses them any more.
  ~DeviceWindow();
  DeviceWindow(const DeviceWindow&) = delete;
  DeviceWindow& operator=(const DeviceWindow&) = delete;

  const Entry& begin();
  // With the entries of all ranks. False: this rank does not reach all of it; `reason`, if it is
  // this rank's.
  bool connect(const std::vector<Entry>& all);
  // Once all ranks have told whether they can.
  void connected() { offers_.reset(); }

  const std::string& reason() const { return reason_; }
  uint64_t number() const { return config_.number; }
  // Whether the range lies in it, on all ranks if it is at this offset there. Not once the memory
  // that was registered has been freed, whatever lies there now: peers may still have what it was.
  bool holds(const void* memory, uint64_t bytes, uint64_t* offset) const;
  char* at(Rank rank, uint64_t offset) const { return addresses_[rank] + offset; }

 private:
  // Kernels read 16 bytes at a time where all ranks' buffers allow it.
  static constexpr uint64_t kAlign = 16;

  const cuda::Driver& driver_;
  const Config config_;
  char* const memory_;
  unsigned long long buffer_ = 0;  // CUDA's number of the allocation in which it begins
  bool buffer_number(unsigned long long* number) const;
  uint64_t bytes_;  // on the rank that has the least
  std::unique_ptr<Offers> offers_;
  Entry mine_{};
  std::string reason_;
  std::vector<char*> addresses_;
  struct Mapped {
    ProcessNumber owner;
    DeviceRange range;
  };
  std::vector<Mapped> mapped_;
};

}  // namespace weir::comm
