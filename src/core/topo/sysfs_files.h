// SPDX-License-Identifier: Apache-2.0
// The files of /sys as it is read here: bounded, and "" or nothing where they cannot be read (many
// attributes of a device that is down give an error). Thread-safe.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace weir::topo {

// The first line of a file, at most 1 MiB.
std::string read_line(const std::filesystem::path& path);

// The names in a folder, sorted; at most 65,536.
std::vector<std::string> entries(const std::filesystem::path& folder);

}  // namespace weir::topo
