// SPDX-License-Identifier: Apache-2.0
// Whatever arrives on a connection of a control mesh, in pieces of any size: before the proof nobody
// gets in without the secret; after it a peer that holds the secret and lies is found out or does no
// harm. The first byte chooses what is fed, the second how large the pieces are.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "net/mesh_link.h"

using namespace weir::net::mesh;
using State = MeshLink::State;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

Nonce nonce_of(unsigned char byte) {
  Nonce nonce;
  nonce.fill(byte);
  return nonce;
}

Identity identity_of(uint32_t rank, const char* secret) {
  return {mesh_key(secret, std::strlen(secret), "fuzz"), 77, rank, 4};
}

// Until the link wants no more or the input ends. The bounds of what it asks for hold at each step.
void feed(MeshLink* link, const uint8_t* data, size_t bytes, size_t piece) {
  while (bytes > 0 && link->wanted() > 0) {
    if (link->state() == State::kChallenged) link->prove();
    require(link->wanted() <= kHeaderBytes + 32 + std::max(kCardBytesMax, kFarewellBytesMax));
    const size_t part = std::min({bytes, piece, link->wanted()});
    link->feed(data, part);
    data += part;
    bytes -= part;
    require(link->card().size() <= kCardBytesMax);
    require(link->notice().size() <= kNoticeBytesMax);
    require(link->farewell().size() <= kFarewellBytesMax);
    link->sent(link->out_bytes());
  }
}

void fuzz_stranger(bool is_host, const uint8_t* data, size_t bytes, size_t piece) {
  const Bytes card = {1, 2, 3};
  const Identity identity = identity_of(is_host ? 0 : 2, "a secret that nobody guesses");
  MeshLink link =
      is_host ? MeshLink(identity, nonce_of(9), &card) : MeshLink(identity, nonce_of(9), &card, 0);
  feed(&link, data, bytes, piece);
  require(!link.proven() && link.state() != State::kLeft && link.card().empty());
}

void carry(MeshLink* from, MeshLink* to) {
  while (from->out_bytes() > 0 && to->wanted() > 0) {
    const size_t part = std::min(from->out_bytes(), to->wanted());
    to->feed(from->out(), part);
    from->sent(part);
    if (to->state() == State::kChallenged) to->prove();
  }
}

// One that holds the secret: honest up to its card, if `joins`, and then not.
void fuzz_member(bool joins, const uint8_t* data, size_t bytes, size_t piece) {
  const Bytes card = {1, 2, 3};
  MeshLink host(identity_of(0, "shared"), nonce_of(1), &card);
  MeshLink guest(identity_of(2, "shared"), nonce_of(2), &card, 0);
  for (int i = 0; i < 8 && host.state() != (joins ? State::kJoined : State::kProven); ++i) {
    carry(&guest, &host);
    if (!joins && host.proven()) break;
    carry(&host, &guest);
  }
  require(host.proven());
  require(host.peer() == 2);
  feed(&host, data, bytes, piece);
  // Sealed frames cannot be made without the session's key.
  require(host.state() != State::kLeft);
}

void fuzz_address(const uint8_t* data, size_t bytes) {
  Address address;
  if (!decode(data, bytes, &address)) return;
  require(!address.offers.empty() && address.offers.size() <= kOffersMax);
  unsigned char again[kAddressBytesMax];
  require(encode(address, again) == bytes);
  require(std::memcmp(again, data, bytes) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 2) return 0;
  const size_t piece = 1 + data[1] % 64;
  switch (data[0] % 5) {
    case 0:
      fuzz_stranger(true, data + 2, bytes - 2, piece);
      break;
    case 1:
      fuzz_stranger(false, data + 2, bytes - 2, piece);
      break;
    case 2:
      fuzz_member(false, data + 2, bytes - 2, piece);
      break;
    case 3:
      fuzz_member(true, data + 2, bytes - 2, piece);
      break;
    default:
      fuzz_address(data + 2, bytes - 2);
  }
  return 0;
}
