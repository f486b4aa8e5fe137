// SPDX-License-Identifier: Apache-2.0
// Random programs of one-sided operations against a sequential model. A seed makes windows of
// random sizes and kinds and a program for every rank, which every rank knows; so each can tell
// what all memory holds when all have done their parts.
//
// Bytes of a window's part are cut into a stripe for every origin, which alone writes there; its
// operations that overlap are apart by a fence. Words lie before the stripes: one that all add to,
// one that all signal, and one for each origin to compare and swap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weir/weir.h"

namespace weir::test {

struct OneSidedStep {
  enum class Kind { kPut, kGet, kPutSignal, kSignal, kAdd, kSwap, kFlush };
  Kind kind;
  int window;
  int target;
  size_t offset;
  size_t bytes;
  uint64_t value;                    // to add or to set; of a put, the byte at its begin
  uint64_t expected;                 // of a swap; of a get, nothing
  uint64_t old;                      // of a swap: what it finds
  std::vector<unsigned char> found;  // of a get
  bool fenced;                       // a fence stands before it
  bool has_request;
};

struct OneSidedProgram {
  int rank_count;
  std::vector<bool> symmetric;                                 // by window
  std::vector<std::vector<size_t>> sizes;                      // by window and rank
  std::vector<std::vector<std::vector<OneSidedStep>>> rounds;  // by round and rank
  // After each round: by window and rank.
  std::vector<std::vector<std::vector<std::vector<unsigned char>>>> memory;
};

// Of 2 to 4 ranks.
OneSidedProgram make_one_sided_program(uint64_t seed);
// The part of `rank`, whose communicator has as many ranks as the program; a failed expectation
// where something is not as in the model.
void run_one_sided_program(const OneSidedProgram& program, int rank, weir_comm_t comm);

}  // namespace weir::test
