// SPDX-License-Identifier: Apache-2.0
// Trace: a timeline of a pipeline's work, and its form in the Chrome trace format
// (chrome://tracing, ui.perfetto.dev). Values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace weir::offload {

enum class TraceKind : uint8_t { kRead, kCompute, kWrite };

struct TraceEvent {
  TraceKind kind = TraceKind::kCompute;
  uint32_t lane = 0;  // row of its kind; events of a row do not overlap
  uint64_t item = 0;
  uint64_t begin_ns = 0;  // base clock
  uint64_t end_ns = 0;
  uint64_t bytes = 0;  // moved; 0 for compute
};

struct Trace {
  std::vector<TraceEvent> events;
  uint64_t dropped_count = 0;  // beyond the limit that the pipeline was given
};

// Times begin at the first event.
std::string chrome_trace_json(const Trace& trace);

// Overwrites the file.
Status write_chrome_trace(const std::string& path, const Trace& trace);

}  // namespace weir::offload
