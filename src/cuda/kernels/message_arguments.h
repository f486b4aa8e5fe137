// SPDX-License-Identifier: Apache-2.0
// The arguments of the message kernel, passed by value, and the counters by which the kernels of
// two ranks hand pieces to each other. The layout is the same for the library, the kernel that nvcc
// compiles, and its host function in Weir's stand-in for CUDA. Plain data.
//
// Messages from one rank to another are cut into pieces, which pass through slots in memory of the
// sender's device:
//
//   fifo of a pair    kMessageLanes lanes of kMessageSlots slots of `slot_bytes`
//   lanes of a pair   kMessageLanes MessageLane, in memory of the host that all ranks map
//
// A long message is divided into stripes, one for each lane; each lane is a queue by itself: piece
// k of its history is in slot k % kMessageSlots. Both ends derive lanes, stripes and pieces from
// the length of a message alone, and know the state of a lane by its counters, which stay from one
// launch to the next. So nothing in a launch depends on what was before it, and a captured launch
// may be repeated at any time.
#pragma once

#include <cstdint>

#include "cuda/kernels/copy_arguments.h"

namespace weir::kernels {

inline constexpr uint32_t kMessageLanes = 8;
inline constexpr uint32_t kMessageSlots = 4;  // of a lane; a power of two
inline constexpr uint64_t kMessageSlotBytesMax = uint64_t{128} << 10;
// A message has at most one lane for so many bytes.
inline constexpr uint64_t kMessageBytesPerLane = uint64_t{16} << 10;
// Stripes, and slots, begin at multiples of this.
inline constexpr uint64_t kMessageAlign = 256;

inline constexpr uint32_t kMessageThreads = kCopyThreads;
// Few enough that all blocks of a launch are on the device at the same time.
inline constexpr uint32_t kMessageBlocks = 32;
// What one block can look after.
inline constexpr uint32_t kMessageTracksMax = 128;

struct MessageLane {
  // Written by the sender.
  alignas(64) uint32_t put;       // pieces so far, modulo 2^32
  uint32_t sends;                 // 1: a kernel of the sender has something for this lane
  uint64_t bytes[kMessageSlots];  // of the message that begins in the slot
  // Written by the receiver.
  alignas(64) uint32_t taken;  // pieces so far, modulo 2^32
  uint32_t receives;           // 1: a kernel of the receiver wants something of this lane
  uint64_t expected;           // with `refused`: the length of the receiver's message
  uint32_t refused;            // in the first lane; 1: it is another one than the sender's
};
static_assert(sizeof(MessageLane) == 128);

// The messages of a launch from one rank to one other, in their order, seen from one end.
struct MessageOrder {
  char* fifo = nullptr;
  MessageLane* lanes = nullptr;
  uint32_t first = 0;  // of the launch's messages
  uint32_t count = 0;
  uint32_t sends = 0;  // 1: the sender's end
  uint32_t zero = 0;
  // nullptr, or a word for each lane: with what counter the launch has begun there, and
  // kMessageBegun. Only it knows, where others may come before it that the host does not see.
  uint64_t* begun = nullptr;
};
static_assert(sizeof(MessageOrder) == 40);
inline constexpr uint64_t kMessageBegun = uint64_t{1} << 32;

struct MessageData {
  char* buffer = nullptr;
  uint64_t bytes = 0;
};

struct MessageArguments {
  static constexpr uint32_t kOrdersHere = 32;
  static constexpr uint32_t kMessagesHere = 128;

  uint64_t slot_bytes = 0;               // a multiple of kMessageAlign
  const uint32_t* stop = nullptr;        // not 0: the launch ends, whatever is left
  const MessageOrder* orders = nullptr;  // nullptr: they and the messages are here
  const MessageData* messages = nullptr;
  uint32_t order_count = 0;
  uint32_t message_count = 0;
  MessageOrder orders_here[kOrdersHere] = {};
  MessageData messages_here[kMessagesHere] = {};
};
static_assert(sizeof(MessageArguments) < 4096, "parameters of a kernel");

inline constexpr const char* kMessageName = "weir_messages";

}  // namespace weir::kernels
