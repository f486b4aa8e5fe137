/* SPDX-License-Identifier: Apache-2.0 */
/* A library in the place of CUDA's driver, with what Weir asks of it. FAKE_CUDA_DEVICES: how many
 * devices it has (8), -1: it does not start. FAKE_CUDA_SHARED: all of them are the same one. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { kNoDevice = 100, kInvalid = 101, kNoContext = 201, kDevicesMax = 64 };

static __thread int chosen = -1;

static int devices(void) {
  const char* text = getenv("FAKE_CUDA_DEVICES");
  return text != NULL ? atoi(text) : 8;
}

int cuInit(unsigned flags) {
  (void)flags;
  return devices() < 0 ? kNoDevice : 0;
}

int cuDeviceGetCount(int* count) {
  *count = devices();
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  if (ordinal < 0 || ordinal >= devices()) return kInvalid;
  *device = ordinal;
  return 0;
}

int cuDeviceGetUuid_v2(void* uuid, int device) {
  memset(uuid, getenv("FAKE_CUDA_SHARED") != NULL ? 1 : device + 1, 16);
  return 0;
}

/* A context is its device's number plus one. */
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = (void*)(intptr_t)(device + 1);
  return 0;
}

int cuCtxSetCurrent(void* context) {
  chosen = (int)(intptr_t)context - 1;
  return 0;
}

int cuCtxGetDevice(int* device) {
  if (chosen < 0) return kNoContext;
  *device = chosen;
  return 0;
}
