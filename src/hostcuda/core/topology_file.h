// SPDX-License-Identifier: Apache-2.0
// The GPUs of a topology file in NCCL's form: their PCI addresses, what they are below, and their
// NVLinks. Read here and not with a library, since these libraries need none: programs preload
// them. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace weir::hostcuda {

struct PciAddress {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned device = 0;

  bool operator==(const PciAddress&) const = default;
  bool operator<(const PciAddress& other) const {
    return std::tie(domain, bus, device) < std::tie(other.domain, other.bus, other.device);
  }
};

// From "0000:01:00.0", "01:00.0" or "0000:01:00". False for other text.
bool parse_pci(const char* text, PciAddress* address);

struct NvLinks {
  PciAddress target;
  bool to_switch = false;
  unsigned count = 0;
};

struct PlacedGpu {
  PciAddress address;
  int number = -1;  // as the file numbers GPUs; -1: it does not
  // The elements of the file that it is in, outermost first: each has a number of its own.
  struct Element {
    int number;
    bool is_pci;
  };
  std::vector<Element> above;
  std::string affinity;  // of its processors: words of 32 bits in hexadecimal, the highest first
  std::vector<NvLinks> links;
};

// In the order of their numbers, if the file gives each one, otherwise of their addresses.
std::vector<PlacedGpu> read_topology(std::string_view text);

// Those of the machine's devices by WEIR_TOPOLOGY_FILE. Empty without such a file, and, with a line
// on stderr, if it cannot be read or has fewer GPUs than the machine has devices.
const std::vector<PlacedGpu>& placed_gpus();

}  // namespace weir::hostcuda
