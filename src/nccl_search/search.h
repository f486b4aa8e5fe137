// SPDX-License-Identifier: Apache-2.0
// Files that may be a real NCCL, the most likely first: next to the framework that this process
// runs (Python's nvidia/nccl package), on LD_LIBRARY_PATH, in the CUDA toolkit, in the loader's
// cache and its default folders. Nothing is opened or run here. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir::nccl {

struct FoundFile {
  std::string path;    // absolute; the file exists
  std::string reason;  // "the loader's cache"
};

// The process that will load it.
struct LoadingProcess {
  std::string program;                        // its file, absolute
  std::vector<std::string> packages_folders;  // Python's folders from which it has loaded something
};
LoadingProcess this_loading_process();

// Lists each file once.
std::vector<FoundFile> files_of_nccl(const LoadingProcess& process);

// The paths that the contents of /etc/ld.so.cache hold for `soname`, for programs of this kind of
// processor. `cache` is not trusted: a damaged one gives no paths.
std::vector<std::string> paths_in_loader_cache(std::string_view cache, std::string_view soname);

// "…/site-packages" or "…/dist-packages" when `path` lies in such a folder, else "".
std::string packages_folder_of(std::string_view path);

}  // namespace weir::nccl
