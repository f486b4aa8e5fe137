// SPDX-License-Identifier: Apache-2.0
// CUDA's driver as installed on this machine: the kernel module, the library that belongs to it,
// and the file through which a process accesses the devices. None of it is started.
#pragma once

#include <filesystem>
#include <string>

namespace weir::info {

struct InstalledDriver {
  bool loaded = false;          // the kernel module is loaded
  std::string version;          // of the module: "550.54.15"; "" when unknown
  bool device_file = false;     // /dev/nvidiactl
  std::string library;          // libcuda.so.1 as the loader finds it; "" when it finds none
  std::string library_version;  // from the name of its file; "" when that has none
  bool stand_in = false;        // it is Weir's, whose devices are host memory
};

// Reads below `root`, normally "/"; the library is the one that the loader of `object`, a program,
// finds.
InstalledDriver gather_driver(const std::filesystem::path& root, const std::string& object);

// "550.54.15" from the text of /proc/driver/nvidia/version, or from the name of a file
// libcuda.so.550.54.15; "" when there is none.
std::string driver_version_in(const std::string& text);
std::string driver_version_of_file(const std::string& name);

}  // namespace weir::info
