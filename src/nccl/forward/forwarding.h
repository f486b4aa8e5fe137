// SPDX-License-Identifier: Apache-2.0
// Forwarding: how the ranks of a new communicator agree on the real NCCL. They are connected by a
// communicator of Weir's, over which they tell each other what they can do (choice.h). When the
// choice is the real NCCL, every rank starts it, and they exchange how far they are until all are
// done or one has failed (real_start.h). After a failure, Weir's communicator, which is complete,
// does the work instead. Communicators that are made from one of the real NCCL's are started in the
// same way.
//
// A value; the functions wait for other ranks and are called once, on any thread.
#pragma once

#include <string>
#include <vector>

#include "nccl/base/outcome.h"
#include "nccl/comm/comm.h"
#include "weir/nccl.h"
#include "weir/weir.h"

namespace weir::nccl {

class AbortableCollectives;
struct RealStart;

class Forwarding {
 public:
  // Keeps the caller's configuration (checked; NULL: none) with its strings, as the real library is
  // to get it.
  Forwarding(const ncclConfig_t* given, int device);

  // The following functions are collective over `weir`. Success with comm.real(): the real NCCL
  // does the work, and `weir` is not needed any more. Success without: `weir` does it. All ranks
  // return the same error.

  // A new communicator, whose ranks met at `id`. The real library is given `id_count` ids of its
  // own, from as many ranks, which share the work of connecting the others.
  Outcome agree(const char* function, Comm& comm, weir_comm_t weir, const weir_unique_id_t& id,
                size_t id_count) const;

  // One that grows from `parent` (empty: this rank is new); its ranks met at `id`.
  Outcome grow(const char* function, const Parent& parent, Comm& comm, weir_comm_t weir,
               const weir_unique_id_t& id) const;

  // One of the ranks of `parent` without those in `excluded`; `id` as above.
  Outcome shrink(const char* function, const Parent& parent, std::vector<int> excluded, int flags,
                 Comm& comm, weir_comm_t weir, const weir_unique_id_t& id) const;

  // Collective over `all`, the ranks of `parent`, which met at `id`. `weir` is split from `all` for
  // the new communicator; `comm` and `weir` nullptr: the color is NCCL_SPLIT_NOCOLOR.
  Outcome split(const char* function, const Parent& parent, int color, int key, weir_comm_t all,
                Comm* comm, weir_comm_t weir, const weir_unique_id_t& id) const;

  // The configuration for the real library, which lies in `bytes`, or nullptr; valid as long as
  // this object lives.
  ncclConfig_t* config(std::vector<unsigned char>* bytes) const;

  int device() const { return device_; }

 private:
  Outcome start_scalable(AbortableCollectives& collectives, RealStart start, size_t id_count) const;

  std::vector<unsigned char> config_;
  std::string net_name_;
  std::string comm_name_;
  bool has_net_name_ = false;
  bool has_comm_name_ = false;
  int device_;
};

}  // namespace weir::nccl
