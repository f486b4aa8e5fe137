// SPDX-License-Identifier: Apache-2.0
// The files of /sys as it is read here: bounded, and "" or nothing where they cannot be read (many
// attributes of a device that is down give an error). Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace weir::topo {

// The first line of a file, at most 1 MiB.
std::string read_line(const std::filesystem::path& path);

// "512K", "32M", "7": a number with its unit of 1,024; 0 when it is none or has more than 64 bits.
uint64_t bytes_in(std::string_view text);
// No cache is larger: a larger figure is a fault.
inline constexpr uint64_t kCacheBytesMax = uint64_t{1} << 40;

// The names in a folder, sorted; at most 65,536.
std::vector<std::string> entries(const std::filesystem::path& folder);

}  // namespace weir::topo
