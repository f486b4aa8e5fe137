// SPDX-License-Identifier: Apache-2.0
// The command line of offload_perf. Values; not thread-safe while parsing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <weir/offload.h>

#include "perf/harness/element.h"
#include "perf/harness/options.h"

namespace weir::perf {

enum class NormWay : uint8_t {
  kHere,   // by the optimizer, before the step
  kGiven,  // the caller knows it: no pass over the gradients
  kHold,   // after the step, which is then accepted
};

struct OffloadOptions {
  uint64_t parameter_count = uint64_t{64} << 20;
  weir_method_t method = WEIR_ADAMW;
  weir_state_format_t format = WEIR_STATE_FLOAT32;
  const ElementType* gradient_type = nullptr;  // parse_offload_options sets it
  const ElementType* output_type = nullptr;    // nullptr: no output
  bool stochastic = false;
  NormWay norm = NormWay::kHere;
  std::vector<std::string> directories;  // empty: all in memory
  uint64_t memory_bytes = 0;             // 0: the least that the stream needs
  uint64_t chunk_bytes = 0;              // 0: the library's
  int thread_count = 0;                  // 0: the library's
  std::vector<int> cores;                // empty: any
  weir_sweep_order_t order = WEIR_SWEEP_FIRST_FIRST;
  bool sqpoll = false;
  bool iopoll = false;
  int durable_every = 1;
  int step_count = 0;  // of a round; parse_offload_options replaces 0
  int round_count = 3;
  int warmup_round_count = 1;
  uint64_t probe_ms = 4000;  // 0: no probe
  bool check = false;
  std::string json_file;
  std::string plot_file;
  std::string trace_file;
  std::string command_line;
};

// Prints help to stdout and errors to stderr.
ParseResult parse_offload_options(int argc, char** argv, OffloadOptions* options);

const char* name_of(weir_method_t method);
const char* name_of(weir_state_format_t format);
const char* name_of(NormWay norm);

}  // namespace weir::perf
