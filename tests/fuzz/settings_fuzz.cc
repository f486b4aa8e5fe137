// SPDX-License-Identifier: Apache-2.0
// Any environment gets an answer: settings, or an error whose text is not empty.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/settings.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  // One variable per line.
  std::vector<std::string> variables(1);
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] == '\n')
      variables.emplace_back();
    else if (data[i] != '\0')
      variables.back() += static_cast<char>(data[i]);
  }
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);

  const weir::Result<weir::Settings> parsed = weir::parse_settings(environment.data());
  if (parsed.ok()) {
    if (weir::describe_settings(parsed.value()).empty()) std::abort();
    if (parsed.value().timeout_ms < 1) std::abort();
  } else if (parsed.status().text().empty()) {
    std::abort();
  }
  return 0;
}
