// SPDX-License-Identifier: Apache-2.0
#include "nccl_search/search.h"

#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace weir::nccl {

namespace {

namespace fs = std::filesystem;

constexpr char kSoname[] = "libnccl.so.2";
constexpr std::string_view kInPackages = "nvidia/nccl/lib/libnccl.so.2";

// ---- The loader's cache -------------------------------------------------------------------------
// /etc/ld.so.cache of glibc, the format of 2.2 and later, numbers in the machine's order:
//   0  20 bytes  "glibc-ld.so.cache1.1"
//  20  u32       number of entries
//  24  u32       bytes of strings
//  28  20 bytes  flags and what later versions added
//  48  entries of 24 bytes: i32 flags, u32 name, u32 path, u32 of the system, u64 of the hardware;
//      name and path are offsets of strings from the head's first byte
constexpr std::string_view kCacheHead = "glibc-ld.so.cache1.1";
constexpr size_t kCacheHeadBytes = 48;
constexpr size_t kCacheEntryBytes = 24;
constexpr size_t kCacheBytesMax = size_t{64} << 20;
#if defined(__x86_64__)
constexpr int32_t kCacheFlags = 0x0303;  // ELF, libc6, x86-64
#elif defined(__aarch64__)
constexpr int32_t kCacheFlags = 0x0a03;  // ELF, libc6, AArch64
#else
constexpr int32_t kCacheFlags = 0x0003;
#endif

template <typename Number>
Number number_at(std::string_view bytes, size_t offset) {
  Number value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// The string that begins there; empty when none ends within the file.
std::string_view string_at(std::string_view bytes, size_t offset) {
  if (offset >= bytes.size()) return {};
  const size_t end = bytes.find('\0', offset);
  return end == std::string_view::npos ? std::string_view() : bytes.substr(offset, end - offset);
}

std::string read_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes;
  char block[4096];
  while (file.read(block, sizeof block) || file.gcount() > 0) {
    bytes.append(block, static_cast<size_t>(file.gcount()));
    if (bytes.size() > kCacheBytesMax) return {};
  }
  return bytes;
}

// ---- Folders ------------------------------------------------------------------------------------

class FoundFiles {
 public:
  void add(const fs::path& path, const char* reason) {
    std::error_code error;
    const fs::path file = fs::canonical(path, error);
    if (error || !fs::is_regular_file(file, error)) return;
    const std::string text = file.string();
    const bool known =
        std::any_of(all_.begin(), all_.end(), [&](const FoundFile& it) { return it.path == text; });
    if (!known) all_.push_back({text, reason});
  }

  // Below PREFIX/lib: python3.11/site-packages and similar folders.
  void add_python(const fs::path& prefix, const char* reason) {
    std::error_code error;
    for (fs::directory_iterator it(prefix / "lib", error), end; !error && it != end;
         it.increment(error)) {
      if (!it->path().filename().string().starts_with("python3")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        add(it->path() / packages / kInPackages, reason);
      }
    }
  }

  void add_toolkit(const fs::path& root, const char* reason) {
    for (const char* folder :
         {"lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"}) {
      add(root / folder / kSoname, reason);
    }
  }

  std::vector<FoundFile> take() { return std::move(all_); }

 private:
  std::vector<FoundFile> all_;
};

int note_packages_folder(dl_phdr_info* info, size_t, void* folders) {
  const std::string folder = packages_folder_of(info->dlpi_name);
  auto& all = *static_cast<std::vector<std::string>*>(folders);
  if (!folder.empty() && std::find(all.begin(), all.end(), folder) == all.end()) {
    all.push_back(folder);
  }
  return 0;
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

std::vector<std::string> paths_in_loader_cache(std::string_view cache, std::string_view soname) {
  std::vector<std::string> paths;
  if (cache.size() < kCacheHeadBytes || !cache.starts_with(kCacheHead)) return paths;
  const auto count = number_at<uint32_t>(cache, 20);
  if (count > (cache.size() - kCacheHeadBytes) / kCacheEntryBytes) return paths;
  for (size_t i = 0; i < count; ++i) {
    const size_t entry = kCacheHeadBytes + i * kCacheEntryBytes;
    if (number_at<int32_t>(cache, entry) != kCacheFlags) continue;
    if (string_at(cache, number_at<uint32_t>(cache, entry + 4)) != soname) continue;
    const std::string_view path = string_at(cache, number_at<uint32_t>(cache, entry + 8));
    if (path.starts_with('/')) paths.emplace_back(path);
  }
  return paths;
}

std::string packages_folder_of(std::string_view path) {
  for (const std::string_view name : {"/site-packages/", "/dist-packages/"}) {
    const size_t at = path.find(name);
    if (at != std::string_view::npos) return std::string(path.substr(0, at + name.size() - 1));
  }
  return {};
}

LoadingProcess this_loading_process() {
  LoadingProcess process;
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  if (length > 0) process.program.assign(self, static_cast<size_t>(length));
  dl_iterate_phdr(note_packages_folder, &process.packages_folders);
  return process;
}

std::vector<FoundFile> files_of_nccl(const LoadingProcess& process) {
  FoundFiles found;
  for (const std::string& folder : process.packages_folders) {
    found.add(fs::path(folder) / kInPackages, "next to a Python package that is loaded");
  }
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const char* prefix = environment(name); prefix != nullptr) {
      found.add_python(prefix, "the Python environment");
    }
  }
  const fs::path program(process.program);
  if (program.filename().string().starts_with("python")) {
    found.add_python(program.parent_path().parent_path(), "the Python that runs");
    found.add_python("/usr/local", "the Python that runs");
  }
  if (const char* folders = environment("LD_LIBRARY_PATH"); folders != nullptr) {
    std::string_view rest = folders;
    while (!rest.empty()) {
      const size_t end = std::min(rest.find_first_of(":;"), rest.size());
      if (end > 0) found.add(fs::path(rest.substr(0, end)) / kSoname, "LD_LIBRARY_PATH");
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  for (const char* name : {"NCCL_HOME", "CUDA_HOME", "CUDA_PATH"}) {
    if (const char* root = environment(name); root != nullptr) found.add_toolkit(root, name);
  }
  found.add_toolkit("/usr/local/cuda", "the CUDA toolkit");
  for (const std::string& path : paths_in_loader_cache(read_file("/etc/ld.so.cache"), kSoname)) {
    found.add(path, "the loader's cache");
  }
  for (const char* folder :
       {"/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64", "/lib",
        "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"}) {
    found.add(fs::path(folder) / kSoname, "a folder of the loader");
  }
  return found.take();
}

}  // namespace weir::nccl
