// SPDX-License-Identifier: Apache-2.0
// Whatever arrives on a connection of tcp, in pieces of any size, is answered without reading past
// what was asked for: what connections are for, messages, goodbyes, addresses.
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
#include "plugins/tcp/wire.h"

using namespace weir::plugins::tcp;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// What a peer says that a connection is for.
void fuzz_subject(const uint8_t* data, size_t bytes) {
  uint64_t bits = 0;
  memcpy(&bits, data, std::min(bytes, sizeof bits));
  Subject subject;
  if (!Subject::unpack(bits, &subject)) return;
  require(subject.lane <= kRailLane && subject.rail < subject.rail_count);
  require(subject.rail_count <= kRailsMax && subject.pack() == bits);
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
    data += part;
    bytes -= part;
  }
  close(fds[1]);
  control.receive();
  require(control.left() || control.lost());
  require(!control.left() || !control.lost());
  close(fds[0]);
}

// A lane that nobody receives on is asked whether its peer has said goodbye; then receives come.
void fuzz_goodbye(const uint8_t* data, size_t bytes, size_t piece) {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Channel channel;
  channel.attach(Stream(fds[0]), Stream(fds[0]), 1);
  while (bytes > 0) {
    const size_t part = std::min(bytes, piece);
    if (write(fds[1], data, part) != static_cast<ssize_t>(part)) break;
    (void)channel.hear_goodbye();
    data += part;
    bytes -= part;
  }
  close(fds[1]);
  (void)channel.hear_goodbye();
  unsigned char got[2][8];
  Op ops[2] = {};
  for (size_t i = 0; i < 2; ++i) channel.post_recv(got[i], sizeof got[i], &ops[i]);
  for (int i = 0; i < 64 && channel.receiving(); ++i) channel.drive_recv();
  require(!channel.receiving());
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
    case 1:
      fuzz_subject(data + 2, bytes - 2);
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
      fuzz_goodbye(data + 2, bytes - 2, piece);
      break;
    default:
      fuzz_control(data + 2, bytes - 2, piece);
  }
  return 0;
}
