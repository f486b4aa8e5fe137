// SPDX-License-Identifier: Apache-2.0
// What is behind Weir's libnccl.so.2 on this machine: the real NCCL that it would find, why other
// files are rejected, and whether there are devices for it. The library's own code finds this out,
// in a separate process, since it opens libraries and CUDA's driver.
#pragma once

#include <string>
#include <vector>

#include "nccl/real/requested_options.h"
#include "nccl_search/open.h"

namespace weir::info {

struct Behind {
  std::string trouble;  // why the examination failed; then the rest has its defaults
  nccl::RequestedOptions requested;
  std::string not_looked;  // why the library would not search for a real NCCL; "": it would
  int devices = 0;         // of CUDA's driver
  std::string no_devices;  // why there are none
  std::vector<nccl::Refused> refused;  // before the one found, or all
  std::string path;                    // of the real NCCL; "" when there is none
  std::string found_by;
  int version = 0;
  std::vector<std::string> missing;  // functions that it lacks: "ncclCommShrink (since 2.27.3)"
};

// `process`: the program that would load it. `driver`: the libcuda.so.1 with which that program is
// linked, "" for none. The search for a real NCCL is made even where the library would not make it.
Behind look_behind(const nccl::LoadingProcess& process, const std::string& driver);

}  // namespace weir::info
