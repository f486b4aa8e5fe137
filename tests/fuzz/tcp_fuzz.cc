// SPDX-License-Identifier: Apache-2.0
// Whatever arrives on a connection of tcp, in pieces of any size, is answered without reading past
// what was asked for: handshakes of both ends, messages, addresses, notices, early messages.
//
// The first byte chooses what is fed, the second how large the pieces are.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "plugins/tcp/address.h"
#include "plugins/tcp/bundle.h"
#include "plugins/tcp/channel.h"
#include "plugins/tcp/control.h"
#include "plugins/tcp/handshake.h"

using namespace weir::plugins::tcp;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void fuzz_handshake(bool is_host, const uint8_t* data, size_t bytes, size_t piece) {
  const Identity identity{wire::handshake_key("a secret", 8), 5, is_host ? 0u : 1u, 2};
  Handshake handshake =
      is_host ? Handshake(identity, wire::Nonce{}) : Handshake(identity, wire::Nonce{}, 0, 1);
  while (bytes > 0) {
    handshake.sent(handshake.out_bytes());
    if (handshake.state() == Handshake::State::kChallenged) handshake.prove();
    const size_t wanted = handshake.wanted();
    require(wanted <= wire::kHeaderBytes + wire::kPayloadBytesMax);
    if (wanted == 0) break;
    const size_t part = std::min({bytes, piece, wanted});
    handshake.feed(data, part);
    data += part;
    bytes -= part;
  }
  // Nobody proves itself without the secret.
  require(handshake.state() != Handshake::State::kProven);
}

void fuzz_messages(const uint8_t* data, size_t bytes, size_t piece) {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Channel channel;
  channel.attach(Stream(fds[0]), Stream(fds[0]), 1);
  const size_t sizes[] = {8, 0, 100, 3};
  std::vector<std::vector<unsigned char>> buffers;
  Op ops[4] = {};
  for (size_t i = 0; i < 4; ++i) {
    buffers.emplace_back(sizes[i]);
    channel.post_recv(buffers[i].data(), sizes[i], &ops[i]);
  }
  while (bytes > 0) {
    const size_t part = std::min(bytes, piece);
    if (write(fds[1], data, part) != static_cast<ssize_t>(part)) break;
    channel.drive_recv();
    data += part;
    bytes -= part;
  }
  close(fds[1]);
  for (int i = 0; i < 64 && channel.receiving(); ++i) channel.drive_recv();
  // The connection has ended: nothing is in flight any more.
  for (const Op& op : ops) require(op.state == kOpDone || op.state > kOpFailed);
  close(fds[0]);
}

void fuzz_address(const uint8_t* data, size_t bytes) {
  PeerAddress address;
  if (!decode(data, bytes, &address)) return;
  unsigned char again[WEIR_TRANSPORT_ADDRESS_BYTES_MAX];
  require(!address.offers.empty() && address.offers.size() <= kOffersMax);
  require(encode(address, again) == bytes);
}

void fuzz_control(const uint8_t* data, size_t bytes, size_t piece) {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Control control;
  control.attach(Stream(fds[0]));
  while (bytes > 0) {
    const size_t part = std::min(bytes, piece);
    if (write(fds[1], data, part) != static_cast<ssize_t>(part)) break;
    control.receive();
    require(control.notice_bytes() <= kNoticeBytesMax);
    data += part;
    bytes -= part;
  }
  close(fds[1]);
  control.receive();
  require(control.left() || control.lost());
  require(!control.left() || !control.lost());
  close(fds[0]);
}

