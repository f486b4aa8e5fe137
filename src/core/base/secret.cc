// SPDX-License-Identifier: Apache-2.0
#include "core/base/secret.h"

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <cstring>

namespace weir {

Result<Secret> Secret::random() {
  Secret secret;
  size_t filled = 0;
  while (filled < secret.bytes.size()) {
    const ssize_t got = getrandom(secret.bytes.data() + filled, secret.bytes.size() - filled, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      return system_error("getrandom");
    }
    filled += static_cast<size_t>(got);
  }
  return secret;
}

std::array<unsigned char, 32> Secret::sign(std::string_view message) const {
  std::array<unsigned char, 32> mac{};
  unsigned int mac_bytes = 0;
  const unsigned char* done = HMAC(EVP_sha256(), bytes.data(), static_cast<int>(bytes.size()),
                                   reinterpret_cast<const unsigned char*>(message.data()),
                                   message.size(), mac.data(), &mac_bytes);
  WEIR_CHECK(done != nullptr && mac_bytes == mac.size(), "HMAC-SHA256 is part of OpenSSL");
  return mac;
}

Secret Secret::derive(std::string_view label) const { return Secret{sign(label)}; }

uint64_t Secret::public_id() const {
  uint64_t id = 0;
  std::memcpy(&id, derive("id").bytes.data(), sizeof id);
  return id;
}

bool equal_in_constant_time(const void* a, const void* b, size_t bytes) {
  return CRYPTO_memcmp(a, b, bytes) == 0;
}

Secret secret_from_text(std::string_view text) {
  Secret secret;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), secret.bytes.data());
  return secret;
}

}  // namespace weir
