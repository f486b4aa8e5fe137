// SPDX-License-Identifier: Apache-2.0
#include "plugins/tcp/wire.h"

#include "net/little_endian.h"

namespace weir::plugins::tcp {

bool Subject::unpack(uint64_t bits, Subject* subject) {
  *subject = {static_cast<uint32_t>(bits & 0xff), static_cast<uint32_t>(bits >> 8 & 0xff),
              static_cast<uint32_t>(bits >> 16 & 0xff), static_cast<uint32_t>(bits >> 24)};
  if (bits >> 56 != 0) return false;
  if (subject->rail_count == 1) {
    return subject->lane < kLaneCount && subject->rail == 0 && subject->returns == 0;
  }
  return subject->rail_count <= kRailsMax && subject->rail < subject->rail_count &&
         subject->returns > 0 && (subject->lane == kControlLane || subject->lane == kRailLane);
}

namespace wire {
namespace {

using net::get;
using net::put;

}  // namespace

void encode(const MessageHeader& header, unsigned char* out) {
  out[0] = 'W';
  out[1] = 'T';
  out[2] = static_cast<unsigned char>(header.kind);
  out[3] = header.lane;
  put(put(out + 4, header.number), header.bytes);
}

bool decode(const unsigned char* bytes, MessageHeader* header) {
  header->kind = static_cast<MessageKind>(bytes[2]);
  header->lane = bytes[3];
  header->number = get<uint32_t>(bytes + 4);
  header->bytes = get<uint64_t>(bytes + 8);
  if (bytes[0] != 'W' || bytes[1] != 'T') return false;
  switch (header->kind) {
    case MessageKind::kMessage:
      return header->bytes <= kMessageBytesMax;
    case MessageKind::kGoodbye:
      return header->bytes == 0;
    case MessageKind::kState:
      return header->bytes > kLaneCount * 8 && header->bytes <= kStateBytesMax &&
             (header->bytes - kLaneCount * 8) % 16 == 0;
    case MessageKind::kFragment:
      break;
  }
  return false;
}

void encode(const FragmentHeader& header, unsigned char* out) {
  out[0] = 'W';
  out[1] = 'T';
  out[2] = static_cast<unsigned char>(MessageKind::kFragment);
  out[3] = header.lane;
  unsigned char* at = put(out + 4, header.fragment_number);
  at = put(at, header.message_number);
  at = put(at, header.message_bytes);
  at = put(at, header.offset);
  at = put(at, header.bytes);
  at = put(at, header.received);
  put(at, header.posted);
}

bool decode(const unsigned char* bytes, FragmentHeader* header) {
  header->lane = bytes[3];
  header->fragment_number = get<uint32_t>(bytes + 4);
  header->message_number = get<uint64_t>(bytes + 8);
  header->message_bytes = get<uint64_t>(bytes + 16);
  header->offset = get<uint64_t>(bytes + 24);
  header->bytes = get<uint32_t>(bytes + 32);
  header->received = get<uint32_t>(bytes + 36);
  header->posted = get<uint64_t>(bytes + 40);
  return bytes[0] == 'W' && bytes[1] == 'T' &&
         bytes[2] == static_cast<unsigned char>(MessageKind::kFragment) &&
         header->lane < kLaneCount && header->bytes <= kFragmentBytesMax &&
         header->message_bytes <= kMessageBytesMax && header->offset <= header->message_bytes &&
         header->bytes <= header->message_bytes - header->offset &&
         (header->bytes != 0 || header->message_bytes == 0);
}

size_t encode(const PeerState& state, unsigned char* out) {
  unsigned char* at = out;
  for (const uint64_t posted : state.posted) at = put(at, posted);
  for (uint32_t i = 0; i < state.rail_count; ++i) {
    at = put(at, state.rails[i].returns);
    at = put(at, static_cast<uint32_t>(state.rails[i].closed ? 1 : 0));
    at = put(at, state.rails[i].received);
  }
  return static_cast<size_t>(at - out);
}

bool decode(const unsigned char* bytes, size_t byte_count, PeerState* state) {
  if (byte_count <= kLaneCount * 8 || byte_count > kStateBytesMax ||
      (byte_count - kLaneCount * 8) % 16 != 0) {
    return false;
  }
  for (uint32_t lane = 0; lane < kLaneCount; ++lane) {
    state->posted[lane] = get<uint64_t>(bytes + lane * 8);
  }
  state->rail_count = static_cast<uint32_t>((byte_count - kLaneCount * 8) / 16);
  const unsigned char* at = bytes + kLaneCount * 8;
  for (uint32_t i = 0; i < state->rail_count; ++i, at += 16) {
    if (get<uint32_t>(at + 4) > 1) return false;
    state->rails[i] = {get<uint32_t>(at), get<uint32_t>(at + 4) == 1, get<uint64_t>(at + 8)};
  }
  return true;
}

}  // namespace wire
}  // namespace weir::plugins::tcp
