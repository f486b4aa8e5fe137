// SPDX-License-Identifier: Apache-2.0
// Tells whether the PCI tree of this machine is one that a hypervisor made up: then it has no
// switches, and does not show which GPU is near which network card.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace weir::info {

struct PciTree {
  bool virtual_machine = false;      // the processor says that a hypervisor runs it
  std::vector<std::string> devices;  // GPUs and network cards for RDMA: "0000:3b:00.0"
  bool share_bridge = false;         // at least two of them are behind the same bridge or switch
};

// Reads below `root`, normally "/".
PciTree gather_pci_tree(const std::filesystem::path& root);

// True where a virtual machine shows devices side by side, or each behind its own port.
bool hides_topology(const PciTree& tree);

}  // namespace weir::info
