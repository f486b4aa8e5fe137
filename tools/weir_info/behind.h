// SPDX-License-Identifier: Apache-2.0
// What stands behind Weir's libnccl.so.2 on this machine: the real NCCL that it would find, why not another file, and whether
// there are devices for it. Asked with the library's own code, in a process of its own, since libraries and CUDA's driver
// are opened there.
#pragma once

#include <string>
#include <vector>

#include "nccl/real_open.h"
#include "nccl/wishes.h"

namespace weir::info {

struct Behind {
  std::string trouble;  // why the look did not come to its end; then the rest is as it is here
  nccl::Wishes wishes;
  std::string not_looked;  // why the library would not look for a real NCCL; "": it would
  int devices = 0;         // of CUDA's driver
  std::string no_devices;  // why there are none
  std::vector<nccl::Refused> refused;  // before the one that was found, or all
  std::string path;                    // of the real NCCL; "" when there is none
  std::string found_by;
  int version = 0;
  std::vector<std::string> missing;  // functions that it lacks: "ncclCommShrink (since 2.27.3)"
};

// `seeker`: the program that would load it. `driver`: the libcuda.so.1 that this program is linked with, "" when with none.
// A real NCCL is looked for also where the library would not.
Behind look_behind(const nccl::Seeker& seeker, const std::string& driver);

}  // namespace weir::info
