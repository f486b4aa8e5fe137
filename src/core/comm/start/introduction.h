// SPDX-License-Identifier: Apache-2.0
// Introduction: what each rank tells the others while a communicator is made. Values; thread-safe.
//
// Packed, integers little-endian:
//
//   offset  bytes  field
//        0      4  "WINT"
//        4      2  version, 3
//        6    ...  machine, host, place, cores, their place, cards, device, settings, network,
//                  address: of each its size (4) and its bytes. Cores are ranges, ascending:
//                  first and last (4 each); their place is cache, NUMA node and package (4 each);
//                  cards as in fabric_choice.h
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/start/fabric_choice.h"
#include "core/topo/cpu_place.h"

namespace weir::comm {

class Bootstrap;

struct Introduction {
  std::string machine;       // the kernel's boot id: the same for all processes of a machine
  std::string host;          // as net::declared_host
  std::string place;         // where ranks of other hosts would find this one, packed
  std::vector<int> cpus;     // that this process may use, ascending
  topo::CpuPlace cpu_place;  // of the cores
  CardsSeen cards;           // of this machine
  std::string device;        // of this rank: PCI address and number, "0000:3b:00.0 1"; "": none
  std::string settings;      // those that must agree, as text
  std::string network;       // address in the control network; "" where there is none
  std::string address;       // of the transport

  std::string pack() const;
  // kRefused, naming `from`, when the blob cannot be read.
  static Result<Introduction> unpack(const std::string& blob, Rank from);
};

// Machine, host, cores and cards of this process; the rest is empty.
Introduction introduce_this_process();

// Tells all ranks `self`, and takes what they tell.
Status tell_all(Bootstrap& bootstrap, const Introduction& self, uint64_t deadline_ns,
                std::vector<Introduction>* all);

// Hosts numbered in the order of their first rank; empty when there is one.
std::vector<uint32_t> host_of_rank(const std::vector<Introduction>& all);

// The hosts of all ranks, as bytes: equal for communicators over the same hosts in the same order.
std::string hosts_of(const std::vector<Introduction>& all);

// The number of cores that the ranks of a host may use, on the host with the fewest per rank; all
// hosts that are namespaces of one machine share its cores.
uint32_t cores_per_host(const std::vector<Introduction>& all);

// "4 ranks on one host with 2 cores": the ranks of each host in turn, and cores_per_host.
std::string describe_layout(const std::vector<Introduction>& all);

// For each rank: whether more ranks are confined to its cores than there are cores.
std::vector<bool> shared_cores(const std::vector<Introduction>& all);

// How many ranks have the same cores as `rank`, for each of these cores, rounded down.
uint32_t ranks_per_core(const std::vector<Introduction>& all, Rank rank);

}  // namespace weir::comm
