// SPDX-License-Identifier: Apache-2.0
#include "tree/tree_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>

namespace weir::tree {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = WEIR_SOURCE_TREE;

std::string output_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string output;
  std::array<char, 4096> block{};
  while (pipe != nullptr) {
    const size_t bytes = fread(block.data(), 1, block.size(), pipe.get());
    if (bytes == 0) break;
    output.append(block.data(), bytes);
  }
  return output;
}

std::vector<std::string> find_files() {
  std::vector<std::string> found;
  std::istringstream tracked(output_of("git -C '" + kRoot.string() + "' ls-files -z 2>/dev/null"));
  for (std::string path; std::getline(tracked, path, '\0');)
    if (fs::is_regular_file(kRoot / path)) found.push_back(path);
  if (found.empty()) {
    for (auto it = fs::recursive_directory_iterator(kRoot); it != fs::end(it); ++it) {
      const std::string path = it->path().lexically_relative(kRoot).generic_string();
      if (path == ".git" || path == "build" || path == "out")
        it.disable_recursion_pending();
      else if (it->is_regular_file())
        found.push_back(path);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

const std::vector<std::string>& files() {
  static const std::vector<std::string> kFiles = find_files();
  return kFiles;
}

bool exists(const std::string& path) { return fs::exists(kRoot / path); }

bool is_executable(const std::string& path) {
  return (fs::status(kRoot / path).permissions() & fs::perms::owner_exec) != fs::perms::none;
}

std::string read(const std::string& path) {
  std::ifstream file(kRoot / path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool ends_with(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

bool is_source(const std::string& path) {
  for (const char* suffix : {".h", ".cc", ".c", ".cu", ".cuh"})
    if (ends_with(path, suffix)) return true;
  return false;
}

std::string code_of(const std::string& text) {
  enum class In { kCode, kLine, kBlock, kString, kCharacter } in = In::kCode;
  std::string code;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const bool was_code = in == In::kCode;
    switch (in) {
      case In::kCode:
        if (c == '/' && next == '/') {
          in = In::kLine;
        } else if (c == '/' && next == '*') {
          in = In::kBlock;
          ++i;
        } else {
          code += c;
          if (c == '"') in = In::kString;
          // A quote after a digit or letter separates digits.
          if (c == '\'' && (i == 0 || !std::isalnum(static_cast<unsigned char>(text[i - 1]))))
            in = In::kCharacter;
        }
        break;
      case In::kLine:
        if (c == '\n') in = In::kCode;
        break;
      case In::kBlock:
        if (c == '*' && next == '/') {
          in = In::kCode;
          ++i;
        }
        break;
      case In::kString:
      case In::kCharacter:
        if (c == '\\') {
          ++i;
        } else if (c == (in == In::kString ? '"' : '\'')) {
          code += c;
          in = In::kCode;
        }
        break;
    }
    if (c == '\n' && !was_code) code += '\n';
  }
  return code;
}

std::vector<Include> includes_of(const std::string& text) {
  std::vector<Include> includes;
  int number = 0;
  for (const std::string& line : lines_of(text)) {
    ++number;
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "#") {
      words >> word;
      word.insert(0, "#");
    }
    if (word != "#include") continue;
    const size_t first = line.find_first_of("<\"");
    const size_t last = first == std::string::npos ? first : line.find_first_of(">\"", first + 1);
    if (last != std::string::npos)
      includes.push_back({line.substr(first + 1, last - first - 1), number, line[first] == '"'});
  }
  return includes;
}

std::string included_file(const std::string& file, const std::string& path) {
  const std::string own_folder = file.substr(0, file.rfind('/') + 1);
  for (const std::string& folder :
       {std::string("src/"), std::string("include/"), std::string("tools/"), std::string("tests/"),
        std::string(), own_folder}) {
    const std::string found = fs::path(folder + path).lexically_normal().generic_string();
    if (std::binary_search(files().begin(), files().end(), found)) return found;
  }
  return "";
}

}  // namespace weir::tree
