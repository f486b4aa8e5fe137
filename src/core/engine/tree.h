// SPDX-License-Identifier: Apache-2.0
// Kernels of folds over leaves (base/leaves.h): a tree of folds of two over any number of operands
// in one pass, in partial results (f32 for f16, bf16 and fp8; else the type itself), of which the
// last is divided and rounded to the type. Nothing is reordered or contracted: the bits do not
// depend on instruction set, alignment, element count, nor on how the tree is divided over calls.
// Thread-safe.
//
// As reduce.h with Arithmetic::kIeee: every NaN that is stored is the positive quiet one, -0 is
// less than +0, integers wrap, averages of integers truncate towards zero.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/types.h"

namespace weir {

// Operands on the stack, at most.
inline constexpr uint32_t kTreeDepth = 16;

struct TreeOperand {
  const void* data = nullptr;
  // The operand is put on a stack; then the top two are folded so often, the lower first.
  uint32_t folds = 0;
  bool narrow = false;  // of the type; else a partial result. The same where both are one type
};

// Pointers may have any alignment. `dst` may be exactly any operand with elements of the same size.
struct TreeArgs {
  void* dst = nullptr;
  const TreeOperand* operands = nullptr;
  uint32_t operand_count = 0;  // >= 1; the folds leave one result
  size_t element_count = 0;
  uint32_t divisor = 1;    // of a result (average)
  bool streaming = false;  // dst is written with non-temporal stores, and the fence they need
};

using TreeKernel = void (*)(const TreeArgs& args);

struct TreeKernels {
  TreeKernel partial = nullptr;  // dst is a partial result; the divisor is ignored
  TreeKernel result = nullptr;   // dst has the type
};

// Never nullptr.
TreeKernels tree_kernels(DataType type, Fold fold);

// Fills dst, partial results of `type`, with the value that an absent node has among the nodes of a
// rank: folded with any x, first or second, it gives x (sum: -0; product: 1; maximum: the least
// value; minimum: the greatest).
void fill_absent(DataType type, Fold fold, void* dst, size_t element_count);

}  // namespace weir
