// SPDX-License-Identifier: Apache-2.0
// write_file: how every part of Weir writes a whole file. Thread- and
// process-safe.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

namespace weir::output {

// A FIFO, a terminal or a socket that takes nothing for so long is given up.
constexpr int kSilentMsMax = 10'000;

struct FileOptions {
  mode_t mode = 0666;  // of a new file, less the umask
  bool sync = true;    // survives a crash of the machine, complete
  // The name is Weir's own, in a folder for its files: whatever has it is replaced, also a link or
  // a FIFO. Only a directory stays.
  bool is_own = false;
};

// Returns "", or what cannot be written, why, and the remedy. Of files that users name:
// - A regular file, or one that does not exist yet, is replaced by a new one that is renamed, so
//   that no reader sees half of it.
// - Symbolic links are followed to the file that they name.
// - What is no regular file (a FIFO, /dev/null, a terminal) is written to and remains what it is; a
//   FIFO needs a reader. Directories, sockets and block devices are refused.
// - A file that is this process's standard output or error gets the text where these stand.
std::string write_file(const std::string& path, std::string_view text,
                       const FileOptions& options = {});

}  // namespace weir::output
