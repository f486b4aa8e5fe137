// SPDX-License-Identifier: Apache-2.0
// MissingRanks: the text of the error that names the ranks which did not connect in time. One
// thread at a time.
#pragma once

#include <cstdint>
#include <string>

namespace weir::net {

class MissingRanks {
 public:
  // False: there are already too many to name this one, so no details on it are needed.
  bool add(uint32_t rank);
  // "timed out: ranks 1, 3 of 8 are not connected to rank 0"
  std::string text(uint32_t own_rank, uint32_t rank_count) const;

 private:
  static constexpr uint32_t kNamedMax = 16;
  uint32_t count_ = 0;
  std::string ranks_;
};

}  // namespace weir::net
