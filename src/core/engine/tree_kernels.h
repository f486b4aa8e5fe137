// SPDX-License-Identifier: Apache-2.0
// The kernels behind tree_kernels(), by family of element types; empty for a type of another one.
// Thread-safe.
#pragma once

#include "core/engine/tree.h"

namespace weir {

TreeKernels float_tree_kernels(DataType type, Fold fold);
TreeKernels integer_tree_kernels(DataType type, Fold fold);

}  // namespace weir
