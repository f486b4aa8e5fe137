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

// Hosts numbered in the order of their first rank; empty when there is one.
std::vector<uint32_t> host_of_rank(const std::vector<Introduction>& all);

// The hosts of all ranks, as bytes: equal for communicators over the same hosts in the same order.
std::string hosts_of(const std::vector<Introduction>& all);

// Cores that the ranks of a host may use, on the host that has the fewest for each rank; a machine's
// cores are shared by all hosts that are namespaces of it.
uint32_t cores_per_host(const std::vector<Introduction>& all);

// Whether the ranks that are confined to the cores of rank `self` are more than those cores.
bool shares_cores(const std::vector<Introduction>& all, Rank self);

}  // namespace weir::comm
