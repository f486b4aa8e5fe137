// SPDX-License-Identifier: Apache-2.0
// Reads the numbers among the arguments of a small benchmark that takes them by place.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace weir::perf {

// The whole number in `text`, from `min` to `max`; else names the argument and exits with 2.
inline uint64_t number_argument(const char* text, const char* what, uint64_t min, uint64_t max) {
  uint64_t number = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  if (error == std::errc() && stop == end && number >= min && number <= max) return number;
  std::fprintf(stderr, "%s '%s': a whole number from %ju to %ju is needed\n", what, text,
               static_cast<uintmax_t>(min), static_cast<uintmax_t>(max));
  std::exit(2);
}

}  // namespace weir::perf
