// SPDX-License-Identifier: Apache-2.0
// Secret: shared by the ranks of a communicator and known to nobody else. Names and keys of
// everything that is made for the communicator are derived from it, so that a later split, shrink
// or window needs no further exchange. Values, wiped on destruction; thread-safe. Never logged.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace weir {

struct Secret {
  std::array<unsigned char, 32> bytes{};

  ~Secret();

  // From the kernel's random source.
  static Result<Secret> random();
  // HMAC-SHA256(secret, label): the same label gives the same secret on every rank.
  Secret derive(std::string_view label) const;
  // First 8 bytes of derive("id"): identifies the secret without revealing it.
  uint64_t public_id() const;
  // HMAC-SHA256(secret, message), for challenges. Compare with equal_in_constant_time.
  std::array<unsigned char, 32> sign(std::string_view message) const;
};

bool equal_in_constant_time(const void* a, const void* b, size_t bytes);

// SHA-256 of public text, for secrets derived from a launcher's environment.
Secret secret_from_text(std::string_view text);

}  // namespace weir
