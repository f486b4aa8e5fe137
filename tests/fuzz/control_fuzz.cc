// SPDX-License-Identifier: Apache-2.0
// Whatever arrives on a connection of the control network, in pieces of any size: before the proof
// nobody gets in without the secret; after it nothing is taken that the key of the session did not
// make, but between ranks of a host, where frames have no such key, and then within their bounds.
// The first byte chooses what is fed, the second how large the pieces are.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "core/control/link.h"
#include "core/control/network_address.h"

using namespace weir::control;
using weir::net::Handshake;
using weir::net::Identity;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

Handshake::Nonce nonce_of(unsigned char byte) {
  Handshake::Nonce nonce;
  nonce.fill(byte);
  return nonce;
}

Identity identity_of(uint32_t rank, const char* secret) {
  return {weir::net::key_for(secret, std::strlen(secret), "fuzz"), 77, rank, 4};
}

void fuzz_stranger(bool is_server, std::string_view data, size_t piece) {
  const Identity identity = identity_of(is_server ? 0 : 2, "a secret that nobody guesses");
  Handshake end =
      is_server ? Handshake(identity, nonce_of(9)) : Handshake(identity, nonce_of(9), 0, {1, 2, 3});
  while (!data.empty() && end.wanted() > 0) {
    require(end.wanted() <= Handshake::kFrameBytesMax);
    const size_t part = std::min({data.size(), piece, end.wanted()});
    end.feed(reinterpret_cast<const unsigned char*>(data.data()), part);
    data.remove_prefix(part);
    end.sent(end.out_bytes());
    if (end.state() == Handshake::State::kChallenged) {
      end.prove();
      end.sent(end.out_bytes());
    }
  }
  require(end.state() != Handshake::State::kProven && end.state() != Handshake::State::kClaimed);
}

// The other end is a rank, and goes mad when it has proven itself.
void fuzz_member(bool is_local, std::string_view data, size_t piece) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) return;
  const int wire = dup(fds[1]);
  if (wire < 0) {
    close(fds[0]);
    close(fds[1]);
    return;
  }
  {
    Link server(weir::net::Stream{fds[0]}, is_local,
                Handshake(identity_of(0, "shared"), nonce_of(1)));
    Link client(weir::net::Stream{fds[1]}, is_local,
                Handshake(identity_of(2, "shared"), nonce_of(2), 0, {}));
    for (int i = 0; i < 8 && !(server.is_proven() && client.is_proven()); ++i) {
      int error_number = 0;
      for (Link* end : {&client, &server}) {
        if (end->is_proven()) continue;
        require(end->advance(&error_number) == Link::Step::kGoesOn);
        if (end->handshake().state() == Handshake::State::kChallenged) end->handshake().prove();
        if (end->handshake().state() == Handshake::State::kClaimed) end->handshake().welcome();
        (void)end->advance(&error_number);
      }
    }
    require(server.is_proven() && client.is_proven());
    bool good = true;
    while (!data.empty() && good) {
      const size_t part = std::min(data.size(), piece);
      if (send(wire, data.data(), part, MSG_NOSIGNAL) != static_cast<ssize_t>(part)) break;
      data.remove_prefix(part);
      good = server.receive([&](const Frame& frame) {
        require(is_local);
        require(frame.payload.size() <= kMessageBytesMax);
        if (frame.kind == Frame::Kind::kState) require(frame.payload.size() <= kNoticeBytesMax);
        if (frame.kind == Frame::Kind::kBye) require(frame.payload.empty());
        if (frame.kind == Frame::Kind::kDescriptor) {
          require(frame.payload.size() == kDescriptorKeyBytes);
          require(server.take_descriptor() < 0);
        }
        return true;
      });
    }
  }
  close(wire);
}

void fuzz_address(std::string_view data) {
  NetworkAddress address;
  if (!NetworkAddress::unpack(data, &address)) return;
  require(address.offers.size() <= kOffersMax);
  NetworkAddress again;
  require(NetworkAddress::unpack(address.pack(), &again));
  require(again.pack() == address.pack());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  if (count < 2) return 0;
  const std::string_view data(reinterpret_cast<const char*>(bytes) + 2, count - 2);
  const size_t piece = 1 + bytes[1] % 64;
  switch (bytes[0] % 5) {
    case 0:
      fuzz_stranger(true, data, piece);
      break;
    case 1:
      fuzz_stranger(false, data, piece);
      break;
    case 2:
      fuzz_member(true, data, piece);
      break;
    case 3:
      fuzz_member(false, data, piece);
      break;
    default:
      fuzz_address(data);
  }
  return 0;
}
