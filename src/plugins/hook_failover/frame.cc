// SPDX-License-Identifier: Apache-2.0
#include "plugins/hook_failover/frame.h"

#include <string.h>

namespace weir::plugins::hook_failover {
namespace {

constexpr unsigned char kMagic[4] = {'W', 'F', 'O', 'V'};
constexpr unsigned char kVersion = 1;

template <typename Integer>
void store(unsigned char* out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out[i] = static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i));
  }
}

template <typename Integer>
Integer load(const unsigned char* in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) value |= static_cast<uint64_t>(in[i]) << (8 * i);
  return static_cast<Integer>(value);
}

}  // namespace

void encode(const Frame& frame, unsigned char* out) {
  memset(out, 0, kFrameBytes);
  memcpy(out, kMagic, sizeof kMagic);
  out[4] = kVersion;
  out[5] = static_cast<unsigned char>(frame.lane_count);
  out[6] = static_cast<unsigned char>(frame.level);
  store(out + 8, frame.ping);
  store(out + 12, frame.pong);
  store(out + 16, frame.rank);
  for (uint32_t i = 0; i < frame.lane_count; ++i) store(out + 24 + 8 * i, frame.received[i]);
}

bool decode(const unsigned char* in, Frame* frame) {
  *frame = Frame();
  if (memcmp(in, kMagic, sizeof kMagic) != 0 || in[4] != kVersion || in[7] != 0) return false;
  frame->lane_count = in[5];
  frame->level = in[6];
  frame->ping = load<uint32_t>(in + 8);
  frame->pong = load<uint32_t>(in + 12);
  frame->rank = load<uint32_t>(in + 16);
  if (load<uint32_t>(in + 20) != 0) return false;
  if (frame->lane_count < 1 || frame->lane_count > kLanesMax) return false;
  for (uint32_t i = 0; i < kLanesMax; ++i) {
    frame->received[i] = load<uint64_t>(in + 24 + 8 * i);
    if (i >= frame->lane_count && frame->received[i] != 0) return false;
  }
  return true;
}

}  // namespace weir::plugins::hook_failover
