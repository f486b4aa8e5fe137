// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/copy_host.h"

#include <cstring>

namespace weir::kernels {

void copy_on_host(const CopyArguments& arguments, uint32_t block_count) {
  for (uint32_t block = 0; block < block_count; ++block) {
    const CopyPiece piece = share_of_block(arguments, block, block_count);
    if (piece.bytes > 0) std::memcpy(piece.to, piece.from, piece.bytes);
  }
}

}  // namespace weir::kernels
