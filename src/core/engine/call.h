// SPDX-License-Identifier: Apache-2.0
// Call: one collective as the caller asked for it, in the terms of the engine. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/leaves.h"
#include "core/base/types.h"

namespace weir::engine {

// What a collective of the library's own belongs to, so that texts name what the user called.
enum class Purpose : uint8_t {
  kNone = 0,
  kWindowCreate = 1,
  kWindowDestroy = 2,
  kDirect = 3,  // the ranks agree on an operation from device to device
  kSetup = 4,   // they tell each other what they need to make or change a communicator
  kMemoryAllocate = 5,
  kArenaCreate = 6,
  kMemoryRegister = 7,
};

struct Call {
  Collective collective = Collective::kBarrier;
  DataType type = DataType::kUint8;
  Fold fold = Fold::kSum;
  bool average = false;
  bool scaled = false;  // pre-multiplied sum: `scale` holds one element
  bool in_place = false;
  // The ranks tell where their buffers lie with their first signal: not of the call as the caller
  // made it, but of how the ranks, all alike, carry it out.
  bool told = false;
  Purpose purpose = Purpose::kNone;
  Rank root = 0;
  // A fold over this many leaves (base/leaves.h): `input` holds the nodes of this rank, partial
  // results; 0: an ordinary reduction.
  uint32_t leaf_count = 0;
  size_t count = 0;  // elements: of the whole buffer, or of one block (see weir.h)
  // v-variants, n entries each; displacements may be nullptr: blocks follow each other. For
  // reduce_scatter_v and all_gather_v they describe all blocks. For all_to_all_v they describe the
  // blocks that this rank sends, and `count` is 0, since no number of elements is the same on all
  // ranks.
  const size_t* block_counts = nullptr;
  const size_t* block_displacements = nullptr;
  // all_to_all_v: the blocks that this rank receives.
  const size_t* recv_counts = nullptr;
  const size_t* recv_displacements = nullptr;
  // all_to_all_v where memory is mapped: the elements of the longest block of all ranks.
  size_t block_count_max = 0;
  const void* input = nullptr;
  void* output = nullptr;
  alignas(8) unsigned char scale[8] = {};
};

// The bytes of an element of `input`, and of what ranks pass to each other before it is a result.
inline size_t input_element_bytes(const Call& call) {
  return element_bytes(call.leaf_count > 0 ? partial_type(call.type) : call.type);
}

// A 32-bit value, never 0: the same on all ranks if and only if the calls match. Where all ranks
// pass the same block counts, these are part of it.
uint32_t fingerprint(const Call& call, Rank rank_count);
uint32_t fingerprint(uint64_t what, uint64_t count);  // of pack_what, without block counts

// Collective, type, fold, purpose, root and number of leaves in one word, and back into words.
inline uint64_t pack_what(const Call& call) {
  return static_cast<uint64_t>(call.collective) | static_cast<uint64_t>(call.type) << 8 |
         static_cast<uint64_t>(call.fold) << 16 | uint64_t{call.average} << 24 |
         uint64_t{call.scaled} << 25 | uint64_t{call.block_counts != nullptr} << 26 |
         static_cast<uint64_t>(call.purpose) << 27 | uint64_t{call.root & 0xffff} << 32 |
         uint64_t{call.leaf_count} << 48;
}
inline Rank root_of(uint64_t what) { return static_cast<Rank>(what >> 32 & 0xffff); }
inline uint32_t leaf_count_of(uint64_t what) { return static_cast<uint32_t>(what >> 48); }
std::string describe(uint64_t what, uint64_t count);  // "all_reduce(float32, sum, count 1024)"
std::string describe(const Call& call);

}  // namespace weir::engine
