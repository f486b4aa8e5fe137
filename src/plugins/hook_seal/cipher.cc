// SPDX-License-Identifier: Apache-2.0
#include "plugins/hook_seal/cipher.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cstring>

#include "net/hkdf.h"

namespace weir::plugins::hook_seal {
namespace {

constexpr size_t kKeyBytes = 32;
constexpr size_t kRecordBytes = 16 * 1024;  // of TLS, which the limit of a key counts
constexpr char kSalt[] = "weir seal 1";
constexpr char kKeyLabel[] = "key and initial value";
constexpr char kNextLabel[] = "next traffic secret";

}  // namespace

Cipher::Cipher(TrafficSecret* secret, Use use, uint64_t records_max)
    : secret_(*secret), use_(use), records_max_(records_max) {
  OPENSSL_cleanse(secret->data(), secret->size());
  context_ = EVP_CIPHER_CTX_new();
  const int encrypts = use == Use::kSeals ? 1 : 0;
  if (context_ != nullptr &&
      EVP_CipherInit_ex(context_, EVP_aes_256_gcm(), nullptr, nullptr, nullptr, encrypts) == 1 &&
      next_key()) {
    return;
  }
  EVP_CIPHER_CTX_free(context_);
  context_ = nullptr;
}

Cipher::~Cipher() {
  EVP_CIPHER_CTX_free(context_);
  OPENSSL_cleanse(secret_.data(), secret_.size());
  OPENSSL_cleanse(initial_.data(), initial_.size());
}

bool Cipher::next_key() {
  unsigned char derived[kKeyBytes + sizeof initial_];
  bool done = true;
  if (key_count_ != 0) {
    TrafficSecret next;
    done = net::hkdf_sha256(secret_.data(), secret_.size(), kSalt, kNextLabel, next.data(),
                            next.size());
    secret_ = next;
    OPENSSL_cleanse(next.data(), next.size());
  }
  done = done && net::hkdf_sha256(secret_.data(), secret_.size(), kSalt, kKeyLabel, derived,
                                  sizeof derived);
  if (done) {
    std::memcpy(initial_.data(), derived + kKeyBytes, initial_.size());
    done = EVP_CipherInit_ex(context_, nullptr, nullptr, derived, nullptr, -1) == 1;
  }
  OPENSSL_cleanse(derived, sizeof derived);
  record_count_ = 0;
  ++key_count_;
  return done;
}

bool Cipher::begin(size_t bytes) {
  if (!is_usable()) return false;
  const uint64_t records = std::max<uint64_t>(1, (bytes + kRecordBytes - 1) / kRecordBytes);
  if (record_count_ + records > records_max_ && record_count_ != 0 && !next_key()) {
    EVP_CIPHER_CTX_free(context_);
    context_ = nullptr;
    return false;
  }
  record_count_ += records;
  auto nonce = initial_;
  for (size_t i = 0; i < sizeof number_; ++i) {
    nonce[nonce.size() - 1 - i] ^= static_cast<unsigned char>(number_ >> (8 * i));
  }
  ++number_;
  return EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, nonce.data(), -1) == 1;
}

bool Cipher::run(const unsigned char* in, size_t bytes, unsigned char* out) {
  int done = 0;
  return bytes == 0 || (EVP_CipherUpdate(context_, out, &done, in, static_cast<int>(bytes)) == 1 &&
                        static_cast<size_t>(done) == bytes);
}

bool Cipher::seal_head(uint64_t message_bytes, const void* data, unsigned char* piece) {
  const auto part = static_cast<size_t>(std::min<uint64_t>(message_bytes, size_t{kHeadDataBytes}));
  unsigned char plain[kHeadBytes - kTagBytes] = {};
  for (size_t i = 0; i < kLengthBytes; ++i) {
    plain[i] = static_cast<unsigned char>(message_bytes >> (8 * i));
  }
  if (part != 0) std::memcpy(plain + kLengthBytes, data, part);
  const bool sealed = seal_body(plain, sizeof plain, piece);
  OPENSSL_cleanse(plain, sizeof plain);
  return sealed;
}

bool Cipher::seal_body(const void* data, size_t bytes, unsigned char* piece) {
  int rest = 0;
  return begin(bytes) && run(static_cast<const unsigned char*>(data), bytes, piece) &&
         EVP_CipherFinal_ex(context_, piece + bytes, &rest) == 1 &&
         EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, kTagBytes, piece + bytes) == 1;
}

bool Cipher::open_head(const unsigned char* piece, uint64_t* message_bytes, void* data,
                       uint64_t data_bytes) {
  unsigned char plain[kHeadBytes - kTagBytes];
  if (!open_body(piece, sizeof plain, plain)) return false;
  *message_bytes = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) *message_bytes |= uint64_t{plain[i]} << (8 * i);
  const uint64_t part = std::min({*message_bytes, data_bytes, uint64_t{kHeadDataBytes}});
  if (part != 0) std::memcpy(data, plain + kLengthBytes, static_cast<size_t>(part));
  OPENSSL_cleanse(plain, sizeof plain);
  return true;
}

bool Cipher::open_body(const unsigned char* piece, size_t bytes, void* data) {
  auto* out = static_cast<unsigned char*>(data);
  unsigned char tag[kTagBytes];
  std::memcpy(tag, piece + bytes, sizeof tag);
  unsigned char none[kTagBytes];
  int rest = 0;
  const bool opened = begin(bytes) && run(piece, bytes, out) &&
                      EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag) == 1 &&
                      EVP_CipherFinal_ex(context_, none, &rest) == 1;
  if (!opened && bytes != 0) std::memset(out, 0, bytes);
  return opened;
}

}  // namespace weir::plugins::hook_seal
