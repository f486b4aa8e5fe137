// SPDX-License-Identifier: Apache-2.0
#include "weir_info/loading.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "weir_info/elf_file.h"
#include "weir_info/run_program.h"

namespace weir::info {
namespace {

namespace fs = std::filesystem;

constexpr int kLoaderMs = 20'000;
constexpr int kPythonMs = 20'000;
constexpr int kVersionMs = 20'000;
constexpr size_t kScriptBytes = 4096;
// What every libnccl.so.2 of this project exports (src/nccl/real/library.cc).
constexpr const char* kMarker = "weir_nccl_marker";
// What both stand-ins for CUDA need.
constexpr const char* kStandInsPart = "libweir_hostcuda.so";

std::vector<std::string> split(const std::string& text, const char* separators) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string canonical(const std::string& path) {
  std::error_code error;
  const fs::path resolved = fs::canonical(path, error);
  return error ? path : resolved.string();
}

bool is_executable(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && access(path.c_str(), X_OK) == 0;
}

struct Entry {
  std::string name;  // as requested
  std::string path;  // "" when it was not found
  std::string text;  // the loader's text
};

constexpr const char* kNotFound = "not found";

// Folders of the environment may be relative. "" for text that is not a path: "not found", the
// kernel's linux-vdso.so.1.
std::string absolute_if_path(const std::string& text) {
  std::error_code error;
  return text.find('/') == std::string::npos
             ? ""
             : fs::absolute(text, error).lexically_normal().string();
}

// Lines of the loader: "name => /path (0x…)", "/path (0x…)", "name => not found".
std::vector<Entry> entries_in(const std::string& listing) {
  std::vector<Entry> entries;
  for (std::string line : split(listing, "\n")) {
    const size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    line = line.substr(begin);
    if (const size_t base = line.rfind(" (0x"); base != std::string::npos) line.resize(base);
    const size_t arrow = line.find(" => ");
    if (arrow == std::string::npos) {
      entries.push_back({line, absolute_if_path(line), line});
      continue;
    }
    const std::string text = line.substr(arrow + 4);
    entries.push_back({line.substr(0, arrow), absolute_if_path(text), text});
  }
  return entries;
}

// The loader that the object names, or this program's own for a library, which names none.
Result<std::string> loader_for(const ElfFile& file) {
  std::string loader = file.interpreter;
  if (loader.empty()) {
    auto self = read_elf_file("/proc/self/exe");
    if (!self.ok()) return self.status();
    loader = self.value().interpreter;
  }
  if (fs::path(loader).filename().string().starts_with("ld-")) return loader;
  return invalid_argument("the loader is named " + loader +
                          ", which is not a loader of the C library");
}

// `preload` is appended to LD_PRELOAD.
Result<std::vector<Entry>> listing_of(const std::string& object, const std::string& preload) {
  const auto file = read_elf_file(object);
  if (!file.ok()) return file.status();
  const auto loader = loader_for(file.value());
  if (!loader.ok()) return loader.status();
  std::vector<std::pair<std::string, std::string>> environment;
  if (!preload.empty()) {
    const std::string before = variable("LD_PRELOAD");
    environment.push_back({"LD_PRELOAD", before.empty() ? preload : before + ":" + preload});
  }
  // Like ldd: with --list, the loader of glibc stops at the first missing library. Other loaders
  // have only --list.
  const bool of_musl = fs::path(loader.value()).filename().string().starts_with("ld-musl");
  std::vector<std::string> command = {loader.value(), object};
  if (of_musl) command.insert(command.begin() + 1, "--list");
  environment.push_back({"LD_TRACE_LOADED_OBJECTS", of_musl ? "" : "1"});
  const auto output = run_program(command, environment, kLoaderMs);
  if (!output.ok()) return output.status();
  std::vector<Entry> entries = entries_in(output.value().out);
  if (entries.empty() && output.value().exit_code != 0) {
    return invalid_argument("the loader cannot load " + object + ": " + output.value().err);
  }
  return entries;
}

// Finds libnccl.so.2 by its SONAME: a preloaded file may have any name.
std::string nccl_among(const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    if (entry.path.empty()) continue;
    if (entry.name == kNcclName) return entry.path;
    const auto preloaded = split(variable("LD_PRELOAD"), ": ");
    const bool candidate = entry.path.find("nccl") != std::string::npos ||
                           std::count(preloaded.begin(), preloaded.end(), entry.path) > 0;
    if (!candidate) continue;
    const auto file = read_elf_file(entry.path);
    if (file.ok() && file.value().soname == kNcclName) return entry.path;
  }
  return "";
}

bool needs_nccl(const ElfFile& file) {
  return std::count(file.needed.begin(), file.needed.end(), kNcclName) > 0;
}

bool folder_among(const std::string& folder, const std::string& list, const std::string& origin) {
  for (std::string one : split(list, ":;")) {
    for (const char* token : {"$ORIGIN", "${ORIGIN}"}) {
      const size_t at = one.find(token);
      if (at != std::string::npos) one.replace(at, strlen(token), origin);
    }
    if (canonical(one) == folder) return true;
  }
  return false;
}

struct User {
  std::string path;
  ElfFile file;
};

std::string reason_for(const std::string& path, const std::vector<User>& users) {
  for (const std::string& one : split(variable("LD_PRELOAD"), ": ")) {
    const bool by_name = one.find('/') == std::string::npos;  // which is then searched for
    if (by_name ? fs::path(path).filename() == one : canonical(one) == canonical(path))
      return kReasonOfPreload;
  }
  const std::string folder = canonical(fs::path(path).parent_path().string());
  const auto origin = [](const User& user) {
    return fs::path(canonical(user.path)).parent_path().string();
  };
  for (const User& user : users) {
    if (!user.file.runpath.empty()) continue;
    if (folder_among(folder, user.file.rpath, origin(user))) return "RPATH of " + user.path;
  }
  if (folder_among(folder, variable("LD_LIBRARY_PATH"), "")) return "LD_LIBRARY_PATH";
  for (const User& user : users) {
    if (folder_among(folder, user.file.runpath, origin(user))) return "RUNPATH of " + user.path;
  }
  return "the loader's cache (ldconfig -p) or its default folders";
}

bool is_of_nccl(const std::string& name) {
  return name.starts_with("nccl") || name.starts_with("pnccl");
}

std::vector<MissingSymbols> missing_in(const std::string& library, const std::vector<User>& users) {
  std::vector<MissingSymbols> missing;
  const auto offered = read_elf_file(library);
  if (!offered.ok()) return missing;
  for (const User& user : users) {
    MissingSymbols one{user.path, {}};
    for (const std::string& name : user.file.imported) {
      if (is_of_nccl(name) && !offered.value().exported.contains(name)) one.names.push_back(name);
    }
    if (!one.names.empty()) missing.push_back(std::move(one));
  }
  return missing;
}

// The words of "#!/usr/bin/env python3" and the like; empty for other files. Where an interpreter's
// path is too long for the kernel, pip writes a line for the shell that hands over to it.
std::vector<std::string> first_line_of_script(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char mark[2] = {};
  if (!file.read(mark, 2) || mark[0] != '#' || mark[1] != '!') return {};
  std::string text(kScriptBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  const auto lines = split(text, "\n");
  auto words = lines.empty() ? std::vector<std::string>{} : split(lines[0], " \t\r");
  if (lines.size() > 1 && lines[1].starts_with("'''exec' ")) {
    const auto handed = split(lines[1].substr(strlen("'''exec' ")), " \t\r\"");
    if (!handed.empty()) words = {handed.front()};
  }
  return words;
}

}  // namespace

Result<std::string> find_program(const std::string& program) {
  std::string path = program;
  if (program.find('/') == std::string::npos) {
    path.clear();
    for (const std::string& folder : split(variable("PATH"), ":")) {
      const std::string candidate = (fs::path(folder) / program).string();
      if (path.empty() && is_executable(candidate)) path = candidate;
    }
    if (path.empty()) return invalid_argument("there is no program " + program + " on PATH");
  }
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return invalid_argument("there is no program " + path);
  path = fs::absolute(path, error).lexically_normal().string();
  const auto words = first_line_of_script(path);
  // As it is usually run: python3 program.py.
  if (words.empty() && fs::path(path).extension() == ".py") return interpreter_of_python("python3");
  if (words.empty()) return path;
  if (fs::path(words[0]).filename() != "env") return words[0];
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i].starts_with('-') || words[i].find('=') != std::string::npos) continue;
    // A name that env would search for; never the script itself, which would recurse for ever.
    if (words[i].find('/') == std::string::npos && words[i] != program)
      return is_python(words[i]) ? interpreter_of_python(words[i]) : find_program(words[i]);
  }
  return invalid_argument("the first line of " + path + " names no program");
}

