// SPDX-License-Identifier: Apache-2.0
// Neighbors: the ranks of one communicator in one process. Those that use the streams of one device
// share its hardware queues (CUDA_DEVICE_MAX_CONNECTIONS), in which the wait of one rank may stand
// before the work of another, for which it waits. Their calls need no more than one queue if they
// are in one group; otherwise at least as many queues as ranks.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "nccl/base/outcome.h"
#include "nccl/host/operation.h"

namespace weir::nccl {

class Neighbors {
 public:
  // A rank and its communicator's device.
  using Rank = std::pair<int, int>;
  // The object of the communicator with this number, of whose ranks these are in this process.
  static std::shared_ptr<Neighbors> find(uint64_t number, const std::vector<Rank>& ranks);

  // The thread made the rank's communicator.
  void note_maker(int rank, std::thread::id thread);
  // The calling thread makes a call for the rank, on a stream of this context.
  void note_call(int rank, cuda::Context context);
  // Other ranks whose latest calls were on streams of this context; of those that have made none,
  // those with the rank's device.
  std::vector<int> sharing(int rank, cuda::Context context) const;
  // For the text of a deadline: which ranks share the hardware queues of the rank's latest call;
  // "": none.
  std::string hint(const cuda::Driver& driver, int rank) const;
  // Other ranks whose latest calls were made by the calling thread; of those that have made none,
  // those whose communicators it made.
  std::vector<int> of_this_thread(int rank) const;

 private:
  struct Place {
    int device = 0;
    cuda::Context context = nullptr;  // of the latest call
    std::thread::id thread;           // its thread; none: there is no such call
    std::thread::id maker;
  };
  mutable std::mutex lock_;
  std::map<int, Place> places_;  // by rank
};

// The operations of one group, as their ranks' neighbors see them.
class NeighborsInGroup {
 public:
  NeighborsInGroup(const cuda::Driver& driver, const std::vector<Operation>& operations);

  // An error where an operation waits for a neighbor that shares too few queues with it and whose
  // own operation is not submitted together with it: it is in no group with it, or is captured into
  // another graph. `failed`: the communicator whose operation it is.
  Outcome check(const std::vector<Operation>& operations, std::shared_ptr<Comm>* failed) const;

  // How many calls of a communicator's operations may be in flight: a launch queue has room for
  // 1024, of which neighbors have their share. 0: any number, since the calling thread also brings,
  // later, the work of others for which it would wait.
  size_t calls_in_flight_max(const Comm& comm) const;

 private:
  struct Member {
    cuda::Context context = nullptr;
    uint64_t capture = 0;  // 0: none
  };
  using Key = std::pair<const Neighbors*, int>;

  uint32_t queue_count_;
  std::map<Key, Member> members_;
};

}  // namespace weir::nccl
