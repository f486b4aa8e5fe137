// SPDX-License-Identifier: Apache-2.0
// Program: one rank's operations for one collective, and Builder, with which algorithms make it. A
// Program is a value: built by one thread, then read by any.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/sched/op.h"

namespace weir::sched {

// The resources that a program needs, the same on every rank.
struct Shape {
  uint32_t chunk_count = 0;    // grid, see op.h
  uint32_t scratch_slots = 0;  // slots each of one chunk
  uint32_t staging_slots = 0;  // slots per rank, each of one chunk
  uint32_t lane_count = 1;
  uint32_t signal_count = 0;  // signal indices per (sender, receiver)
  uint32_t leaf_count = 0;    // of a fold over leaves (op.h); 0: each rank contributes once
};

struct Program {
  Collective collective = Collective::kBarrier;
  Rank rank = 0;
  Rank rank_count = 1;
  Rank root = 0;
  Shape shape;
  std::vector<Op> ops;        // all lanes; each lane's operations are in order
  std::vector<Ref> operands;  // of the reduce operations
  // What MovedChunks says, where the verifier has found it with the programs of all ranks; empty:
  // it is found from this program alone.
  std::vector<uint32_t> moved_chunks;
};

// Appends operations to `ops` and `operands`. Algorithms emit operations only through it.
class Builder {
 public:
  Builder(Rank self, std::vector<Op>* ops, std::vector<Ref>* operands)
      : self_(self), ops_(ops), operands_(operands) {}

  Rank self() const { return self_; }
  // The lane of the operations that follow; 0 at first.
  void lane(uint8_t lane) { lane_ = lane; }
  // The condition of the operations that follow; kAlways at first.
  void when(When when) { when_ = when; }

  // References to local memory and to a peer's memory.
  Ref input(uint32_t chunk) const { return {chunk, self_, Space::kInput}; }
  Ref output(uint32_t chunk) const { return {chunk, self_, Space::kOutput}; }
  Ref scratch(uint32_t slot) const { return {slot, self_, Space::kScratch}; }
  Ref staging(uint32_t slot) const { return {slot, self_, Space::kStaging}; }
  static Ref input_at(Rank rank, uint32_t chunk) { return {chunk, rank, Space::kInput}; }
  static Ref output_at(Rank rank, uint32_t chunk) { return {chunk, rank, Space::kOutput}; }
  // Where Input is told, with the slot that stands in for it.
  static Ref input_at(Rank rank, uint32_t chunk, uint32_t slot) {
    return {.chunk = chunk, .rank = rank, .space = Space::kInput, .slot = slot};
  }
  static Ref staging_at(Rank rank, uint32_t slot) { return {slot, rank, Space::kStaging}; }

  void send(Rank peer, Ref src, uint32_t count = 1);
  void recv(Rank peer, Ref dst, uint32_t count = 1);
  void copy(Ref dst, Ref src, uint32_t count = 1);
  void reduce(Ref dst, std::span<const Ref> operands, uint32_t count = 1);
  // Likewise, of a result that further folds complete (Op::partial).
  void reduce_partially(Ref dst, std::span<const Ref> operands, uint32_t count = 1);
  // Likewise, by Ref::folds of the operands (Op::tree).
  void reduce_tree(Ref dst, std::span<const Ref> operands, uint32_t count = 1);
  // dst = dst op src
  void reduce_into(Ref dst, Ref src, uint32_t count = 1);
  void signal(uint32_t peer, uint8_t index);
  void wait(uint32_t peer, uint8_t index, uint32_t value);

 private:
  Op& add(OpCode code);

  Rank self_;
  uint8_t lane_ = 0;
  When when_ = When::kAlways;
  std::vector<Op>* ops_;
  std::vector<Ref>* operands_;
};

}  // namespace weir::sched
