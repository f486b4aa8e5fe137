// SPDX-License-Identifier: Apache-2.0
// StoreId: 128 random bits that every structure of a store carries, so that no data of another
// store is taken for its own. Value.
#pragma once

#include <fmt/format.h>

#include <array>
#include <string>

namespace weir::offload {

struct StoreId {
  std::array<unsigned char, 16> bytes{};
  bool operator==(const StoreId&) const = default;
  std::string text() const {
    std::string hex;
    for (const unsigned char byte : bytes) hex += fmt::format("{:02x}", byte);
    return hex;
  }
};

}  // namespace weir::offload
