// SPDX-License-Identifier: Apache-2.0
// Whatever arrives while ranks start, in pieces of any size: where ranks are let in nobody gets
// through without the secret; a node of the tree answers every message without reading past it;
// messages, places and notices are read as they were written or not at all.
//
// The first byte chooses what is fed, the second how large the pieces are.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/comm/start/bootstrap_node.h"
#include "core/comm/start/bootstrap_parent.h"
#include "core/comm/start/rendezvous_file.h"
#include "core/control/acceptor.h"
#include "net/unix_socket.h"

using namespace weir;
using namespace weir::comm;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

struct Input {
  const uint8_t* data;
  size_t bytes;

  uint8_t byte() {
    if (bytes == 0) return 0;
    --bytes;
    return *data++;
  }
  std::string_view text(size_t wanted) {
    const size_t size = std::min(wanted, bytes);
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    data += size;
    bytes -= size;
    return text;
  }
};

void fuzz_acceptor(Input input, size_t piece) {
  const Secret secret = secret_from_text("a secret that nobody guesses");
  const std::string name = socket_name(secret) + std::to_string(getpid());
  control::AcceptorConfig config;
  config.identity = identity_of({secret, 0, 3, 0});
  auto acceptor = control::Acceptor::make(config);
  require(acceptor.ok());
  const int listener = net::listen_locally(name, 8);
  require(listener >= 0 && acceptor.value()->add(listener, true));
  const net::Stream connection(net::connect_locally(name));
  require(connection.is_open());
  std::vector<control::Acceptor::Arrival> arrivals;
  acceptor.value()->serve(&arrivals);
  while (input.bytes > 0) {
    const std::string_view part = input.text(piece);
    if (send(connection.fd(), part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
    acceptor.value()->serve(&arrivals);
  }
  require(arrivals.empty());
}

// What a joining rank is told by one that has proven itself.
void fuzz_messages(Input input) {
  const std::string_view bytes(reinterpret_cast<const char*>(input.data), input.bytes);
  ChildAddress address;
  if (unpack_address(bytes, &address)) {
    require(address.place.addresses.size() <= kPlaceAddressesMax);
    require(bytes.starts_with(pack_address(address)));
  }
  require(!unpack_failure(bytes).ok());
}

void check_sends(Node* node) {
  for (const Node::Send& send : node->take_sends()) {
    require(send.payload.size() <= control::kStartBytesMax);
    require(send.frame().payload.size() == send.payload.size());
  }
}

// A node of five ranks with two children, and a parent unless it is the root. Each step is a byte
// for what happens, and, for a frame, two for its size and one for its round.
void fuzz_node(Input input, bool is_root) {
  uint64_t now = 1'000'000'000;
  Node node(0, 5, now, now + 1'000'000'000);
  if (is_root) {
    node.be_root();
  } else {
    node.set_parent(4, 40);
  }
  for (const Rank rank : {1u, 2u}) {
    node.add_child(rank, {rank, 5, 900'000, 10 + rank}, now);
  }
  uint32_t rounds = 0;
  while (input.bytes > 0) {
    const uint8_t what = input.byte();
    const Node::Link link = is_root ? 1 + what / 16 % 2 : what / 16 % 3;
    now += 1000;
    if (what % 16 == 15) {
      node.closed(link);
    } else if (what % 16 == 14) {
      node.expire(now, "");
    } else if (what % 16 == 0 && !node.busy() && node.status().ok() && rounds < 4) {
      ++rounds;
      node.start_round("own", now, now + 1'000'000'000);
    } else if (what % 16 == 13) {
      node.look(Node::Look::kAll);
    } else if (what % 16 == 12) {
      node.receive_malformed(link);
    } else {
      control::Frame frame;
      frame.kind = control::Frame::Kind::kStart;
      frame.detail = what % 16;
      frame.version = input.byte() % 4;
      const size_t size = input.byte() | size_t{input.byte()} << 8;
      frame.payload = input.text(size);
      node.receive(link, frame, now);
    }
    node.end_turn(now);
    check_sends(&node);
    if (!node.busy() && node.status().ok() && node.round() > 0) {
      const std::vector<std::string> blobs = node.take_blobs();
      require(blobs.empty() || blobs.size() == 5);
    }
    require(node.status().ok() || !node.busy());
  }
}

void fuzz_formats(Input input) {
  const std::string_view bytes(reinterpret_cast<const char*>(input.data), input.bytes);
  Place place;
  if (unpack(bytes, &place)) {
    const std::string again = pack(place);
    require(again.size() <= kPlaceBytesMax && again.size() <= bytes.size());
    require(bytes.starts_with(again));
  } else {
    require(place.empty());
  }
  Notice notice;
  if (unpack(bytes, &notice)) {
    require(bytes.size() == kNoticeBytes && notice.host.size() <= 64);
    Notice again;
    require(unpack(pack(notice), &again));
    require(again.secret.bytes == notice.secret.bytes && again.pid == notice.pid);
  }
  std::string_view records = bytes;
  Rank rank = 0;
  std::string_view blob;
  while (!records.empty() && take_record(&records, &rank, &blob)) {
    require(blob.data() + blob.size() <= bytes.data() + bytes.size());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 2) return 0;
  const size_t piece = 1 + data[1] % 64;
  const Input input{data + 2, bytes - 2};
  switch (data[0] % 5) {
    case 0:
      fuzz_acceptor(input, piece);
      break;
    case 1:
      fuzz_messages(input);
      break;
    case 2:
      fuzz_node(input, true);
      break;
    case 3:
      fuzz_node(input, false);
      break;
    default:
      fuzz_formats(input);
  }
  return 0;
}
