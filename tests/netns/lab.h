// SPDX-License-Identifier: Apache-2.0
// Lab: a few hosts on one machine. A host is a network namespace with one interface, eth0, at
// 10.77.0.<number + 1>/24, or several: eth1 at 10.78.0.<number + 1>/24 and so on; those of one name
// are joined by a bridge, all in a namespace of their own. The namespaces have no names and belong
// to processes that die with the test, so nothing can be left behind.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "netns/relay.h"
#include "support/ranks.h"
#include "weir/weir.h"

namespace weir::test {

struct LabOptions {
  // Ranks of each host: {{0, 2}, {1}} are three ranks on two hosts. Rank 0's host makes the id.
  std::vector<std::vector<int>> hosts;
  int interfaces = 1;  // of each host
  // Run by a shell in each host once its network stands; %i is the host's number.
  std::vector<std::string> commands = {};
  bool own_mounts = false;  // what a host's commands mount, only this host sees
  Environment environment = {};
  int64_t timeout_ms = 60'000;
  int id_rank = 0;  // the rank whose process makes the id
  // The ranks get the variables of a launcher and make their communicator from them and from
  // `environment`, where %i is the number of the host.
  bool launched = false;
  std::function<void(int rank)> before = {};  // run by each rank before it makes its communicator
  RelayOptions relay = {};  // in the place of the bridge, between two hosts with one interface
};

// "" or why namespaces cannot be made here.
std::string why_no_lab();

// Exit status of each rank; 128 + signal when one killed it; -1 when the lab could not be set up.
std::vector<int> run_in_lab_status(const LabOptions& options, const Body& body);
// Every rank succeeds.
void run_in_lab(const LabOptions& options, const Body& body);

}  // namespace weir::test
