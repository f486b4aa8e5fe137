// SPDX-License-Identifier: Apache-2.0
// Opens the real NCCL: NVIDIA's libnccl.so.2, or another library with its functions, and never one of Weir's
// own, whatever its file is called. It is opened so that its calls of its own exports find its own functions.
// For the library that stands before it and for the transport `nccl`. Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nccl/real_search.h"

namespace weir::nccl {

// A file that was looked at and is not the one.
struct Refused {
  std::string path;
  std::string found_by;
  std::string why;
};

struct OpenedNccl {
  void* library = nullptr;  // of dlopen
  std::string path;
  std::string found_by;          // "the loader's cache"
  std::vector<Refused> refused;  // before it, in this order
};

// `explicit_path` "": searched for (real_search.h), as `seeker` would. `accept` may still refuse a library, with the reason;
// it is then closed, and the search goes on. nullptr as `library` when there is none, and `reason` says
// where was looked and what was wrong there.
OpenedNccl open_real_nccl(
    const std::string& explicit_path,
    const std::function<bool(void* library, const std::string& path, std::string* reason)>& accept,
    std::string* reason, const Seeker& seeker = seeker_here());

}  // namespace weir::nccl
