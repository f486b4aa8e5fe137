// SPDX-License-Identifier: Apache-2.0
// The intermediate representation of a collective: what one rank does, as data.
//
// Data is named, not addressed. The logical data of a collective is a grid of `chunk_count` chunks,
// the same on all ranks; a chunk's number is its identity wherever it lies:
//
//   collective       grid                     Input of rank r holds     Output of rank r holds
//   all_reduce       0..G-1                   all                       all
//   reduce_scatter   rank*g .. (g per rank)   all                       chunks of r
//   all_gather       rank*g ..                chunks of r               all
//   all_to_all       (source*n + target)*g    chunks with source r      chunks with target r
//   broadcast        0..G-1                   root: all; else nothing   all
//   reduce           0..G-1                   all                       root: all; else nothing
//   gather           rank*g ..                chunks of r               root: all
//   scatter          rank*g ..                root: all                 chunks of r
//   barrier          0 chunks                 nothing                   nothing
//
// With leaves (Shape::leaf_count > 0; all_reduce, reduce_scatter, reduce) the Input of a rank holds
// these chunks of each node that the rank has of the tree over the leaves (base/leaves.h), and
// Ref::node tells which. Input, Scratch and Staging then hold partial results; what is written to
// Output is divided, if it is an average, and rounded to the result's type, and is only moved from
// Output to Output.
//
// where g = chunk_count / n (or / n^2 for all_to_all). The length of a chunk and its place in a
// user's buffer are decided when a Plan is bound (only plans know uneven tails and v-variants).
// Scratch (private) and Staging (readable and writable by peers on mapped transports) are arrays of
// slots; a slot holds any one chunk.
//
// Order: operations of one lane run in order; lanes run independently; only wait synchronizes them.
// Messages are FIFO per (sender, receiver, lane): the k-th send matches the k-th recv. Signals are
// monotonic counters per (sender, receiver, index): signal adds one, wait blocks until the counter
// has reached `value` (counted from 0 at the start of the program). Data written by a lane is
// visible to every rank that has seen a later signal of that lane.
//
// Buffers that are told. In a program for Problem::told, a rank's Input lies in a window (*open*)
// or not (*closed*), and the other ranks learn which with its first signal. All ranks have the same
// program whatever their Inputs are: a rank executes an operation with a condition (Op::when) only
// if its own Input is as the condition says, and what it reads in a closed Input of a peer, it
// finds in the slot that stands in for it (Ref::slot). told.h makes an ordinary program of it, for
// given Inputs.
#pragma once

#include <cstdint>

#include "core/base/types.h"

namespace weir::sched {

enum class OpCode : uint8_t {
  kSend,    // src (local) to `peer`
  kRecv,    // dst (local) from `peer`
  kCopy,    // dst = src; one of them may be at a peer on a mapped transport: a put, or a get
  kReduce,  // dst = fold, from left to right, of the operands [first_operand, +operand_count)
  kSignal,  // adds 1 to counter (self -> peer, signal); peer kAllRanks: to every rank's
  kWait,    // until counter (peer -> self, signal) >= value; peer kAllRanks: of every other rank
};
inline constexpr uint32_t kOpCodeCount = 6;

enum class Space : uint8_t {
  kInput,    // user's send buffer; chunk = grid chunk. At a peer only if Problem::inputs_mapped
  kOutput,   // user's receive buffer; chunk = grid chunk. At a peer only if outputs_mapped
  kScratch,  // private slots
  kStaging,  // this communicator's slots at rank `rank`, reachable by all if Problem::mapped
};

inline constexpr uint32_t kAllRanks = 0xffffffffu;
inline constexpr uint32_t kNoSlot = 0xffffffffu;
// Of Op::tree: operands on the stack.
inline constexpr uint32_t kTreeDepthMax = 16;

// What a rank's own Input must be for it to execute an operation.
enum class When : uint8_t { kAlways, kInputOpen, kInputClosed };

// `count` consecutive chunks (or slots) from `chunk` in the memory of `rank`.
struct Ref {
  uint32_t chunk = 0;
  uint32_t rank = 0;  // owner of the memory; the program's own rank when local
  Space space = Space::kInput;
  uint8_t folds = 0;  // of an operand of a tree: the folds after it (Op::tree)
  uint8_t node = 0;   // Input with leaves: which of the rank's nodes
  // Input of a peer that is read: the first slot of that peer's Staging that holds the same where
  // Input is closed. kNoSlot: it is always open.
  uint32_t slot = kNoSlot;
};

// One operation; the opcode that uses a field explains it.
struct Op {
  OpCode code = OpCode::kCopy;
  uint8_t lane = 0;
  uint8_t signal = 0;  // index < Shape::signal_count
  // reduce in a mapped program: further folds complete the result. An average is divided by the
  // number of ranks in the folds that are not partial.
  bool partial = false;
  // reduce: the operands are leaves of a tree of folds of two. The operands are visited in order;
  // each is put on a stack, and then the top two are folded Ref::folds times, the lower first. One
  // result is left.
  bool tree = false;
  When when = When::kAlways;  // not of a signal
  uint32_t peer = 0;          // rank, or kAllRanks for signal and wait
  uint32_t count = 1;         // chunks moved or reduced: dst and all sources span as many
  uint32_t value = 0;         // wait
  Ref dst;
  Ref src;
  uint32_t first_operand = 0;  // reduce: index into Program::operands
  uint32_t operand_count = 0;
};

}  // namespace weir::sched
