// SPDX-License-Identifier: Apache-2.0
#include "plugins/remote/key.h"

#include <cstring>

namespace weir::plugins::remote {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'K', 'E', 'Y'};
constexpr uint16_t kProtocolVersion = 1;

}  // namespace

net::Mac proof_key(const void* secret, size_t secret_bytes, const char* transport,
                   uint64_t comm_id) {
  std::string purpose = std::string("remote memory of ") + transport + " ";
  unsigned char id[8];
  store(id, comm_id, sizeof id);
  purpose.append(reinterpret_cast<const char*>(id), sizeof id);
  return net::hmac_sha256(secret, secret_bytes, purpose.data(), purpose.size());
}

size_t encode(const Key& key, const net::Mac& proof, unsigned char* out) {
  std::memcpy(out, kMagic, sizeof kMagic);
  store(out + 4, kProtocolVersion, 2);
  store(out + 6, key.own.size(), 2);
  store(out + 8, key.rank, 4);
  store(out + 12, key.region, 4);
  store(out + 16, key.registration, 8);
  store(out + 24, key.address, 8);
  store(out + 32, key.bytes, 8);
  if (!key.own.empty()) std::memcpy(out + kKeyFixedBytes, key.own.data(), key.own.size());
  const size_t bytes = kKeyFixedBytes + key.own.size();
  const net::Mac mac = net::hmac_sha256(proof.data(), proof.size(), out, bytes);
  std::memcpy(out + bytes, mac.data(), kKeyProofBytes);
  return bytes + kKeyProofBytes;
}

std::string decode(const unsigned char* bytes, size_t byte_count, const net::Mac& proof,
                   uint32_t rank, Key* key) {
  if (bytes == nullptr || byte_count < kKeyFixedBytes + kKeyProofBytes ||
      byte_count > WEIR_TRANSPORT_KEY_BYTES_MAX) {
    return "a key of " + std::to_string(byte_count) + " bytes";
  }
  const size_t own_bytes = load(bytes + 6, 2);
  if (std::memcmp(bytes, kMagic, sizeof kMagic) != 0 || load(bytes + 4, 2) != kProtocolVersion) {
    return "the bytes are not a memory key of this version of Weir";
  }
  if (byte_count != kKeyFixedBytes + own_bytes + kKeyProofBytes) {
    return "a key of " + std::to_string(kKeyFixedBytes + own_bytes + kKeyProofBytes) +
           " bytes came with " + std::to_string(byte_count);
  }
  const size_t proven = byte_count - kKeyProofBytes;
  const net::Mac mac = net::hmac_sha256(proof.data(), proof.size(), bytes, proven);
  if (!net::equal_in_constant_time(mac.data(), bytes + proven, kKeyProofBytes)) {
    return "the key was altered, or belongs to another communicator or transport";
  }
  if (load(bytes + 8, 4) != rank) {
    return "the key belongs to rank " + std::to_string(load(bytes + 8, 4));
  }
  const uint64_t address = load(bytes + 24, 8);
  const uint64_t memory_bytes = load(bytes + 32, 8);
  if (memory_bytes == 0 || address + memory_bytes < address) return "the key names no memory";
  key->rank = rank;
  key->region = static_cast<uint32_t>(load(bytes + 12, 4));
  key->registration = load(bytes + 16, 8);
  key->address = address;
  key->bytes = memory_bytes;
  key->own.assign(bytes + kKeyFixedBytes, bytes + proven);
  return "";
}

}  // namespace weir::plugins::remote
