// SPDX-License-Identifier: Apache-2.0
#include "nccl/base/read_word.h"

#include <fcntl.h>
#include <unistd.h>

namespace weir::nccl {

bool read_word(const void* address, uint64_t* word) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const bool ok = write(ends[1], address, sizeof *word) == static_cast<ssize_t>(sizeof *word) &&
                  read(ends[0], word, sizeof *word) == static_cast<ssize_t>(sizeof *word);
  close(ends[0]);
  close(ends[1]);
  return ok;
}

}  // namespace weir::nccl
