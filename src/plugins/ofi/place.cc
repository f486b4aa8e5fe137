// SPDX-License-Identifier: Apache-2.0
// The bytes of a Place.
#include <algorithm>
#include <cstring>

#include "plugins/ofi/meeting.h"

namespace weir::plugins::ofi {
namespace {

constexpr size_t kFixedBytes = 25;
constexpr size_t kOfferBytes = 25;
constexpr unsigned char kLoopbackFlag = 1;
constexpr unsigned char kAskedForFlag = 2;
static_assert(kPlaceBytesMax == kFixedBytes + kOffersMax * kOfferBytes);

void put(unsigned char* out, uint32_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(value >> (8 * i));
}

uint32_t get(const unsigned char* in, size_t bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint32_t{in[i]} << (8 * i);
  return value;
}

}  // namespace

size_t encode(const Place& address, unsigned char* out) {
  const size_t count = std::min(address.offers.size(), kOffersMax);
  std::memcpy(out, address.host.bytes.data(), address.host.bytes.size());
  out[24] = static_cast<unsigned char>(count);
  unsigned char* at = out + kFixedBytes;
  for (size_t i = 0; i < count; ++i, at += kOfferBytes) {
    const Offer& offer = address.offers[i];
    at[0] = offer.address.family;
    at[1] = static_cast<unsigned char>((offer.is_loopback ? kLoopbackFlag : 0) |
                                       (offer.is_asked_for ? kAskedForFlag : 0));
    put(at + 2, offer.port, 2);
    put(at + 4, offer.speed_mbits, 4);
    put(at + 8, offer.prefix_bits, 1);
    std::memcpy(at + 9, offer.address.bytes.data(), offer.address.bytes.size());
  }
  return static_cast<size_t>(at - out);
}

size_t decode(const unsigned char* bytes, size_t byte_count, Place* address) {
  if (bytes == nullptr || byte_count < kFixedBytes) return 0;
  const size_t count = bytes[24];
  if (count < 1 || count > kOffersMax || byte_count < kFixedBytes + count * kOfferBytes) {
    return 0;
  }
  std::memcpy(address->host.bytes.data(), bytes, address->host.bytes.size());
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
    std::memcpy(offer.address.bytes.data(), at + 9, offer.address.bytes.size());
    if (!offer.address.is_host() || offer.port == 0 ||
        offer.prefix_bits > offer.address.byte_count() * 8) {
      return 0;
    }
    address->offers.push_back(offer);
  }
  return static_cast<size_t>(at - bytes);
}

}  // namespace weir::plugins::ofi
