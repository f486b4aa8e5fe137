// SPDX-License-Identifier: Apache-2.0
#include "core/topo/sysfs_files.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <system_error>

namespace weir::topo {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLineBytesMax = 1u << 20;
constexpr size_t kEntryCountMax = 1u << 16;

}  // namespace

std::string read_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  for (char next = 0; line.size() < kLineBytesMax && file.get(next) && next != '\n';) line += next;
  return line;
}

uint64_t bytes_in(std::string_view text) {
  uint64_t value = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc()) return 0;
  const int shift = text.ends_with('K')   ? 10
                    : text.ends_with('M') ? 20
                    : text.ends_with('G') ? 30
                                          : 0;
  return value > UINT64_MAX >> shift ? 0 : value << shift;
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
    if (names.size() >= kEntryCountMax) break;
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace weir::topo
