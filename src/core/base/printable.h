// SPDX-License-Identifier: Apache-2.0
// Texts from outside (variables, files) for errors, logs and terminals. Thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace weir {

// With '?' for each control character, so that it is one line and no command to a terminal, and cut
// after `bytes_max`.
std::string printable(std::string_view text, size_t bytes_max = 120);

}  // namespace weir
