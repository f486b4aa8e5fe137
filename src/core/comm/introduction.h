// SPDX-License-Identifier: Apache-2.0
// Introduction: what each rank tells the others while a communicator is made. Values; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"

namespace weir::comm {

struct Introduction {
  std::string machine;    // the kernel's boot id: the same for all processes of a machine
  std::string host;       // as net::declared_host
  std::string place;      // where ranks of other hosts would find this one, packed
  std::vector<int> cpus;  // that this process may use
  std::string settings;   // those that must agree, as text
  std::string address;    // of the transport

  std::string pack() const;
  // kRefused, naming `from`, when the blob cannot be read.
  static Result<Introduction> unpack(const std::string& blob, Rank from);
};

// Machine, host and cores of this process; the rest is empty.
Introduction introduce_this_process();

// The host of each rank, numbered from 0 in the order of the ranks.
std::vector<uint32_t> number_hosts(const std::vector<Introduction>& all);

// Whether the ranks that are confined to the cores of rank `self` are more than those cores.
bool shares_cores(const std::vector<Introduction>& all, Rank self);

}  // namespace weir::comm
