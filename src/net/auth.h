// SPDX-License-Identifier: Apache-2.0
// Primitives with which both ends of a connection prove that they hold a secret: OpenSSL's
// HMAC-SHA256, a comparison in constant time, and the kernel's random source. Thread-safe.
#pragma once

#include <array>
#include <cstddef>

namespace weir::net {

inline constexpr size_t kMacBytes = 32;
using Mac = std::array<unsigned char, kMacBytes>;

Mac hmac_sha256(const void* key, size_t key_bytes, const void* message, size_t message_bytes);

bool equal_in_constant_time(const void* a, const void* b, size_t bytes);

// False: errno says why; `data` must not be used.
bool fill_random(void* data, size_t bytes);

// Overwrites data that must not stay in memory; the compiler cannot optimize this away.
void wipe(void* data, size_t bytes);

}  // namespace weir::net
