// SPDX-License-Identifier: Apache-2.0
#include "core/plugin/module_folder.h"

#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>

namespace weir::plugin {
namespace {

constexpr std::string_view kPrefix = "libweir_";
constexpr std::string_view kSuffix = ".so";
constexpr size_t kNameCharactersMax = 32;

std::string real_path_of(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return "";
  std::string real = resolved;
  free(resolved);
  return real;
}

bool is_directory(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// The file that this code was loaded from; "" when the loader does not know it by an absolute path.
std::string own_object() {
  Dl_info info = {};
  link_map* map = nullptr;
  const auto* here = reinterpret_cast<const void*>(&module_folder_of);
  if (dladdr1(here, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0) return "";
  const std::string_view name = map != nullptr && map->l_name != nullptr ? map->l_name : "";
  // The program itself has no name there.
  if (name.empty()) return real_path_of("/proc/self/exe");
  return name[0] == '/' ? real_path_of(std::string(name)) : "";
}

bool is_name(std::string_view name) {
  return !name.empty() && name.size() <= kNameCharactersMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
         });
}

}  // namespace

std::string module_folder_of(const std::string& object) {
  const size_t slash = object.rfind('/');
  if (object.empty() || object[0] != '/' || slash == std::string::npos) return "";
  const std::string directory = object.substr(0, slash);
  // Next to libweir, next to a library in <libdir>/weir, and for a program relative to the folder
  // of programs, installed and in the build tree.
  std::vector<std::string> places = {directory + "/weir/plugins"};
  if (directory.ends_with("/weir")) places.push_back(directory + "/plugins");
  places.push_back(directory + "/" WEIR_BIN_TO_LIB "/weir/plugins");
  places.push_back(directory + "/../lib/weir/plugins");
  for (const std::string& place : places) {
    if (is_directory(place)) return real_path_of(place);
  }
  return "";
}

const std::string& module_folder() {
  static const std::string* folder = new std::string(module_folder_of(own_object()));
  return *folder;
}

std::string module_path(std::string_view name) {
  if (module_folder().empty() || !is_name(name)) return "";
  return module_folder() + "/" + std::string(kPrefix) + std::string(name) + std::string(kSuffix);
}

std::vector<std::string> module_files() {
  std::vector<std::string> files;
  DIR* stream = module_folder().empty() ? nullptr : opendir(module_folder().c_str());
  if (stream == nullptr) return files;
  while (const dirent* item = readdir(stream)) {
    const std::string_view file = item->d_name;
    if (file.size() <= kPrefix.size() + kSuffix.size() || !file.starts_with(kPrefix) ||
        !file.ends_with(kSuffix)) {
      continue;
    }
    const std::string path =
        module_path(file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
    if (!path.empty()) files.push_back(path);
  }
  closedir(stream);
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace weir::plugin
