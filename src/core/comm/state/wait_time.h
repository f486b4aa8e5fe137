// SPDX-License-Identifier: Apache-2.0
// WaitTime: how long the present wait has lasted, and for how long of it this thread did not run:
// that time does not count as a silence of a peer. Used by one thread, or with a lock.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weir::comm {

class WaitTime {
 public:
  // A wait that began at `began_ns` is checked now; it ends `timeout_ns` after its beginning.
  void note(uint64_t began_ns, uint64_t now_ns, uint64_t timeout_ns) {
    if (began_ns_ != began_ns) {
      began_ns_ = began_ns;
      stalled_ns_ = 0;
      looked_ns_ = now_ns;
    }
    const uint64_t gap_ns = now_ns - looked_ns_;
    const uint64_t usual_ns = timeout_ns / 4;
    if (gap_ns > usual_ns) stalled_ns_ += gap_ns - usual_ns;
    looked_ns_ = now_ns;
  }

  uint64_t began_ns() const { return began_ns_; }
  uint64_t looked_ns() const { return looked_ns_; }  // when `note` was called last
  uint64_t stalled_ns() const { return stalled_ns_; }
  // How long a peer has been silent that was last heard at `heard_ns`, as far as this thread ran.
  uint64_t silent_ns(uint64_t heard_ns, uint64_t now_ns) const {
    const uint64_t since_ns = std::max(heard_ns, began_ns_) + stalled_ns_;
    return now_ns > since_ns ? now_ns - since_ns : 0;
  }

 private:
  uint64_t began_ns_ = 0;
  uint64_t looked_ns_ = 0;
  uint64_t stalled_ns_ = 0;
};

}  // namespace weir::comm
