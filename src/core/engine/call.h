// SPDX-License-Identifier: Apache-2.0
// Call: one collective as the caller asked for it, in the terms of the engine. A plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/types.h"

namespace weir::engine {

struct Call {
  Collective collective = Collective::kBarrier;
  DataType type = DataType::kUint8;
  Fold fold = Fold::kSum;
  bool average = false;
  bool scaled = false;  // pre-multiplied sum: `scale` holds one element
  bool in_place = false;
  Rank root = 0;
  size_t count = 0;  // elements: of the whole buffer, or of one block (see weir.h)
  const size_t* block_counts = nullptr;         // reduce_scatter_v, all_gather_v: n entries
  const size_t* block_displacements = nullptr;  // all_gather_v
  const void* input = nullptr;
  void* output = nullptr;
  alignas(8) unsigned char scale[8] = {};
};

// One rank's buffer is the source or the destination of all.
bool is_rooted(Collective collective);

// Same on all ranks exactly when the calls match. 32 bits, never 0.
uint32_t fingerprint(const Call& call);
uint32_t fingerprint(uint64_t what, uint64_t count);  // of pack_what

// Collective, type, fold and root in one word, and back into words.
uint64_t pack_what(const Call& call);
std::string describe(uint64_t what, uint64_t count);  // "all_reduce(float32, sum, count 1024)"
std::string describe(const Call& call);

}  // namespace weir::engine
