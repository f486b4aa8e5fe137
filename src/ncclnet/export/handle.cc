// SPDX-License-Identifier: Apache-2.0
#include "ncclnet/export/handle.h"

#include <string.h>

#include <algorithm>

namespace weir::ncclnet {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'N', 'C', 'H'};
constexpr unsigned char kVersion = 1;
constexpr unsigned char kJobSecretFlag = 1;
constexpr size_t kAddressAt = 8 + net::kMacBytes + kTransportNameBytes;

}  // namespace

void encode(const Handle& handle, unsigned char* out) {
  memset(out, 0, kHandleBytes);
  memcpy(out, kMagic, sizeof kMagic);
  out[4] = kVersion;
  out[6] = handle.needs_job_secret ? kJobSecretFlag : 0;
  memcpy(out + 8, handle.key.data(), handle.key.size());
  memcpy(out + 8 + net::kMacBytes, handle.transport.data(),
         std::min(handle.transport.size(), kTransportNameBytes));
  net::mesh::Address address = handle.address;
  if (address.offers.size() > 1) address.offers.resize(1);
  unsigned char encoded[net::mesh::kAddressBytesMax];
  const size_t bytes = std::min(net::mesh::encode(address, encoded), kHandleBytes - kAddressAt);
  out[7] = static_cast<unsigned char>(bytes);
  memcpy(out + kAddressAt, encoded, bytes);
}

bool decode(const unsigned char* bytes, Handle* handle) {
  if (bytes == nullptr || memcmp(bytes, kMagic, sizeof kMagic) != 0 || bytes[4] != kVersion ||
      bytes[5] != 0 || (bytes[6] & ~kJobSecretFlag) != 0) {
    return false;
  }
  const size_t address_bytes = bytes[7];
  if (address_bytes > kHandleBytes - kAddressAt) return false;
  handle->needs_job_secret = bytes[6] != 0;
  memcpy(handle->key.data(), bytes + 8, handle->key.size());
  const char* name = reinterpret_cast<const char*>(bytes) + 8 + net::kMacBytes;
  handle->transport.assign(name, strnlen(name, kTransportNameBytes));
  return net::mesh::decode(bytes + kAddressAt, address_bytes, &handle->address) &&
         handle->address.rank == 0 && handle->address.offers.size() == 1;
}

net::Mac connection_secret(const net::Mac& key, const net::Mac* job_secret) {
  constexpr char kLabel[] = "weir nccl net connection";
  unsigned char message[sizeof kLabel + net::kMacBytes];
  memcpy(message, kLabel, sizeof kLabel);
  memcpy(message + sizeof kLabel, key.data(), key.size());
  const net::Mac& with = job_secret != nullptr ? *job_secret : key;
  const net::Mac secret = net::hmac_sha256(with.data(), with.size(), message, sizeof message);
  net::wipe(message, sizeof message);
  return secret;
}

uint64_t connection_id(const net::Mac& secret) {
  const net::Mac mac = net::hmac_sha256(secret.data(), secret.size(), "id", 2);
  uint64_t id = 0;
  for (size_t i = 0; i < 8; ++i) id = id << 8 | mac[i];
  return id;
}

}  // namespace weir::ncclnet
