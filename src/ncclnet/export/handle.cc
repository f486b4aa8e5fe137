// SPDX-License-Identifier: Apache-2.0
#include "ncclnet/export/handle.h"

#include <string.h>

#include <algorithm>

#include "net/little_endian.h"

namespace weir::ncclnet {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'N', 'C', 'H'};
constexpr unsigned char kVersion = 2;
constexpr unsigned char kJobSecretFlag = 1;
constexpr unsigned char kLoopbackFlag = 2;
constexpr unsigned char kAskedForFlag = 4;
constexpr size_t kAddressAt = 8 + net::kMacBytes + kTransportNameBytes;
constexpr uint32_t kSpeedMax = (1u << 24) - 1;
static_assert(kAddressAt + 24 + 32 + 2 + 3 + 1 + 16 + 2 == kHandleBytes);

}  // namespace

void encode(const Handle& handle, unsigned char* out) {
  memset(out, 0, kHandleBytes);
  memcpy(out, kMagic, sizeof kMagic);
  const control::NetworkAddress& address = handle.address;
  const control::Offer offer = address.offers.empty() ? control::Offer() : address.offers[0];
  out[4] = kVersion;
  out[5] = offer.address.family;
  out[6] = static_cast<unsigned char>((handle.needs_job_secret ? kJobSecretFlag : 0) |
                                      (offer.is_loopback ? kLoopbackFlag : 0) |
                                      (offer.is_asked_for ? kAskedForFlag : 0));
  out[7] = static_cast<unsigned char>(address.tls);
  memcpy(out + 8, handle.key.data(), handle.key.size());
  std::copy_n(handle.transport.data(), std::min(handle.transport.size(), kTransportNameBytes),
              out + 8 + net::kMacBytes);
  unsigned char* at = net::put(out + kAddressAt, address.host.bytes);
  at = net::put(at, address.nonce);
  at = net::put(at, offer.port);
  // Three bytes of it; the fourth is overwritten next.
  (void)net::put(at, std::min(offer.speed_mbits, kSpeedMax));
  at[3] = static_cast<unsigned char>(offer.prefix_bits);
  (void)net::put(at + 4, offer.address.bytes);
}

bool decode(const unsigned char* bytes, Handle* handle) {
  if (bytes == nullptr || memcmp(bytes, kMagic, sizeof kMagic) != 0 || bytes[4] != kVersion ||
      (bytes[6] & ~(kJobSecretFlag | kLoopbackFlag | kAskedForFlag)) != 0 ||
      bytes[7] >= net::kTlsModeCount || bytes[126] != 0 || bytes[127] != 0) {
    return false;
  }
  handle->needs_job_secret = (bytes[6] & kJobSecretFlag) != 0;
  memcpy(handle->key.data(), bytes + 8, handle->key.size());
  const char* name = reinterpret_cast<const char*>(bytes) + 8 + net::kMacBytes;
  handle->transport.assign(name, strnlen(name, kTransportNameBytes));
  control::NetworkAddress address;
  address.tls = static_cast<net::TlsMode>(bytes[7]);
  const unsigned char* at = bytes + kAddressAt;
  memcpy(address.host.bytes.data(), at, address.host.bytes.size());
  at += address.host.bytes.size();
  memcpy(address.nonce.data(), at, address.nonce.size());
  at += address.nonce.size();
  control::Offer offer;
  offer.address.family = bytes[5];
  offer.is_loopback = (bytes[6] & kLoopbackFlag) != 0;
  offer.is_asked_for = (bytes[6] & kAskedForFlag) != 0;
  offer.port = net::get<uint16_t>(at);
  offer.speed_mbits = net::get<uint32_t>(at + 2) & kSpeedMax;
  offer.prefix_bits = at[5];
  memcpy(offer.address.bytes.data(), at + 6, offer.address.bytes.size());
  address.offers.push_back(offer);
  // Checks that a listener can have this address.
  return control::NetworkAddress::unpack(address.pack(), &handle->address);
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