Result<Loading> nccl_of(const std::string& object) {
  Loading loading;
  loading.object = object;
  auto entries = listing_of(object, "");
  if (!entries.ok()) return entries.status();
  std::vector<User> users;
  std::vector<std::string> paths = {object};
  for (const Entry& entry : entries.value()) {
    if (!entry.path.empty()) paths.push_back(entry.path);
  }
  for (const std::string& path : paths) {
    auto file = read_elf_file(path);
    if (file.ok() && needs_nccl(file.value())) users.push_back({path, std::move(file.value())});
  }
  for (const Entry& entry : entries.value()) {
    const bool missing = entry.path.empty() && entry.text == kNotFound;
    if (missing && entry.name != kNcclName) loading.not_found.push_back(entry.name);
  }
  loading.linked = !users.empty();
  loading.path = nccl_among(entries.value());
  if (loading.path.empty() && !loading.linked) {
    entries = listing_of(object, kNcclName);
    if (!entries.ok()) return entries.status();
    loading.path = nccl_among(entries.value());
  }
  if (loading.path.empty()) {
    loading.reason = "no folder that the loader looks in has one";
    return loading;
  }
  if (!loading.linked) {
    auto file = read_elf_file(object);  // it searches its own RPATH and RUNPATH
    if (file.ok()) users.push_back({object, std::move(file.value())});
  }
  loading.reason = reason_for(loading.path, users);
  loading.missing = missing_in(loading.path, users);
  std::set<std::string> wanted;
  for (const User& user : users) {
    std::copy_if(user.file.imported.begin(), user.file.imported.end(),
                 std::inserter(wanted, wanted.end()), is_of_nccl);
  }
  loading.wanted.assign(wanted.begin(), wanted.end());
  return loading;
}

