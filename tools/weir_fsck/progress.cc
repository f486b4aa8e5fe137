// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "core/base/clock.h"

namespace weir::tools {

namespace {

constexpr uint64_t kRedrawNs = 200'000'000;

}  // namespace

Progress::Progress(bool shown, uint64_t unit_bytes)
    : shown_(shown),
      terminal_(isatty(STDERR_FILENO) == 1),
      unit_bytes_(unit_bytes),
      start_ns_(now_ns()) {}

void Progress::at(uint64_t done, uint64_t total) {
  if (!shown_ || total == 0) return;
  const uint64_t now = now_ns();
  const uint64_t tenth = done * 10 / total;
  if (terminal_ ? now - last_ns_ < kRedrawNs && done < total : tenth == last_tenth_) return;
  last_ns_ = now;
  last_tenth_ = tenth;
  const double seconds = static_cast<double>(now - start_ns_) * 1e-9;
  const double bytes = static_cast<double>(done) * static_cast<double>(unit_bytes_);
  fmt::print(stderr, "{}weir-fsck: {} of {} chunks, {} %, {:.2f} GB/s{}", terminal_ ? "\r" : "",
             done, total, done * 100 / total, seconds > 0 ? bytes / seconds * 1e-9 : 0.0,
             terminal_ ? "   " : "\n");
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::end() {
  if (drawn_ && terminal_) fmt::print(stderr, "\n");
  drawn_ = false;
}

}  // namespace weir::tools
