// SPDX-License-Identifier: Apache-2.0
// Which folders the programs and libraries below a folder make the loader search: their RPATH and
// RUNPATH, and what must not be in them. Functions of the files alone; thread-safe.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace weir::test {

// Of an RPATH or RUNPATH; empty ones too.
std::vector<std::string> entries_of(const std::string& rpath);

// What is wrong with an entry of `file`, which lies below `root`; "" when nothing is. Right are
// $ORIGIN and what is named from there, as long as it stays below `root`, and what lies below one
// of `also`, which are absolute.
std::string wrong_with(const std::string& entry, const std::filesystem::path& file,
                       const std::filesystem::path& root,
                       const std::vector<std::filesystem::path>& also);

// One line for each wrong entry below `root`; `count`: the programs and libraries that were read.
std::vector<std::string> wrong_entries(const std::filesystem::path& root,
                                       const std::vector<std::filesystem::path>& also,
                                       size_t* count);

}  // namespace weir::test
