// SPDX-License-Identifier: Apache-2.0
// The checks that every network transport makes on a configuration before it opens an instance.
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "weir/plugin.h"

namespace weir::plugins::common {

inline constexpr size_t kSecretBytesMin = 8;
inline constexpr size_t kSecretBytesMax = 4096;

// "", or a text that says what is wrong; the error is then WEIR_ERROR_INVALID_ARGUMENT.
inline std::string config_problem(const weir_transport_config_t& config, uint32_t rank_count_max) {
  const auto text_of = [](uint64_t number) { return std::to_string(number); };
  if (config.struct_bytes < sizeof config) {
    return "the configuration has " + text_of(config.struct_bytes) + " bytes, not " +
           text_of(sizeof config);
  }
  if (config.rank_count == 0 || config.rank_count > rank_count_max ||
      config.rank >= config.rank_count) {
    return "rank " + text_of(config.rank) + " of " + text_of(config.rank_count) +
           ": there may be 1 to " + text_of(rank_count_max) + " ranks, counted from 0";
  }
  if (config.secret == nullptr || config.secret_bytes < kSecretBytesMin ||
      config.secret_bytes > kSecretBytesMax) {
    return "a secret of " + text_of(config.secret_bytes) + " bytes; " + text_of(kSecretBytesMin) +
           " to " + text_of(kSecretBytesMax) + " are needed";
  }
  return "";
}

// The names of a hint, which is null or has commas.
inline std::vector<std::string> names_in(const char* list) {
  std::vector<std::string> names;
  for (std::string_view text = list == nullptr ? "" : list; !text.empty();) {
    const size_t comma = text.find(',');
    names.emplace_back(text.substr(0, comma));
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  return names;
}

}  // namespace weir::plugins::common
