// SPDX-License-Identifier: Apache-2.0
// HKDF-SHA256 (RFC 5869) by OpenSSL: keys from a secret. Pure; thread-safe.
#pragma once

#include <cstddef>
#include <string_view>

namespace weir::net {

// Extract and expand. False: OpenSSL cannot do it, or has no memory.
bool hkdf_sha256(const void* secret, size_t secret_bytes, std::string_view salt,
                 std::string_view info, unsigned char* key, size_t key_bytes);

}  // namespace weir::net
