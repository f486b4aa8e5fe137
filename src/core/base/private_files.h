// SPDX-License-Identifier: Apache-2.0
// Files of this user that only the user may write, such as those of the cache: read with checks of
// owner and permissions, and replaced whole, by rename. Thread- and process-safe.
#pragma once

#include <cstddef>
#include <ctime>
#include <optional>
#include <string>

#include "core/base/status.h"

namespace weir {

struct PrivateFile {
  std::string text;
  time_t written = 0;
};

// No value: the file does not exist. It must be a regular file that belongs to this user, that only
// its owner may write, and of at most `bytes_max`, in a directory that belongs to this user or to
// root and that only its owner may write.
Result<std::optional<PrivateFile>> read_private_file(const std::string& directory,
                                                     const std::string& name, size_t bytes_max);

// A regular file of at most `bytes_max`, whoever owns it.
Result<std::string> read_any_file(const std::string& path, size_t bytes_max);

// Writes the whole file as output::write_file does: a new one (mode 0600) is synced and renamed.
// What is no regular file stays what it is.
Status replace_file(const std::string& path, const std::string& text);

// The same in a directory, which is made (mode 0700) if needed and checked as for reading. A link
// or a FIFO of that name is replaced: it would not be read.
Status store_private_file(const std::string& directory, const std::string& name,
                          const std::string& text);

}  // namespace weir
