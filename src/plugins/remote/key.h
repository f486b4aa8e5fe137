// SPDX-License-Identifier: Apache-2.0
// Key: describes memory that a rank has registered, so that others may read and write it, and what
// the others check before they trust it. A transport's own part of the key goes into a library that
// does not check what it parses, so nothing is parsed before the whole key is proven genuine. Pure;
// thread-safe.
//
//   offset  bytes  field (integers little-endian)
//        0      4  magic "WKEY"
//        4      2  protocol version
//        6      2  bytes of the transport's own part, n
//        8      4  rank whose memory it is
//       12      4  index of the region there
//       16      8  number of the registration there; no two are the same
//       24      8  address by which the transport names the first byte
//       32      8  bytes of the memory
//       40      n  the transport's own part
//     40+n     16  first half of HMAC-SHA256 over all before, with a key of the communicator
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "net/auth.h"
#include "weir/plugin.h"

namespace weir::plugins::remote {

struct Key {
  uint32_t rank = 0;
  uint32_t region = 0;
  uint64_t registration = 0;
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::vector<unsigned char> own;  // the transport's
};

inline constexpr size_t kKeyFixedBytes = 40;
inline constexpr size_t kKeyProofBytes = 16;
inline constexpr size_t kOwnBytesMax =
    WEIR_TRANSPORT_KEY_BYTES_MAX - kKeyFixedBytes - kKeyProofBytes;

// The key that authenticates the keys of one communicator over one transport; `secret` is the
// communicator's.
net::Mac proof_key(const void* secret, size_t secret_bytes, const char* transport,
                   uint64_t comm_id);

// Writes at most WEIR_TRANSPORT_KEY_BYTES_MAX bytes and returns how many; `own` has at most
// kOwnBytesMax.
size_t encode(const Key& key, const net::Mac& proof, unsigned char* out);

// "" or why the bytes are no key of rank `rank`; then `key` is not written.
std::string decode(const unsigned char* bytes, size_t byte_count, const net::Mac& proof,
                   uint32_t rank, Key* key);

// Little-endian integers, as in everything that transports send about remote memory.
inline void store(unsigned char* out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
}
inline uint64_t load(const unsigned char* in, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{in[i]} << (8 * i);
  return value;
}

}  // namespace weir::plugins::remote
