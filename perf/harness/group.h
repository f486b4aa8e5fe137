// SPDX-License-Identifier: Apache-2.0
// The communicator on which the operation is performed: that of all ranks, or of a group of them
// (split.h). Not thread-safe.
#pragma once

#include <string>

#include <weir/weir.h>

#include "perf/harness/split.h"

namespace weir::perf {

// The ranks with which this one performs the operation: those of its group, or all.
class Group {
 public:
  Group() = default;
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  // Collective over `all`. Returns "", or the error.
  std::string make(weir_comm_t all, int rank, const Split& split, int process);
  // Collective over the group. Returns "", or the error.
  std::string release();

  weir_comm_t comm() const { return comm_; }
  int rank() const { return rank_; }
  int rank_count() const { return rank_count_; }

 private:
  weir_comm_t comm_ = nullptr;
  bool owned_ = false;
  int rank_ = 0;
  int rank_count_ = 1;
};

}  // namespace weir::perf
