// SPDX-License-Identifier: Apache-2.0
// The table of the perf tools' flags, one row each: names, help, and how its value changes the
// options. docs/perf_tools.md says what each does, and a test compares the two. Constants;
// thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "perf/harness/options.h"

namespace weir::perf {

enum class Heading : uint8_t {
  kRanks,
  kSizes,
  kOperation,
  kMeasurement,
  kBuffers,
  kOutput,
  kNoEffect,
  kHidden
};
const char* heading_text(Heading heading);

struct Flag {
  const char* names;  // "-t,--nthreads"
  const char* value;  // for the help: "<bytes>"; nullptr: the flag takes none, and sets `on`
  Heading heading;
  const char* help;
  // Stores a value in the options; "" or what is wrong with it, and the remedy.
  std::string (*read)(const std::string& value, Options& options);
  bool Options::*on = nullptr;
  bool Operation::*only_if = nullptr;  // accepted by every tool, shown by those that use it
};

std::span<const Flag> flags();

}  // namespace weir::perf
