// SPDX-License-Identifier: Apache-2.0
// Opens the real NCCL: NVIDIA's libnccl.so.2, or another library with its functions, but never one
// of Weir's, whatever its file is called. Where a libnccl.so.2 of Weir's was loaded before, the
// real one's calls of its own exports go there, and are passed back (nccl/real/reentry.h). Used by
// Weir's libnccl.so.2 and by the transport `nccl`. Thread-safe.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nccl_search/search.h"

namespace weir::nccl {

// A file that was examined and rejected.
struct Refused {
  std::string path;
  std::string found_by;
  std::string why;
};

struct OpenedNccl {
  void* library = nullptr;  // of dlopen
  std::string path;
  std::string found_by;          // "the loader's cache"
  std::vector<Refused> refused;  // examined before it, in this order
};

// `explicit_path` "": the library is searched for (search.h), as `process` would. `accept` may
// refuse a library, with the reason; it is then closed, and the search continues. `library` is
// nullptr when none is found, and `reason` says where the search looked and what was wrong there.
OpenedNccl open_real_nccl(
    const std::string& explicit_path,
    const std::function<bool(void* library, const std::string& path, std::string* reason)>& accept,
    std::string* reason, const LoadingProcess& process = this_loading_process());

}  // namespace weir::nccl
