// SPDX-License-Identifier: Apache-2.0
// The files of the source tree, for tests about the tree itself. Paths are relative to its root.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir::tree {

// What git tracks, or, in a tree without git, every file outside of build folders. Sorted.
const std::vector<std::string>& files();

bool exists(const std::string& path);
bool is_executable(const std::string& path);
std::string read(const std::string& path);
std::vector<std::string> lines_of(const std::string& text);

bool starts_with(std::string_view text, std::string_view prefix);
bool ends_with(std::string_view text, std::string_view suffix);

// C++, C or CUDA sources and headers.
bool is_source(const std::string& path);
// The text without comments, string and character literals, with the same number of lines.
std::string code_of(const std::string& text);

struct Include {
  std::string path;  // as written, without its quotes or brackets
  int line = 0;
  bool is_quoted = false;
};
std::vector<Include> includes_of(const std::string& text);
// The file of the tree that `path` means, included by `file`; "" when it is none of ours.
std::string included_file(const std::string& file, const std::string& path);

}  // namespace weir::tree
