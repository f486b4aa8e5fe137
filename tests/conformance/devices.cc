// SPDX-License-Identifier: Apache-2.0
// Properties of messages on memory of devices (WEIR_CAP_DEVICE_MEMORY). Each rank has the device of
// its number, as far as it can: between two ranks of which one cannot, its end lies in memory of
// the host.
#include <string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "conformance/cuda.h"
#include "conformance/harness.h"

namespace weir::conformance {
namespace {

constexpr size_t kPatternBytes = 251;

unsigned char byte_of(uint32_t from, uint32_t to, uint64_t message, uint64_t i) {
  return static_cast<unsigned char>((i + message * 17 + from * 5 + to * 3) % kPatternBytes);
}

std::vector<unsigned char> bytes_of(uint32_t from, uint32_t to, uint64_t message, uint64_t count) {
  std::vector<unsigned char> bytes(count);
  for (uint64_t i = 0; i < count; ++i) bytes[i] = byte_of(from, to, message, i);
  return bytes;
}

// "" where messages with `peer` may lie on the rank's device, or why not.
std::string gap(Rank& r, uint32_t peer) {
  char reason[512] = "";
  const weir_result_t result =
      r.f().device_viable(r.instance(), peer, static_cast<int>(r.rank()), reason, sizeof reason);
  if (result == WEIR_OK) return "";
  r.require(result == WEIR_ERROR_UNSUPPORTED, "device_viable gave " + std::to_string(result));
  r.require(reason[0] != 0, "device_viable gave no reason");
  return reason;
}

// One end of a message, on the device or on the host.
struct End {
  std::optional<DeviceBuffer> device;
  std::vector<unsigned char> host;
  uint64_t bytes = 0;
  weir_transport_op_t op{};
  weir_result_t posted = WEIR_IN_PROGRESS;

