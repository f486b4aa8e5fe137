// SPDX-License-Identifier: Apache-2.0
#include "core/control/network_address.h"

#include <algorithm>
#include <cstring>

#include "net/auth.h"
#include "net/little_endian.h"

namespace weir::control {
namespace {

constexpr char kMagic[4] = {'W', 'C', 'N', 'A'};
constexpr uint16_t kVersion = 1;
constexpr size_t kFixedBytes = 68;
constexpr size_t kOfferBytes = 25;
constexpr unsigned char kLoopbackFlag = 1;
constexpr unsigned char kAskedForFlag = 2;
static_assert(kAddressBytesMax == kFixedBytes + kOffersMax * kOfferBytes);

}  // namespace

std::string NetworkAddress::pack() const {
  const size_t count = std::min(offers.size(), kOffersMax);
  std::string bytes(kFixedBytes + count * kOfferBytes, '\0');
  auto* const out = reinterpret_cast<unsigned char*>(bytes.data());
  std::memcpy(out, kMagic, sizeof kMagic);
  net::put(out + 4, kVersion);
  out[6] = static_cast<unsigned char>(count);
  out[7] = static_cast<unsigned char>(tls);
  net::put(out + 8, rank);
  net::put(out + 12, host.bytes);
  net::put(out + 36, nonce);
  unsigned char* at = out + kFixedBytes;
  for (size_t i = 0; i < count; ++i, at += kOfferBytes) {
    const Offer& offer = offers[i];
    at[0] = offer.address.family;
    at[1] = static_cast<unsigned char>((offer.is_loopback ? kLoopbackFlag : 0) |
                                       (offer.is_asked_for ? kAskedForFlag : 0));
    net::put(at + 2, offer.port);
    net::put(at + 4, offer.speed_mbits);
    at[8] = static_cast<unsigned char>(offer.prefix_bits);
    net::put(at + 9, offer.address.bytes);
  }
  return bytes;
}

bool NetworkAddress::unpack(std::string_view bytes, NetworkAddress* address) {
  const auto* const in = reinterpret_cast<const unsigned char*>(bytes.data());
  if (bytes.size() < kFixedBytes || std::memcmp(in, kMagic, sizeof kMagic) != 0 ||
      net::get<uint16_t>(in + 4) != kVersion || in[6] > kOffersMax || in[7] >= net::kTlsModeCount ||
      bytes.size() != kFixedBytes + in[6] * kOfferBytes) {
    return false;
  }
  address->tls = static_cast<net::TlsMode>(in[7]);
  address->rank = net::get<uint32_t>(in + 8);
  std::memcpy(address->host.bytes.data(), in + 12, address->host.bytes.size());
  std::memcpy(address->nonce.data(), in + 36, address->nonce.size());
  address->offers.clear();
  const unsigned char* at = in + kFixedBytes;
  for (size_t i = 0; i < in[6]; ++i, at += kOfferBytes) {
    Offer offer;
    offer.address.family = at[0];
    offer.is_loopback = (at[1] & kLoopbackFlag) != 0;
    offer.is_asked_for = (at[1] & kAskedForFlag) != 0;
    offer.port = net::get<uint16_t>(at + 2);
    offer.speed_mbits = net::get<uint32_t>(at + 4);
    offer.prefix_bits = at[8];
    std::memcpy(offer.address.bytes.data(), at + 9, offer.address.bytes.size());
    if (!offer.address.is_host() || offer.port == 0 ||
        offer.prefix_bits > offer.address.byte_count() * 8) {
      return false;
    }
    address->offers.push_back(offer);
  }
  return true;
}

std::string socket_name(const Mac32& nonce) {
  const net::Mac mac = net::hmac_sha256(nonce.data(), nonce.size(), "weir socket", 11);
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "weir-control-";
  for (size_t i = 0; i < 16; ++i) {
    name += kDigits[mac[i] >> 4];
    name += kDigits[mac[i] & 15];
  }
  return name;
}

}  // namespace weir::control
