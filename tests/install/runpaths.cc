// SPDX-License-Identifier: Apache-2.0
#include "install/runpaths.h"

#include <algorithm>
#include <system_error>

#include "weir_info/elf_file.h"

namespace weir::test {

namespace fs = std::filesystem;

namespace {

bool lies_below(const fs::path& path, const fs::path& root) {
  const fs::path whole = path.lexically_normal();
  const fs::path top = root.lexically_normal();
  return std::mismatch(top.begin(), top.end(), whole.begin(), whole.end()).first == top.end();
}

}  // namespace

std::vector<std::string> entries_of(const std::string& rpath) {
  std::vector<std::string> entries;
  if (rpath.empty()) return entries;  // the loader ignores one without any entry
  size_t begin = 0;
  for (size_t end = rpath.find(':'); end != std::string::npos; end = rpath.find(':', begin)) {
    entries.push_back(rpath.substr(begin, end - begin));
    begin = end + 1;
  }
  entries.push_back(rpath.substr(begin));
  return entries;
}

std::string wrong_with(const std::string& entry, const fs::path& file, const fs::path& root,
                       const std::vector<fs::path>& also) {
  if (entry.empty()) return "an empty entry, which is the current folder";
  for (const std::string origin : {"$ORIGIN", "${ORIGIN}"}) {
    const bool alone = entry.size() == origin.size() || entry[origin.size()] == '/';
    if (entry.rfind(origin, 0) != 0 || !alone) continue;
    const std::string whole = file.parent_path().string() + entry.substr(origin.size());
    return lies_below(whole, root) ? "" : "'" + entry + "' leaves " + root.string();
  }
  if (entry[0] != '/') return "'" + entry + "' depends on the current folder";
  const bool allowed = std::any_of(also.begin(), also.end(),
                                   [&](const fs::path& it) { return lies_below(entry, it); });
  return allowed ? "" : "'" + entry + "' is a folder of others";
}

std::vector<std::string> wrong_entries(const fs::path& root, const std::vector<fs::path>& also,
                                       size_t* count) {
  std::vector<std::string> wrong;
  *count = 0;
  // Other tests make and remove files meanwhile.
  std::error_code ignored;
  const auto options = fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator it(root, options, ignored), end; it != end;
       it.increment(ignored)) {
    if (it->is_symlink(ignored) || !it->is_regular_file(ignored)) continue;
    const auto file = info::read_elf_file(it->path());
    if (!file.ok()) continue;  // no ELF file
    *count += file.value().needed.empty() ? 0 : 1;
    for (const std::string& all : {file.value().rpath, file.value().runpath}) {
      for (const std::string& entry : entries_of(all)) {
        const std::string reason = wrong_with(entry, it->path(), root, also);
        if (!reason.empty()) wrong.push_back(it->path().string() + ": " + reason);
      }
    }
  }
  return wrong;
}

}  // namespace weir::test
