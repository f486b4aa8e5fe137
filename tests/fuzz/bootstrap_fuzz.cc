// SPDX-License-Identifier: Apache-2.0
// Whatever arrives while ranks start, in pieces of any size: at a door nobody gets in without the
// secret; a guest and a node of the tree answer every frame without reading past it; places and
// notices are read as they were written or not at all.
//
// The first byte chooses what is fed, the second how large the pieces are.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/comm/bootstrap_channel.h"
#include "core/comm/bootstrap_door.h"
#include "core/comm/bootstrap_node.h"
#include "core/comm/rendezvous_file.h"

using namespace weir;
using namespace weir::comm;
using wire::Kind;

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

void fuzz_door(Input input, size_t piece) {
  static const Secret secret = Secret::random().take();
  auto door = Door::open(secret, door_name(secret), 0, 4, DoorLimits());
  require(door.ok());
  if (door.value() == nullptr) return;  // another fuzzer with a copy of this process's secret
  Fd connection;
  require(connect_to(door_name(secret), &connection).ok() && connection.valid());
  std::vector<Arrival> arrivals;
  const auto serve = [&] {
    std::vector<pollfd> entries;
    door.value()->append_poll_entries(&entries);
    require(entries.size() == door.value()->poll_entry_count());
    require(wait_for_events(&entries, 0).ok());
    require(door.value()->serve(entries.data(), &arrivals).ok());
  };
  serve();
  while (input.bytes > 0) {
    const std::string_view part = input.text(piece);
    if (send(connection.get(), part.data(), part.size(), MSG_NOSIGNAL) < 0) break;
    serve();
  }
  require(arrivals.empty());
}

// The frames that a guest waits for, one after the other, from a host that sends what it likes.
void fuzz_guest(Input input, size_t piece) {
  int fds[2];
  require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
  Channel channel{Fd(fds[0])};
  const std::vector<std::vector<Kind>> steps = {
      {Kind::kChallenge, Kind::kTurnedAway},
      {Kind::kWelcome, Kind::kTurnedAway},
      {Kind::kAdmit, Kind::kRedirect, Kind::kFailure},
  };
  size_t step = 0;
  while (input.bytes > 0 && step < steps.size()) {
    const std::string_view part = input.text(piece);
    if (write(fds[1], part.data(), part.size()) != static_cast<ssize_t>(part.size())) break;
    const Channel::Read result = channel.read(steps[step]);
    if (result == Channel::Read::kNothing) continue;
    if (result != Channel::Read::kFrame) break;
    const std::string_view payload = channel.payload();
    Rank count = 0;
    Rank rank = 0;
    uint32_t reason = 0;
    uint32_t version = 0;
    wire::DoorAddress address;
    switch (channel.header().kind) {
      case Kind::kChallenge:
        (void)wire::decode_nonce(payload);
        break;
      case Kind::kWelcome:
        (void)wire::decode_welcome(payload, &count, &rank);
        break;
      case Kind::kTurnedAway:
        wire::decode_turned_away(payload, &reason, &version);
        break;
      case Kind::kRedirect:
        if (wire::decode_redirect(payload, &address)) {
          require(address.place.addresses.size() <= kPlaceAddressesMax);
        }
        break;
      case Kind::kFailure:
        require(!wire::decode_failure(payload).ok());
        break;
      default:
        break;
    }
    ++step;
  }
  close(fds[1]);
}

void check_sends(Node* node) {
  for (const Node::Send& send : node->take_sends()) {
    require(send.frame.size() >= wire::kHeaderBytes);
    unsigned char bytes[wire::kHeaderBytes];
    std::memcpy(bytes, send.frame.data(), sizeof bytes);
    wire::Header header;
    require(wire::decode_header(bytes, &header) && wire::header_fits(header));
    require(send.frame.size() == wire::kHeaderBytes + header.payload_bytes);
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
    wire::Claim claim;
    claim.rank = rank;
    claim.rank_count = 5;
    claim.patience_us = 900'000;
    node.add_child(rank, claim, 10 + rank, now);
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
    } else if (node.busy()) {
      wire::Header header;
      header.kind = static_cast<Kind>(what % 16);
      header.round = input.byte() % 4;
      const size_t size = input.byte() | size_t{input.byte()} << 8;
      const std::string payload(input.text(size));
      header.payload_bytes = static_cast<uint32_t>(payload.size());
      // What a Channel would not hand on.
      const std::vector<Kind> kinds = node.expected(link);
      if (std::find(kinds.begin(), kinds.end(), header.kind) == kinds.end() ||
          !wire::header_fits(header)) {
        node.receive_malformed(link, header);
      } else {
        node.receive(link, header, payload, now);
      }
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
  while (!records.empty() && wire::take_record(&records, &rank, &blob)) {
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
      fuzz_door(input, piece);
      break;
    case 1:
      fuzz_guest(input, piece);
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
