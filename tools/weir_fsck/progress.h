// SPDX-License-Identifier: Apache-2.0
// Progress: shows the progress of a long read on standard error: one rewritten line on a terminal,
// otherwise a line for each 10 %. One thread.
#pragma once

#include <cstdint>

namespace weir::tools {

class Progress {
 public:
  Progress(bool shown, uint64_t unit_bytes);
  void at(uint64_t done, uint64_t total);
  void end();

 private:
  bool shown_;
  bool terminal_;
  uint64_t unit_bytes_;
  uint64_t start_ns_;
  uint64_t last_ns_ = 0;
  uint64_t last_tenth_ = 0;
  bool drawn_ = false;
};

}  // namespace weir::tools