  void make(Rank& r, const Cuda* cuda, uint64_t count) {
    bytes = count;
    if (cuda != nullptr) {
      device.emplace(r, *cuda, count / 8 + 1);
    } else {
      host.resize(count + 1);
    }
  }
  void write(const std::vector<unsigned char>& values) {
    if (device) {
      device->write(values);
    } else {
      std::copy(values.begin(), values.end(), host.begin());
    }
  }
  std::vector<unsigned char> read() {
    return device ? device->read<unsigned char>(bytes)
                  : std::vector<unsigned char>(host.begin(), host.end() - 1);
  }
  void send(Rank& r, uint32_t peer, uint32_t lane) {
    posted = device ? r.f().device_send(r.instance(), peer, lane, device->data(), bytes,
                                        static_cast<int>(r.rank()), &op)
                    : r.f().send(r.instance(), peer, lane, host.data(), bytes, &op);
  }
  void recv(Rank& r, uint32_t peer, uint32_t lane) {
    posted = device ? r.f().device_recv(r.instance(), peer, lane, device->data(), bytes,
                                        static_cast<int>(r.rank()), &op)
                    : r.f().recv(r.instance(), peer, lane, host.data(), bytes, &op);
  }
};

// Skips where no rank can send to or receive from the other one from its device.
void skip_without_devices(Rank& r) {
  std::string reason;
  for (uint32_t peer = 0; peer < r.count(); ++peer) {
    if (peer == r.rank()) continue;
    reason = gap(r, peer);
    if (reason.empty()) break;
  }
  r.publish(r.rank(), reason.empty() ? 2 : 1);
  bool any = false;
  for (uint32_t p = 0; p < r.count(); ++p) {
    r.await(p);
    any = any || r.read(p) == 2;
  }
  r.barrier();
  if (!any) r.skip("no memory of devices here: " + reason);
}

// Each message lies on a device or on the host, at either end, in all four ways on each lane.
void every_size_in_order(const Variant& variant) {
  run_ranks(variant, variant.rank_count(3), [](Rank& r) {
    r.join();
    skip_without_devices(r);
    const Cuda cuda(r);
    std::vector<uint64_t> sizes = {0, 1, 8, 64, 1024, 4096, 4097, 65'536, 300'000, 2'000'003};
    for (const uint64_t size : std::vector<uint64_t>(sizes)) {
      sizes.insert(sizes.end(), 3, std::min<uint64_t>(size, 70'000));
    }
    for (uint64_t& size : sizes) size = std::min(size, r.f().caps.message_bytes_max);
    struct Stream {
      uint32_t peer;
      uint32_t lane;
      std::vector<End> out, in;
    };
    std::vector<Stream> streams;
    for (uint32_t peer = 0; peer < r.count(); ++peer) {
      if (peer == r.rank()) continue;
      const bool can = gap(r, peer).empty();
      for (const uint32_t lane : {0u, r.f().caps.lane_count - 1}) {
        if (lane == 0 && !streams.empty() && streams.back().peer == peer) continue;
        Stream& stream = streams.emplace_back(
            Stream{peer, lane, std::vector<End>(sizes.size()), std::vector<End>(sizes.size())});
        for (size_t i = 0; i < sizes.size(); ++i) {
          stream.out[i].make(r, can && i % 2 == 0 ? &cuda : nullptr, sizes[i]);
          stream.out[i].write(bytes_of(r.rank(), peer, i * 2 + lane, sizes[i]));
          stream.in[i].make(r, can && i % 4 < 2 ? &cuda : nullptr, sizes[i]);
        }
      }
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (Stream& stream : streams) {
        stream.in[i].recv(r, stream.peer, stream.lane);
        stream.out[i].send(r, stream.peer, stream.lane);
      }
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (Stream& stream : streams) {
        End& in = stream.in[i];
        r.wait(&in.op, in.posted, "a message that is received");
        r.require(in.read() == bytes_of(stream.peer, r.rank(), i * 2 + stream.lane, sizes[i]),
                  "message " + std::to_string(i) + " from rank " + std::to_string(stream.peer) +
                      " arrived changed or out of order");
      }
    }
    for (Stream& stream : streams) {
      for (End& out : stream.out) r.wait(&out.op, out.posted, "a message that is sent");
    }
    r.barrier();
  });
}

void lengths_differ(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.join();
    skip_without_devices(r);
    const Cuda cuda(r);
    const bool can = gap(r, 1 - r.rank()).empty();
    End end;
    end.make(r, can ? &cuda : nullptr, r.rank() == 0 ? 100 : 200);
    if (r.rank() == 0) {
      end.send(r, 1, 0);
      r.require(end.posted == WEIR_OK || end.posted == WEIR_IN_PROGRESS, "send failed");
      r.await(10);
    } else {
      end.recv(r, 0, 0);
      r.require_error(r.wait_result(&end.op, end.posted), {WEIR_ERROR_MISMATCH}, {"100", "200"});
      r.publish(10, 1);
    }
    r.barrier();
  });
}

void what_cannot_is_refused(const Variant& variant) {
  run_ranks(variant, variant.rank_count(3), [](Rank& r) {
    r.join();
    bool any = false;
    uint64_t word = 0;
    for (uint32_t peer = 0; peer < r.count(); ++peer) {
      if (peer == r.rank() || gap(r, peer).empty()) continue;
      any = true;
      const int device = static_cast<int>(r.rank());
      for (const bool sending : {true, false}) {
        weir_transport_op_t op{};
        r.require_error(
            sending ? r.f().device_send(r.instance(), peer, 0, &word, sizeof word, device, &op)
                    : r.f().device_recv(r.instance(), peer, 0, &word, sizeof word, device, &op),
            {WEIR_ERROR_UNSUPPORTED});
      }
    }
    r.publish(r.rank(), any ? 2 : 1);
    // And nothing has been posted: the next message is the first.
    const uint32_t next = (r.rank() + 1) % r.count();
    const uint32_t before = (r.rank() + r.count() - 1) % r.count();
    const uint64_t mine = 41 + r.rank();
    weir_transport_op_t send_op{}, recv_op{};
    const weir_result_t received =
        r.f().recv(r.instance(), before, 0, &word, sizeof word, &recv_op);
    const weir_result_t sent = r.f().send(r.instance(), next, 0, &mine, sizeof mine, &send_op);
    r.wait(&recv_op, received, "recv");
    r.wait(&send_op, sent, "send");
    r.require(word == 41 + before, "another message arrived");
    for (uint32_t p = 0; p < r.count(); ++p) {
      r.await(p);
      any = any || r.read(p) == 2;
    }
    r.barrier();
    if (!any) r.skip("every rank can do it with every other");
  });
}

}  // namespace

const std::vector<Property>& device_properties() {
  constexpr uint64_t kCaps = WEIR_CAP_SEND_RECV | WEIR_CAP_DEVICE_MEMORY;
  static const std::vector<Property> properties = {
      {"MessagesOnDevicesArriveIntactAndInOrderWithThoseOfTheHost", kCaps, 2, every_size_in_order},
      {"DifferentLengthsOnDevicesAreReportedWithBoth", kCaps, 2, lengths_differ},
      {"WhatCannotLieOnADeviceIsRefusedAndNothingPosted", kCaps, 2, what_cannot_is_refused},
  };
  return properties;
}

}  // namespace weir::conformance
