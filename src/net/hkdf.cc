// SPDX-License-Identifier: Apache-2.0
#include "net/hkdf.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>

#include "net/openssl_at_exit.h"

namespace weir::net {

bool hkdf_sha256(const void* secret, size_t secret_bytes, std::string_view salt,
                 std::string_view info, unsigned char* key, size_t key_bytes) {
  keep_openssl_at_exit();
  EVP_KDF* kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* context = kdf == nullptr ? nullptr : EVP_KDF_CTX_new(kdf);
  EVP_KDF_free(kdf);
  if (context == nullptr) return false;
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<void*>(secret),
                                        secret_bytes),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SALT, const_cast<char*>(salt.data()),
                                        salt.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, const_cast<char*>(info.data()),
                                        info.size()),
      OSSL_PARAM_construct_end(),
  };
  const bool done = EVP_KDF_derive(context, key, key_bytes, parameters) == 1;
  EVP_KDF_CTX_free(context);
  return done;
}

}  // namespace weir::net
