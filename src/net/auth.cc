// SPDX-License-Identifier: Apache-2.0
#include "net/auth.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <cstdio>
#include <cstdlib>

#include "net/openssl_at_exit.h"

namespace weir::net {

Mac hmac_sha256(const void* key, size_t key_bytes, const void* message, size_t message_bytes) {
  keep_openssl_at_exit();
  Mac mac{};
  unsigned int mac_bytes = 0;
  const unsigned char* done =
      HMAC(EVP_sha256(), key, static_cast<int>(key_bytes),
           static_cast<const unsigned char*>(message), message_bytes, mac.data(), &mac_bytes);
  if (done == nullptr || mac_bytes != mac.size()) {
    std::fprintf(stderr, "weir: HMAC-SHA256 is part of OpenSSL, but this one cannot do it\n");
    std::abort();
  }
  return mac;
}

bool equal_in_constant_time(const void* a, const void* b, size_t bytes) {
  return CRYPTO_memcmp(a, b, bytes) == 0;
}

bool fill_random(void* data, size_t bytes) {
  auto* out = static_cast<unsigned char*>(data);
  for (size_t filled = 0; filled < bytes;) {
    const ssize_t got = getrandom(out + filled, bytes - filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return false;
    filled += static_cast<size_t>(got);
  }
  return true;
}

void wipe(void* data, size_t bytes) { OPENSSL_cleanse(data, bytes); }

}  // namespace weir::net
