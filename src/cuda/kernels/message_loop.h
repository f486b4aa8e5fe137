// SPDX-License-Identifier: Apache-2.0
// The loop of the message kernel. A *track* is what one end does in one lane for the messages of
// one order. A launch looks at its tracks in turn, and moves a piece of whichever can move one:
//
//   sender:    if put - taken < kMessageSlots: copy into the slot; put += 1
//   receiver:  if put != taken: copy out of the slot; taken += 1
//
// No track waits for another one, so that a launch ends if its peers bring their ends of these
// messages, in whatever order and in whatever launches. (No fixed order of copies and waits in a
// stream has this property: where both ranks of a pair send a long message and then receive one,
// pieces must alternate, and where one of them receives and then answers, all pieces of the first
// message must come before the second.)
//
// Compiled by nvcc and by the host's compiler. A track belongs to one thread, of the host or, on a
// device, of a block, whose other threads only copy.
#pragma once

#include "cuda/kernels/copy_arguments.h"
#include "cuda/kernels/message_arguments.h"
#include "cuda/kernels/qualifiers.h"

#ifndef __CUDACC__
#include <atomic>
#endif

namespace weir::kernels {

struct MessageTrack {
  uint32_t order = 0;
  uint32_t lane = 0;
  uint32_t message = 0;  // of the order's
  uint32_t pieces = 0;   // the lane's counter
  uint64_t at = 0;       // in the stripe of the message
  uint32_t ended = 0;
};

enum class MessageStep : uint32_t { kWait, kMove, kEnded };

// ---- What both ends derive from a length --------------------------------------------------------

WEIR_KERNEL uint32_t lanes_of(uint64_t message_bytes) {
  const uint64_t lanes = message_bytes / kMessageBytesPerLane;
  if (lanes < 1) return 1;
  return lanes < kMessageLanes ? static_cast<uint32_t>(lanes) : kMessageLanes;
}

WEIR_KERNEL uint64_t stripe_begin(uint64_t message_bytes, uint32_t lane) {
  const uint64_t lanes = lanes_of(message_bytes);
  const uint64_t stripe =
      ((message_bytes + lanes - 1) / lanes + kMessageAlign - 1) / kMessageAlign * kMessageAlign;
  const uint64_t begin = lane * stripe;
  return begin < message_bytes ? begin : message_bytes;
}

WEIR_KERNEL uint64_t stripe_bytes(uint64_t message_bytes, uint32_t lane) {
  return stripe_begin(message_bytes, lane + 1) - stripe_begin(message_bytes, lane);
}

// ---- Counters -----------------------------------------------------------------------------------

WEIR_KERNEL uint32_t load_counter(const uint32_t* counter) {
#ifdef __CUDA_ARCH__
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
#elif !defined(__CUDACC__)
  return std::atomic_ref(*const_cast<uint32_t*>(counter)).load(std::memory_order_acquire);
#else
  return *counter;
#endif
}

WEIR_KERNEL void store_counter(uint32_t* counter, uint32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
#elif !defined(__CUDACC__)
  std::atomic_ref(*counter).store(value, std::memory_order_release);
#else
  *counter = value;
#endif
}

WEIR_KERNEL void store_begun(uint64_t* begun, uint64_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(begun), "l"(value) : "memory");
#elif !defined(__CUDACC__)
  std::atomic_ref(*begun).store(value, std::memory_order_release);
#else
  *begun = value;
#endif
}

// Ordered by the counters.
WEIR_KERNEL uint64_t load_length(const uint64_t* length) {
  return *static_cast<const volatile uint64_t*>(length);
}
WEIR_KERNEL void store_length(uint64_t* length, uint64_t value) {
  *static_cast<volatile uint64_t*>(length) = value;
}

// ---- Tracks -------------------------------------------------------------------------------------

WEIR_KERNEL const MessageOrder& order_of(const MessageArguments& a, const MessageTrack& track) {
  return (a.orders != nullptr ? a.orders : a.orders_here)[track.order];
}

