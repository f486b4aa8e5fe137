// SPDX-License-Identifier: Apache-2.0
// Forwarding: the way of a new communicator to the real NCCL. The ranks have met in a communicator of
// Weir's. There they tell each other what they can (choice.h); when the choice is the real NCCL, every
// rank starts it, and the news of how that went is exchanged again and again until all are done or one
// has failed (real_start.h). Then the communicator that they met in, which is whole, does the work
// instead. What is made from a communicator of the real NCCL goes the same way.
//
// A value; the functions wait for other ranks and are called once, on any thread.
#pragma once

#include <string>
#include <vector>

#include "nccl/comm.h"
#include "nccl/outcome.h"
#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {

class Meeting;
struct RealStart;

class Forwarding {
 public:
  // Keeps what the real library is to be given: the caller's configuration (checked; NULL: none) as
  // it is, with its strings.
  Forwarding(const ncclConfig_t* given, int device);

  // What follows is collective over `weir`. Success with comm.real(): the real NCCL does the work,
  // and `weir` has served. Success without: `weir` does it. An error is one on all ranks.

  // A new one, for which the ranks met at `id`. The real library is given `id_count` ids of its own,
  // from as many ranks, so that they share its work of meeting.
  Outcome agree(const char* function, Comm& comm, weir_comm_t weir, const weir_unique_id_t& id,
                size_t id_count) const;

  // One that grows from `parent` (empty: this rank is new), for which they met at `id`.
  Outcome grow(const char* function, const Parent& parent, Comm& comm, weir_comm_t weir,
               const weir_unique_id_t& id) const;

  // Without `excluded` of the ranks of `parent`; `id` as above.
  Outcome shrink(const char* function, const Parent& parent, std::vector<int> excluded, int flags,
                 Comm& comm, weir_comm_t weir, const weir_unique_id_t& id) const;

  // Collective over `all`, the ranks of `parent`, which met at `id`; `weir` is that of the new one's, which
  // comes of it; `comm` and `weir` nullptr: the color is NCCL_SPLIT_NOCOLOR.
  Outcome split(const char* function, const Parent& parent, int color, int key, weir_comm_t all,
                Comm* comm, weir_comm_t weir, const weir_unique_id_t& id) const;

  // The configuration for the real library, or nullptr; good as long as this object.
  ncclConfig_t* config(std::vector<unsigned char>* place) const;

  int device() const { return device_; }

 private:
  Outcome start_scalable(Meeting& meeting, RealStart start, size_t id_count) const;

  std::vector<unsigned char> config_;
  std::string net_name_;
  std::string comm_name_;
  bool has_net_name_ = false;
  bool has_comm_name_ = false;
  int device_;
};

}  // namespace weir::nccl