bool is_weirs(const std::string& library) {
  const auto file = read_elf_file(library);
  if (!file.ok()) return false;
  const auto& needed = file.value().needed;
  return file.value().exported.contains(kMarker) ||
         std::count(needed.begin(), needed.end(), kStandInsPart) > 0;
}

std::string path_linked(const std::string& object, const std::string& name) {
  const auto entries = listing_of(object, "");
  if (!entries.ok()) return "";
  for (const Entry& entry : entries.value()) {
    if (entry.name == name && !entry.path.empty()) return entry.path;
  }
  return "";
}

std::string path_by_name(const std::string& object, const std::string& name) {
  const auto entries = listing_of(object, name);
  if (!entries.ok()) return "";
  for (const Entry& entry : entries.value()) {
    if (entry.name == name && !entry.path.empty()) return entry.path;
  }
  return "";
}

Result<std::string> interpreter_of_python(const std::string& program) {
  auto path = find_program(program);
  if (!path.ok() || is_python(path.value())) return path;
  const auto output = run_program(
      {"/usr/bin/env", program, "-c", "import sys; print(sys.executable)"}, {}, kPythonMs);
  if (!output.ok()) return output.status();
  const auto lines = split(output.value().out, "\n");
  if (output.value().exit_code == 0 && !lines.empty()) return find_program(lines.front());
  return invalid_argument(program +
                          " does not say which interpreter it runs: " + output.value().err);
}

bool is_python(const std::string& program) {
  return fs::path(program).filename().string().starts_with("python");
}

int nccl_version_of(const std::string& library) {
  const auto answer = answer_of_fork(
      [&]() -> std::string {
        setenv("WEIR_BACKEND", "weir", 1);
        unsetenv("WEIR_DISABLE");
        void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        const auto get = handle == nullptr
                             ? nullptr
                             : reinterpret_cast<int (*)(int*)>(dlsym(handle, "ncclGetVersion"));
        int version = 0;
        return std::to_string(get != nullptr && get(&version) == 0 ? version : 0);
      },
      kVersionMs);
  return answer.ok() ? std::atoi(answer.value().c_str()) : 0;
}

}  // namespace weir::info
