// SPDX-License-Identifier: Apache-2.0
#include "plugins/nccl/library.h"

#include <dlfcn.h>

#include "nccl_search/open.h"
#include "plugins/nccl/driver.h"

namespace weir::plugins::nccl {

namespace {

// The first with communicators that do not block (ncclCommInitRankConfig).
constexpr int kVersionMin = 21403;

struct Found {
  Library library;
  std::string missing;  // "": complete
};

bool resolve(void* opened, Library* it, std::string* reason) {
#define WEIR_NCCL_PLUGIN_RESOLVE(name) \
  it->name = reinterpret_cast<decltype(it->name)>(dlsym(opened, "nccl" #name));
  WEIR_NCCL_PLUGIN_NEEDED(WEIR_NCCL_PLUGIN_RESOLVE)
  WEIR_NCCL_PLUGIN_OPTIONAL(WEIR_NCCL_PLUGIN_RESOLVE)
#undef WEIR_NCCL_PLUGIN_RESOLVE
  if (it->GetVersion == nullptr || it->GetVersion(&it->version) != ncclSuccess) {
    *reason = "ncclGetVersion fails";
    return false;
  }
  if (it->version < kVersionMin) {
    *reason = "is NCCL " + version_text(it->version) + ", older than " + version_text(kVersionMin);
    return false;
  }
#define WEIR_NCCL_PLUGIN_CHECK(name)        \
  if (it->name == nullptr) {                \
    *reason = "has no function nccl" #name; \
    return false;                           \
  }
  WEIR_NCCL_PLUGIN_NEEDED(WEIR_NCCL_PLUGIN_CHECK)
#undef WEIR_NCCL_PLUGIN_CHECK
  return true;
}

Found find(const char* explicit_path) {
  Found found;
  const std::string path = explicit_path != nullptr ? explicit_path : "";
  const Driver* cuda = driver(&found.missing);
  if (cuda == nullptr) return found;
  // Only a library that was made for the stand-in can work there.
  if (cuda->is_stand_in && path.empty()) {
    found.missing = "libcuda.so.1 is Weir's stand-in, whose devices are host memory";
    return found;
  }
  const auto accept = [&](void* opened, const std::string&, std::string* why) {
    return resolve(opened, &found.library, why);
  };
  const ::weir::nccl::OpenedNccl opened =
      ::weir::nccl::open_real_nccl(path, accept, &found.missing);
  found.library.path = opened.path;
  found.library.found_by = opened.found_by;
  return found;
}

}  // namespace

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

std::string Library::text() const {
  return "NCCL " + version_text(version) + ", " + path + " (" + found_by + ")";
}

// Stays loaded. Threads may use it while the process ends: never destroyed.
const Library* library(const char* explicit_path, std::string* reason) {
  static const Found* found = new Found(find(explicit_path));
  if (found->missing.empty()) return &found->library;
  *reason = found->missing;
  return nullptr;
}

}  // namespace weir::plugins::nccl
