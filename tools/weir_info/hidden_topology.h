// SPDX-License-Identifier: Apache-2.0
// Whether the PCI tree that this machine shows is one that a hypervisor made up: then it has no switches, and says nothing
// about which GPU is near which network card.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace weir::info {

struct PciTree {
  bool virtual_machine = false;      // the processor says that a hypervisor runs it
  std::vector<std::string> devices;  // GPUs and network cards for RDMA: "0000:3b:00.0"
  bool share_bridge = false;         // two of them at least lie behind the same bridge or switch
};

// Reads below `root`, normally "/".
PciTree gather_pci_tree(const std::filesystem::path& root);

// True where devices are shown side by side in a virtual machine, or each behind a port of its own.
bool hides_topology(const PciTree& tree);

}  // namespace weir::info
