// SPDX-License-Identifier: Apache-2.0
#include "core/base/secret.h"

#include <openssl/sha.h>

#include <cstring>

#include "net/auth.h"
#include "net/openssl_at_exit.h"

namespace weir {

Secret::~Secret() { net::wipe(bytes.data(), bytes.size()); }

Result<Secret> Secret::random() {
  Secret secret;
  if (!net::fill_random(secret.bytes.data(), secret.bytes.size())) return system_error("getrandom");
  return secret;
}

std::array<unsigned char, 32> Secret::sign(std::string_view message) const {
  return net::hmac_sha256(bytes.data(), bytes.size(), message.data(), message.size());
}

Secret Secret::derive(std::string_view label) const { return Secret{sign(label)}; }

uint64_t Secret::public_id() const {
  uint64_t id = 0;
  std::memcpy(&id, derive("id").bytes.data(), sizeof id);
  return id;
}

bool equal_in_constant_time(const void* a, const void* b, size_t bytes) {
  return net::equal_in_constant_time(a, b, bytes);
}

Secret secret_from_text(std::string_view text) {
  Secret secret;
  net::keep_openssl_at_exit();
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), secret.bytes.data());
  return secret;
}

}  // namespace weir
