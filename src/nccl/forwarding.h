// SPDX-License-Identifier: Apache-2.0
// Forwarding: the way of a new communicator to the real NCCL. The ranks have met in a communicator of
// Weir's. There they tell each other what they can (choice.h); when the choice is the real NCCL, rank
// 0's id of it travels there, every rank starts it, and the news of how that went is exchanged again
// and again until all are done or one has failed. Then the communicator that they met in, which is
// whole, does the work instead.
//
// A value; `agree` waits for other ranks and is called once, on any thread.
#pragma once

#include <string>
#include <vector>

#include "nccl/comm.h"
#include "nccl/outcome.h"
#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {

class Forwarding {
 public:
  // Keeps what the real library is to be given: the caller's configuration (checked; NULL: none) as
  // it is, with its strings.
  Forwarding(const ncclConfig_t* given, int device);

  // Collective over `weir`, which the ranks made with `id`. Success with comm.real(): the real NCCL
  // does the work, and `weir` has served. Success without: `weir` does it. An error is one on all
  // ranks.
  Outcome agree(const char* function, Comm& comm, weir_comm_t weir,
                const weir_unique_id_t& id) const;

  // The configuration for the real library, or nullptr; good as long as this object.
  ncclConfig_t* config(std::vector<unsigned char>* place) const;

  int device() const { return device_; }

 private:
  std::vector<unsigned char> config_;
  std::string net_name_;
  std::string comm_name_;
  bool has_net_name_ = false;
  bool has_comm_name_ = false;
  int device_;
};

}  // namespace weir::nccl
