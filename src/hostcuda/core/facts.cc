// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/facts.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string_view>

namespace weir::hostcuda {

namespace {

struct Fact {
  int attribute;
  int value;
};

// By number, as in CUDA's documentation of cudaDeviceAttr; with capability 9.0, so that programs
// take their modern paths.
constexpr Fact kFacts[] = {
    {1, 1024},                                    // threads of a block
    {2, 1024},                                    // and in each dimension
    {3, 1024},        {4, 64},    {5, INT_MAX},   // blocks of a grid in each dimension
    {6, 65535},       {7, 65535}, {8, 48 << 10},  // shared memory of a block
    {9, 64 << 10},                                // constant memory
    {10, 32},                                     // warp
    {11, INT_MAX},                                // pitch
    {12, 65536},                                  // registers of a block
    {13, 1000000},                                // clock in kHz
    {14, 512},                                    // alignment of textures
    {15, 1},                                      // copies beside kernels
    {16, 8},                                      // multiprocessors
    {19, 1},                                      // maps host memory
    {30, 512},                                    // alignment of surfaces
    {31, 1},                                      // concurrent kernels
    {36, 1000000},                                // memory clock in kHz
    {37, 64},                                     // bus width
    {38, 1 << 20},                                // level 2 cache
    {39, 2048},                                   // threads of a multiprocessor
    {40, 2},                                      // copy engines
    {41, 1},                                      // unified addresses
    {51, 32},                                     // alignment of texture pitch
    {75, 9},                                      // capability
    {76, 0},          {78, 1},                    // stream priorities
    {81, 64 << 10},                               // shared memory and
    {82, 65536},                                  // registers of a multiprocessor
    {83, 1},                                      // managed memory
    {86, 1},                                      // atomics on host memory
    {89, 1},                                      // host and device may use managed memory at once
    {91, 1},                                      // registered host memory keeps its address
    {92, 1},                     // stream memory operations: these four are the driver's names
    {93, 1},                     // of 64 bits
    {94, 1},                     // waits with NOR
    {95, 1},                     // cooperative launches
    {97, 48 << 10},              // shared memory on request
    {98, 1},                     // flush of remote writes
    {99, 1},                     // cudaHostRegister
    {102, 1},                    // virtual memory
    {103, 1},                    // exported as a descriptor
    {106, 32},                   // blocks of a multiprocessor
    {109, 128 << 20},            // window of an access policy
    {115, 1},                    // pools
    {122, 1},                    // stream memory operations, second interface
    {123, 1},         {125, 1},  // events between processes
    {126, 4},                    // memory synchronization domains
};

}  // namespace

Error device_attribute(const Device& device, int attribute, int* value) {
  if (attribute < 1 || attribute > 147) return Error::kInvalidValue;
  if (attribute == 33 || attribute == 34 || attribute == 50) {
    const PciAddress address = pci_address(device.machine_index);
    *value = static_cast<int>(attribute == 33   ? address.bus
                              : attribute == 34 ? address.device
                                                : address.domain);
    return Error::kSuccess;
  }
  if (attribute == 131 || attribute == 134) {  // NUMA nodes of device and host
    *value = -1;
    return Error::kSuccess;
  }
  const Fact* const at =
      std::lower_bound(std::begin(kFacts), std::end(kFacts), attribute,
                       [](const Fact& fact, int wanted) { return fact.attribute < wanted; });
  *value = at != std::end(kFacts) && at->attribute == attribute ? at->value : 0;
  return Error::kSuccess;
}

void device_uuid(int machine_index, char out[16]) {
  constexpr std::string_view kStart = "weirhostcuda";
  std::memset(out, 0, 16);
  kStart.copy(out, kStart.size());
  out[15] = static_cast<char>(machine_index + 1);
}

std::string uuid_text(int machine_index) {
  char bytes[16];
  device_uuid(machine_index, bytes);
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(bytes[i]));
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

PciAddress pci_address(int machine_index) {
  const auto& placed = placed_gpus();
  const auto index = static_cast<size_t>(machine_index);
  if (index < placed.size()) return placed[index].address;
  return {0, static_cast<unsigned>(machine_index) + 1, 0};
}

std::string pci_text(int machine_index) {
  const PciAddress address = pci_address(machine_index);
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x.0", address.domain, address.bus, address.device);
  return text;
}

Error device_of_pci(const char* text, int* index) {
  PciAddress wanted;
  if (!parse_pci(text, &wanted)) return Error::kInvalidValue;
  for (int i = 0; i < device_count(); ++i) {
    if (pci_address(device_at(i)->machine_index) != wanted) continue;
    *index = i;
    return Error::kSuccess;
  }
  return Error::kInvalidDevice;
}

Error set_peer(Device& device, int peer, bool enabled) {
  if (device_at(peer) == nullptr || peer == device.index) return Error::kInvalidDevice;
  const uint64_t bit = uint64_t{1} << peer;
  const std::lock_guard lock(device.state);
  if (((device.peers & bit) != 0) == enabled) {
    return enabled ? Error::kPeerAlreadyEnabled : Error::kPeerNotEnabled;
  }
  device.peers ^= bit;
  return Error::kSuccess;
}

}  // namespace weir::hostcuda
