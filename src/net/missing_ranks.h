// SPDX-License-Identifier: Apache-2.0
// MissingRanks: the words of the error that tells which ranks did not come to a meeting. One thread at a
// time.
#pragma once

#include <cstdint>
#include <string>

namespace weir::net {

class MissingRanks {
 public:
  // False: there are too many for this one to be named, and nothing needs to be told about it.
  bool add(uint32_t rank);
  // "timed out: ranks 1, 3 of 8 are not connected to rank 0"
  std::string text(uint32_t own_rank, uint32_t rank_count) const;

 private:
  static constexpr uint32_t kNamedMax = 16;
  uint32_t count_ = 0;
  std::string ranks_;
};

}  // namespace weir::net
