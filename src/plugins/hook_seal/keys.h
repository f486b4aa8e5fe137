// SPDX-License-Identifier: Apache-2.0
// Keys: the secrets with which each direction of each lane between this rank and its peers is
// sealed. Every instance makes an X25519 key of its own and puts the public half before its
// address; it is fresh and thereby the instance's nonce, too. A traffic secret is HKDF-SHA256 (RFC
// 5869) with
//
//   secret  the secret of the communicator, then the X25519 secret of the two ranks (32 bytes)
//   salt    "weir seal 1"
//   info    "traffic", id of the communicator (8 bytes), sender, receiver, lane (4 each), public
//           key of the sender, of the receiver (32 each), name of the transport; integers
//           little-endian
//
// so that no two instances, directions, lanes, peers or transports share a secret, only a holder of
// the communicator's secret can be an end, and a communicator's secret that becomes known later
// does not decrypt recorded traffic. One thread at a time per object.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plugins/hook_seal/cipher.h"

namespace weir::plugins::hook_seal {

inline constexpr size_t kPublicKeyBytes = 32;
using PublicKey = std::array<unsigned char, kPublicKeyBytes>;

class Keys {
 public:
  Keys() = default;
  ~Keys();
  Keys(const Keys&) = delete;
  Keys& operator=(const Keys&) = delete;

  // Copies the secret. False: OpenSSL cannot do X25519, or has no memory.
  bool open(const unsigned char* secret, size_t secret_bytes, uint64_t comm_id, uint32_t rank,
            const std::string& transport);
  const PublicKey& own() const { return own_; }
  // By rank; that of this rank is its own.
  void set_peers(std::vector<PublicKey> peers);

  // False: OpenSSL has failed, or the peer's key is not valid (RFC 7748, 6.1).
  bool traffic_secret(uint32_t peer, uint32_t lane, bool sending, TrafficSecret* secret);

 private:
  struct Shared {
    bool is_known = false;
    std::array<unsigned char, 32> bytes{};
  };
  bool agree(uint32_t peer);

  EVP_PKEY* pair_ = nullptr;
  PublicKey own_{};
  std::vector<unsigned char> secret_;
  uint64_t comm_id_ = 0;
  uint32_t rank_ = 0;
  std::string transport_;
  std::vector<PublicKey> peers_;
  std::vector<Shared> shared_;  // by rank; made when it is first needed
};

}  // namespace weir::plugins::hook_seal
