// SPDX-License-Identifier: Apache-2.0
// The one structure that both APIs of CUDA declare.
#pragma once

struct CUuuid_st {
  char bytes[16];
};
