// SPDX-License-Identifier: Apache-2.0
// Cipher: one direction of one lane between two ranks, sealed piece by piece with AES-256-GCM as
// the records of TLS 1.3 are (RFC 8446, 5.2 and 5.3). A message is a head and, when it does not fit
// in there, bodies; each piece is one message of the transport beneath:
//
//   head, always kHeadBytes          encrypted, offset  bytes  field
//                                                    0      8  bytes of the message, little-endian
//                                                    8    488  the first of them; zeros behind the
//                                                              last
//                                    behind it     496     16  tag
//   body, at most kBodyBytesMax + 16 encrypted       0      n  the next n bytes of the message
//                                    behind it       n     16  tag
//
// The nonce of a piece is the initial value of its key, 12 bytes, with the number of the piece in
// its direction and lane (from 0 on, big-endian) XORed onto its last 8. The number is not sent: a
// piece that was changed, cut, repeated, left out or exchanged for another one does not open.
// Nothing of a piece is read before its tag is good.
//
// Key and initial value are HKDF-SHA256 of the traffic secret (keys.h). Before more than
// kRecordsMax records of 16 KiB would go out under one key, below the 2^24.5 of RFC 8446, 5.5, both
// ends go on with the next traffic secret, which is derived from the one before and replaces it.
// Both count the same pieces, so nothing is sent for the change.
//
// One thread at a time per object. After construction, memory is allocated only when a key is
// renewed.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace weir::plugins::hook_seal {

inline constexpr size_t kTagBytes = 16;
inline constexpr size_t kHeadBytes = 512;
inline constexpr size_t kLengthBytes = 8;
// Bytes of a message in its head, and in each body.
inline constexpr size_t kHeadDataBytes = kHeadBytes - kTagBytes - kLengthBytes;
inline constexpr size_t kBodyBytesMax = 128 * 1024;
inline constexpr uint64_t kRecordsMax = uint64_t{1} << 24;

using TrafficSecret = std::array<unsigned char, 32>;

class Cipher {
 public:
  enum class Use : uint8_t { kSeals, kOpens };

  // Wipes `secret`. Check is_usable() afterwards. `records_max` is for tests.
  Cipher(TrafficSecret* secret, Use use, uint64_t records_max = kRecordsMax);
  ~Cipher();
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;

  // False: OpenSSL has failed, and all later calls will fail.
  bool is_usable() const { return context_ != nullptr; }

  // Seals the head of a message of `message_bytes` bytes; `data` has min(message_bytes,
  // kHeadDataBytes). False: OpenSSL has failed, and the piece must not be sent.
  bool seal_head(uint64_t message_bytes, const void* data, unsigned char* piece);
  // `piece` has room for bytes + kTagBytes.
  bool seal_body(const void* data, size_t bytes, unsigned char* piece);

  // False: the piece is not what was sealed in its place. `data` gets min(message_bytes,
  // data_bytes, kHeadDataBytes) bytes.
  bool open_head(const unsigned char* piece, uint64_t* message_bytes, void* data,
                 uint64_t data_bytes);
  // The same; `data` is zeros after a failure.
  bool open_body(const unsigned char* piece, size_t bytes, void* data);

  uint64_t key_count() const { return key_count_; }

 private:
  bool next_key();
  // Before a piece of `bytes` bytes: renews the key if it must be, and sets the nonce.
  bool begin(size_t bytes);
  bool run(const unsigned char* in, size_t bytes, unsigned char* out);

  EVP_CIPHER_CTX* context_ = nullptr;
  TrafficSecret secret_;
  std::array<unsigned char, 12> initial_{};
  Use use_;
  uint64_t records_max_;
  uint64_t record_count_ = 0;  // under this key
  uint64_t key_count_ = 0;
  uint64_t number_ = 0;  // of the next piece
};

}  // namespace weir::plugins::hook_seal