WEIR_KERNEL const MessageData& message_of(const MessageArguments& a, const MessageOrder& order,
                                          uint32_t index) {
  return (a.orders != nullptr ? a.messages : a.messages_here)[order.first + index];
}

WEIR_KERNEL uint32_t track_count(const MessageArguments& a) {
  return a.order_count * kMessageLanes;
}

// Of the messages of the track's order, from track.message on, the next one that has this lane.
WEIR_KERNEL void find_message(const MessageArguments& a, const MessageOrder& order,
                              MessageTrack* track) {
  while (track->message < order.count &&
         lanes_of(message_of(a, order, track->message).bytes) <= track->lane) {
    ++track->message;
  }
}

WEIR_KERNEL void mark_busy(const MessageOrder& order, uint32_t lane, uint32_t busy) {
  MessageLane& it = order.lanes[lane];
  store_counter(order.sends != 0 ? &it.sends : &it.receives, busy);
}

// The first lanes of all orders come first, so that short messages are spread over the blocks.
WEIR_KERNEL MessageTrack begin_track(const MessageArguments& a, uint32_t index) {
  MessageTrack track;
  track.order = index % a.order_count;
  track.lane = index / a.order_count;
  const MessageOrder& order = order_of(a, track);
  find_message(a, order, &track);
  track.ended = track.message == order.count ? 1 : 0;
  if (track.ended != 0) return track;
  const MessageLane& lane = order.lanes[track.lane];
  track.pieces = load_counter(order.sends != 0 ? &lane.put : &lane.taken);
  mark_busy(order, track.lane, 1);
  if (order.begun != nullptr) store_begun(&order.begun[track.lane], kMessageBegun | track.pieces);
  return track;
}

// What the track can do now. After kMove its piece is to be copied, and then `moved` called.
WEIR_KERNEL MessageStep look(const MessageArguments& a, const MessageTrack& track,
                             CopyPiece* piece) {
  if (track.ended != 0) return MessageStep::kEnded;
  const MessageOrder& order = order_of(a, track);
  const MessageData& message = message_of(a, order, track.message);
  MessageLane& lane = order.lanes[track.lane];
  const uint32_t slot = track.pieces % kMessageSlots;
  char* const in_slot = order.fifo + (uint64_t{track.lane} * kMessageSlots + slot) * a.slot_bytes;
  char* const in_buffer = message.buffer + stripe_begin(message.bytes, track.lane) + track.at;
  const uint64_t left = stripe_bytes(message.bytes, track.lane) - track.at;
  piece->bytes = left < a.slot_bytes ? left : a.slot_bytes;
  const bool begins = track.at == 0;
  if (order.sends != 0) {
    if (track.pieces - load_counter(&lane.taken) >= kMessageSlots) return MessageStep::kWait;
    if (begins) store_length(&lane.bytes[slot], message.bytes);
    piece->to = in_slot;
    piece->from = in_buffer;
    return MessageStep::kMove;
  }
  if (load_counter(&lane.put) == track.pieces) return MessageStep::kWait;
  if (begins && load_length(&lane.bytes[slot]) != message.bytes) {
    // A thread of the host says so, and stops both ends. (The lengths in another lane than the
    // first need not be those of the same message.)
    if (track.lane == 0) {
      store_length(&lane.expected, message.bytes);
      store_counter(&lane.refused, 1);
    }
    return MessageStep::kWait;
  }
  piece->to = in_buffer;
  piece->from = in_slot;
  return MessageStep::kMove;
}

WEIR_KERNEL void moved(const MessageArguments& a, const CopyPiece& piece, MessageTrack* track) {
  const MessageOrder& order = order_of(a, *track);
  MessageLane& lane = order.lanes[track->lane];
  ++track->pieces;
  store_counter(order.sends != 0 ? &lane.put : &lane.taken, track->pieces);
  track->at += piece.bytes;
  if (track->at < stripe_bytes(message_of(a, order, track->message).bytes, track->lane)) return;
  track->at = 0;
  ++track->message;
  find_message(a, order, track);
  if (track->message < order.count) return;
  track->ended = 1;
  mark_busy(order, track->lane, 0);
}

}  // namespace weir::kernels
