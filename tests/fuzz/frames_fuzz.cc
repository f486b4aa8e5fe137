// SPDX-License-Identifier: Apache-2.0
// Small frames of fixed form: those of the failover's control lanes, which a peer writes, and the
// first bytes of a TLS connection, which anybody does. The first byte chooses what is fed.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "net/tls.h"
#include "plugins/hook_failover/frame.h"

namespace failover = weir::plugins::hook_failover;
namespace net = weir::net;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// What is taken for a frame says all of it: written again it is the same bytes.
void fuzz_frame(const uint8_t* data, size_t bytes) {
  unsigned char in[failover::kFrameBytes] = {};
  std::memcpy(in, data, std::min(bytes, sizeof in));
  failover::Frame frame;
  if (!failover::decode(in, &frame)) return;
  require(frame.lane_count >= 1 && frame.lane_count <= failover::kLanesMax);
  require(frame.level <= 255);
  unsigned char again[failover::kFrameBytes];
  failover::encode(frame, again);
  require(std::memcmp(in, again, sizeof in) == 0);
}

// Once something can be told, more bytes do not change it, and nothing else is good than a short
// ClientHello.
void fuzz_first_flight(const uint8_t* data, size_t bytes) {
  net::FirstFlight told = net::FirstFlight::kMore;
  for (size_t count = 0; count <= std::min<size_t>(bytes, 32); ++count) {
    const net::FirstFlight now = net::judge_first_flight(data, count);
    const bool ended = told == net::FirstFlight::kNotTls || told == net::FirstFlight::kGood;
    require(!ended || now == told);
    require(told != net::FirstFlight::kOversized || now != net::FirstFlight::kGood);
    require(now != net::FirstFlight::kMore || count < net::kFirstFlightHeaderBytes);
    require(now != net::FirstFlight::kMore || told == net::FirstFlight::kMore);
    if (now == net::FirstFlight::kGood) {
      require(count >= net::kFirstFlightHeaderBytes && data[0] == 22 && data[5] == 1);
      require((size_t{data[3]} << 8 | data[4]) <= net::kFirstFlightBytesMax);
    }
    told = now;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  if (data[0] % 2 == 0) {
    fuzz_frame(data + 1, bytes - 1);
  } else {
    fuzz_first_flight(data + 1, bytes - 1);
  }
  return 0;
}
