// SPDX-License-Identifier: Apache-2.0
#include "core/algo/collective_names.h"

#include <fmt/format.h>

#include "core/algo/algorithm.h"

namespace weir::algo {

std::string known_collectives() {
  std::string known;
  for (uint32_t i = 0; i < static_cast<uint32_t>(Collective::kSendRecv); ++i) {
    const auto collective = static_cast<Collective>(i);
    const BlockLengths variant = lengths_of_variant(collective);
    known += fmt::format("{}{}", i == 0 ? "" : ", ", weir::name_of(collective));
    if (variant != BlockLengths::kEqual) {
      known += fmt::format(", {}", name_of(collective, variant));
    }
  }
  return known;
}

}  // namespace weir::algo
