/* SPDX-License-Identifier: Apache-2.0 */
/* A program in C compiles against nccl_device.h, finds out that there are no device-side
 * communicators, and goes on without. */
#include <nccl.h>
#include <nccl_device.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  ncclComm_t comm = NULL;
  ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
  ncclDevCommRequirements_t needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclDevComm_t device;
  needs.lsaBarrierCount = 4;
  if (ncclCommInitAll(&comm, 1, NULL) != ncclSuccess) return 1;
  if (ncclCommQueryProperties(comm, &properties) != ncclSuccess) return 2;
  if (properties.nRanks != 1 || properties.deviceApiSupport || properties.cftSupport) return 3;
  if (ncclTeamWorld(comm).nRanks != 1) return 4;
  if (ncclTeamCft(comm, NCCL_CFT_TEAM_FLAT).nRanks != 1) return 5;
  if (ncclDevCommCreate(comm, &needs, &device) != ncclInvalidUsage) return 6;
  printf("%s: %s\n", ncclGetErrorString(ncclInvalidUsage), ncclGetLastError(comm));
  if (strstr(ncclGetLastError(comm), "ncclDevCommCreate") == NULL) return 7;
  return ncclCommDestroy(comm) == ncclSuccess ? 0 : 8;
}
