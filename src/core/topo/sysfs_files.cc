// SPDX-License-Identifier: Apache-2.0
#include "core/topo/sysfs_files.h"

#include <algorithm>
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
