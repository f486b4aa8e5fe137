// SPDX-License-Identifier: Apache-2.0
// HealthReport: what a rank tells its peers of itself where they share no memory: its state, its
// latest call, and the ranks that it waits for. It is shown as a notice of the control network.
// Values; thread-safe.
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WHRP"
//        4      1  version, 2
//        5      1  state: engine::RankState, from kHealthy on
//        6      1  code: weir::Code; 0 unless the state is kFailed or above
//        7      1  1 while an operation waits, else 0
//        8      4  beat: counts what was shown
//       12      4  mark of the latest collective that the rank called
//       16      8  its sequence number; 0: none was called
//       24      8  what it is, as engine::pack_what
//       32      8  its count
//       40      8  sequence number of the latest collective that the rank has finished
//       48      2  number of ranks waited for, at most kWaitedRanksMax
//       50      2  number of ranks blamed, at most kBlamedMax
//       52      2  bytes of text, at most kTextBytesMax
//       54      1  1: the rank has destroyed the communicator, else 0
//       55      1  zero
//       56      2  per rank waited for; then 2 per rank blamed; then the text
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/types.h"
#include "core/engine/control.h"

namespace weir::comm {

struct HealthReport {
  static constexpr size_t kWaitedRanksMax = 32;
  static constexpr size_t kBlamedMax = 64;
  static constexpr size_t kTextBytesMax = 768;
  static constexpr size_t kBytesMax = 56 + 2 * (kWaitedRanksMax + kBlamedMax) + kTextBytesMax;

  engine::RankState state = engine::RankState::kHealthy;
  uint8_t code = 0;
  bool waits = false;
  bool gone = false;  // it has destroyed the communicator
  uint32_t beat = 0;
  uint32_t mark = 0;
  uint64_t sequence = 0;
  uint64_t what = 0;
  uint64_t count = 0;
  uint64_t finished = 0;
  std::vector<Rank> waited;  // the first of them
  std::vector<Rank> blamed;  // the first of them; why the rank has failed
  std::string text;          // of its failure; cut where it is longer than there is room for

  bool operator==(const HealthReport&) const = default;
};

// Writes at most HealthReport::kBytesMax bytes and returns how many.
size_t encode(const HealthReport& report, unsigned char* out);
// False: these bytes are no health report of a rank of `rank_count`. Control characters in the text
// become spaces.
bool decode(const unsigned char* bytes, size_t byte_count, Rank rank_count, HealthReport* report);

}  // namespace weir::comm
