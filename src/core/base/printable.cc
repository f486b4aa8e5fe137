// SPDX-License-Identifier: Apache-2.0
#include "core/base/printable.h"

namespace weir {

std::string printable(std::string_view text, size_t bytes_max) {
  std::string out;
  for (const char c : text.substr(0, bytes_max)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  if (text.size() > bytes_max) out += "...";
  return out;
}

}  // namespace weir
