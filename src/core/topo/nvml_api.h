// SPDX-License-Identifier: Apache-2.0
// The part of NVML's stable C ABI that Weir calls, from NVIDIA's public documentation ("NVML API
// Reference"). Declared here so that the build does not need CUDA. Internal to core/topo.
#pragma once

namespace weir::topo::nvml {

using Return = int;
inline constexpr Return kSuccess = 0;
using Device = struct nvmlDevice_st*;

struct PciInfo {  // nvmlPciInfo_t
  char bus_id_legacy[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned pci_device_id;  // device in the upper, vendor in the lower half
  unsigned pci_subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

struct Memory {  // nvmlMemory_t
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct FieldValue {  // nvmlFieldValue_t
  unsigned field_id;
  unsigned scope_id;
  long long timestamp;
  long long latency_us;
  int value_type;
  Return result;
  union {
    double f64;
    unsigned u32;
    unsigned long u64;
    unsigned long long u64_long;
    long long i64;
  } value;
};
static_assert(sizeof(FieldValue) == 40);

inline constexpr unsigned kFieldLinkSpeedMbps = 90;  // NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
inline constexpr unsigned kLinkCountMax = 18;        // NVML_NVLINK_MAX_LINKS
inline constexpr int kRemoteGpu = 0;                 // NVML_NVLINK_DEVICE_TYPE_*
inline constexpr int kRemoteNpu = 1;
inline constexpr int kRemoteSwitch = 2;

// Members that an older driver does not have stay null.
struct Functions {
  Return (*init)();
  Return (*shutdown)();
  const char* (*error_string)(Return);
  Return (*device_count)(unsigned*);
  Return (*device_by_index)(unsigned, Device*);
  Return (*pci_info)(Device, PciInfo*);
  Return (*name)(Device, char*, unsigned);
  Return (*uuid)(Device, char*, unsigned);
  Return (*memory)(Device, Memory*);
  Return (*compute_capability)(Device, int*, int*);
  Return (*max_pcie_generation)(Device, unsigned*);
  Return (*max_pcie_width)(Device, unsigned*);
  Return (*current_pcie_generation)(Device, unsigned*);
  Return (*current_pcie_width)(Device, unsigned*);
  Return (*link_state)(Device, unsigned, int*);
  Return (*link_remote_pci)(Device, unsigned, PciInfo*);
  Return (*link_remote_type)(Device, unsigned, int*);
  Return (*field_values)(Device, int, FieldValue*);
};

}  // namespace weir::topo::nvml
