// SPDX-License-Identifier: Apache-2.0
#include "nccl_search/open.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

namespace weir::nccl {

namespace {

// An address in the library that contains this code.
const char kHere = 0;

// Whether the file is this library itself.
bool is_own_file(const std::string& path) {
  Dl_info info;
  struct stat own, other;
  return dladdr(&kHere, &info) != 0 && info.dli_fname != nullptr &&
         stat(info.dli_fname, &own) == 0 && stat(path.c_str(), &other) == 0 &&
         own.st_dev == other.st_dev && own.st_ino == other.st_ino;
}

std::string soname_of(const link_map& map) {
  const char* strings = nullptr;
  size_t offset = 0;
  for (const ElfW(Dyn)* entry = map.l_ld; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == DT_STRTAB) strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
    if (entry->d_tag == DT_SONAME) offset = entry->d_un.d_val;
  }
  return strings != nullptr && offset != 0 ? strings + offset : "";
}

// Opens one candidate. nullptr: `reason` says why not. A refused library is closed: as long as it
// is loaded, the loader returns it for its SONAME, which is usually libnccl.so.2.
void* open_file(const std::string& path, bool any_soname, std::string* reason) {
  if (is_own_file(path)) {
    *reason = "is Weir's own";
    return nullptr;
  }
  // Not RTLD_DEEPBIND: it would also bind malloc to the C library's, where a program has another
  // one, and memory that one library allocates another one frees.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* text = dlerror();
    *reason = text != nullptr ? text : "cannot be opened";
    return nullptr;
  }
  link_map* map = nullptr;
  if (dlsym(library, "weir_nccl_marker") != nullptr) {
    *reason = "is Weir's own";
  } else if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) {
    *reason = "the loader does not know it";
  } else if (const std::string soname = soname_of(*map); !any_soname && soname != "libnccl.so.2") {
    *reason = "its SONAME is '" + soname + "', not libnccl.so.2";
  } else {
    return library;
  }
  dlclose(library);
  return nullptr;
}

}  // namespace

OpenedNccl open_real_nccl(
    const std::string& explicit_path,
    const std::function<bool(void* library, const std::string& path, std::string* reason)>& accept,
    std::string* reason, const LoadingProcess& process) {
  OpenedNccl opened;
  const auto try_file = [&](const std::string& path, bool any_soname, std::string* why) -> void* {
    void* library = open_file(path, any_soname, why);
    if (library == nullptr || accept(library, path, why)) return library;
    dlclose(library);
    return nullptr;
  };
  if (!explicit_path.empty()) {
    std::string why;
    opened.library = try_file(explicit_path, true, &why);
    if (opened.library == nullptr) {
      *reason = "WEIR_NCCL_LIBRARY names " + explicit_path + ": " + why;
      opened.refused.push_back({explicit_path, "WEIR_NCCL_LIBRARY", why});
      return opened;
    }
    opened.path = explicit_path;
    opened.found_by = "WEIR_NCCL_LIBRARY";
    return opened;
  }
  std::string looked;
  for (const FoundFile& file : files_of_nccl(process)) {
    std::string why;
    opened.library = try_file(file.path, false, &why);
    if (opened.library != nullptr) {
      opened.path = file.path;
      opened.found_by = file.reason;
      return opened;
    }
    looked += "; " + file.path + " (" + file.reason + "): " + why;
    opened.refused.push_back({file.path, file.reason, why});
  }
  *reason =
      "no real libnccl.so.2 was found next to the framework, on LD_LIBRARY_PATH, in the CUDA "
      "toolkit or by the loader" +
      looked + "; WEIR_NCCL_LIBRARY may name one";
  return opened;
}

}  // namespace weir::nccl