// Channels without connections: the bytes arrive on the control connection.
void fuzz_early(bool is_host, const uint8_t* data, size_t bytes, size_t piece) {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Control control;
  control.attach(Stream(fds[0]));
  std::vector<unsigned char> memory(Prelude::kMemoryBytes);
  bool news = false;
  Prelude prelude(memory.data(), is_host, &news);
  control.carry(&prelude);
  Channel channels[2];
  const size_t sizes[] = {8, 0, 100, 3000};
  std::vector<std::vector<unsigned char>> buffers;
  Op ops[8] = {};
  for (uint32_t i = 0; i < 2; ++i) {
    channels[i].attach_later(&control, &prelude, static_cast<uint8_t>(1 + i), ZeroCopy::Wish::kOff);
  }
  for (size_t i = 0; i < 4; ++i) {
    buffers.emplace_back(sizes[i]);
    channels[0].post_recv(buffers[i].data(), sizes[i], &ops[i]);
    channels[1].post_send(buffers[i].data(), sizes[i], &ops[4 + i]);
  }
  uint64_t word = 0;
  Op last = {};
  channels[0].post_send(&word, sizeof word, &last);
  while (bytes > 0) {
    const size_t part = std::min(bytes, piece);
    if (send(fds[1], data, part, MSG_NOSIGNAL) != static_cast<ssize_t>(part)) break;
    for (Channel& channel : channels) {
      channel.drive_send();
      channel.drive_recv();
    }
    data += part;
    bytes -= part;
  }
  close(fds[1]);
  for (int i = 0; i < 64 && !control.lost() && !control.left(); ++i) control.receive();
  channels[0].give_up(WEIR_ERROR_PEER_LOST, 0);
  channels[1].give_up(WEIR_ERROR_PEER_LOST, 0);
  // The connection has ended: nothing is in flight any more.
  for (const Op& op : ops) require(op.state != kOpPending);
  close(fds[0]);
}

// A bundle of two rails: the bytes arrive on a connection of one of them.
void fuzz_rails(bool on_control, const uint8_t* data, size_t bytes, size_t piece) {
  int ends[4][2];
  for (auto& fds : ends) {
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  }
  Bundle bundle(2);
  for (uint32_t rail = 0; rail < 2; ++rail) {
    bundle.attach(rail, Stream(ends[2 * rail][0]), Stream(ends[2 * rail + 1][0]), 0);
  }
  const size_t sizes[] = {8, 0, 100, 30'000};
  std::vector<std::vector<unsigned char>> buffers;
  Op ops[8] = {};
  for (size_t i = 0; i < 4; ++i) {
    buffers.emplace_back(sizes[i]);
    bundle.post_recv(1, buffers[i].data(), sizes[i], &ops[i]);
    bundle.post_send(2, buffers[i].data(), sizes[i], &ops[4 + i]);
  }
  const int to = ends[on_control ? 1 : 0][1];
  while (bytes > 0) {
    const size_t part = std::min(bytes, piece);
    if (send(to, data, part, MSG_NOSIGNAL) != static_cast<ssize_t>(part)) break;
    bundle.drive();
    data += part;
    bytes -= part;
  }
  for (const auto& fds : ends) close(fds[1]);
  for (int i = 0; i < 64 && !bundle.idle(); ++i) bundle.drive();
  // All rails have ended: nothing is in flight any more.
  for (const Op& op : ops) require(op.state != kOpPending);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 2) return 0;
  const size_t piece = 1 + data[1] % 64;
  switch (data[0] % 9) {
    case 0:
      fuzz_handshake(true, data + 2, bytes - 2, piece);
      break;
    case 1:
      fuzz_handshake(false, data + 2, bytes - 2, piece);
      break;
    case 2:
      fuzz_messages(data + 2, bytes - 2, piece);
      break;
    case 3:
      fuzz_address(data + 2, bytes - 2);
      break;
    case 5:
    case 6:
      fuzz_rails(data[0] % 9 == 6, data + 2, bytes - 2, piece);
      break;
    case 7:
    case 8:
      fuzz_early(data[0] % 9 == 7, data + 2, bytes - 2, piece);
      break;
    default:
      fuzz_control(data + 2, bytes - 2, piece);
  }
  return 0;
}
