// SPDX-License-Identifier: Apache-2.0
// Where a real NCCL may lie, the likeliest first: next to the framework that this process runs
// (Python's nvidia/nccl package), on LD_LIBRARY_PATH, in the CUDA toolkit, in the loader's cache and
// its default folders. Nothing is opened or run here. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir::nccl {

struct Place {
  std::string path;    // absolute; the file exists
  std::string reason;  // "the loader's cache"
};

// The process that is to load it.
struct Seeker {
  std::string program;                        // its file, absolute
  std::vector<std::string> packages_folders;  // those of Python that it has loaded something from
};
Seeker seeker_here();  // this process

// Each file once.
std::vector<Place> places_of_nccl(const Seeker& seeker);

// The paths that a file /etc/ld.so.cache holds for `soname`, for programs of this kind of processor.
// `cache` is not trusted: what is damaged gives none.
std::vector<std::string> paths_in_loader_cache(std::string_view cache, std::string_view soname);

// "…/site-packages" or "…/dist-packages" when `path` lies in such a folder, else "".
std::string packages_folder_of(std::string_view path);

}  // namespace weir::nccl
