// SPDX-License-Identifier: Apache-2.0
// A libfabric.so.1 that plays one built for CUDA: it stands before the real one, grants FI_HMEM to
// every provider if it is told to, and hands on registrations and messages with a device's memory
// replaced by its alias (unit/plugin/device_block.h). What it is not told to be a device's it hands
// on as it is. One thread at a time.
#pragma once

struct FabricDouble {
  bool grants = false;       // FI_HMEM
  bool registers = true;     // FI_HMEM_CUDA; false: as a library without CUDA
  int device = -1;           // of the latest registration
  int asked_count = 0;       // for FI_HMEM
  int registered_count = 0;  // memory of devices
  int closed_count = 0;      // of those
  int sent_count = 0;        // from devices, with a registration
  int received_count = 0;    // into devices, with a registration
  void* (*alias_of)(const void* data) = nullptr;
};

// The function `fabric_double` of the library.
using FabricDoubleFunction = FabricDouble* (*)();
