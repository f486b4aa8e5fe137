// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/address.h"

#include <string.h>

#include <algorithm>

#include "plugins/tcp/wire.h"
#include "weir/plugin.h"

namespace weir::plugins::tcp {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'T', 'A', 'D'};
constexpr size_t kFixedBytes = 40;
constexpr size_t kOfferBytes = 26;
constexpr unsigned char kLoopbackFlag = 1;
constexpr unsigned char kAskedForFlag = 2;
static_assert(kFixedBytes + kOffersMax * kOfferBytes <= WEIR_TRANSPORT_ADDRESS_BYTES_MAX);

void put(unsigned char* out, uint32_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
}

uint32_t get(const unsigned char* in, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint32_t{in[i]} << (8 * i);
  return value;
}

}  // namespace

size_t encode(const PeerAddress& address, unsigned char* out) {
  const size_t count = std::min(address.offers.size(), kOffersMax);
  memset(out, 0, kFixedBytes + count * kOfferBytes);
  memcpy(out, kMagic, sizeof kMagic);
  put(out + 4, kProtocolVersion, 2);
  put(out + 6, static_cast<uint32_t>(count), 1);
  put(out + 7, address.connections, 1);
  put(out + 8, address.rank, 4);
  memcpy(out + 12, address.host.bytes.data(), address.host.bytes.size());
  out[36] = address.is_lazy ? 1 : 0;
  unsigned char* at = out + kFixedBytes;
  for (size_t i = 0; i < count; ++i, at += kOfferBytes) {
    const Offer& offer = address.offers[i];
    at[0] = offer.address.family;
    at[1] = static_cast<unsigned char>((offer.is_loopback ? kLoopbackFlag : 0) |
                                       (offer.is_asked_for ? kAskedForFlag : 0));
    put(at + 2, offer.port, 2);
    put(at + 4, offer.speed_mbits, 4);
    put(at + 8, offer.prefix_bits, 1);
    put(at + 9, offer.interface_number, 1);
    memcpy(at + 10, offer.address.bytes.data(), offer.address.bytes.size());
  }
  return static_cast<size_t>(at - out);
}

bool decode(const unsigned char* bytes, size_t byte_count, PeerAddress* address) {
  if (bytes == nullptr || byte_count < kFixedBytes || memcmp(bytes, kMagic, sizeof kMagic) != 0 ||
      get(bytes + 4, 2) != kProtocolVersion) {
    return false;
  }
  const size_t count = bytes[6];
  if (count < 1 || count > kOffersMax || byte_count != kFixedBytes + count * kOfferBytes) {
    return false;
  }
  address->connections = bytes[7];
  if (address->connections < 1 || address->connections > kRailsMax) return false;
  if (bytes[36] > 1 || get(bytes + 37, 3) != 0) return false;
  address->is_lazy = bytes[36] == 1;
  address->rank = get(bytes + 8, 4);
  memcpy(address->host.bytes.data(), bytes + 12, address->host.bytes.size());
  address->offers.clear();
  const unsigned char* at = bytes + kFixedBytes;
  for (size_t i = 0; i < count; ++i, at += kOfferBytes) {
    Offer offer;
    offer.address.family = at[0];
    offer.is_loopback = (at[1] & kLoopbackFlag) != 0;
    offer.is_asked_for = (at[1] & kAskedForFlag) != 0;
    offer.port = static_cast<uint16_t>(get(at + 2, 2));
    offer.speed_mbits = get(at + 4, 4);
    offer.prefix_bits = at[8];
    offer.interface_number = at[9];
    memcpy(offer.address.bytes.data(), at + 10, offer.address.bytes.size());
    if (!offer.address.is_host() || offer.port == 0 ||
        offer.prefix_bits > offer.address.byte_count() * 8) {
      return false;
    }
    address->offers.push_back(offer);
  }
  return true;
}

}  // namespace weir::plugins::tcp
