// SPDX-License-Identifier: Apache-2.0
// The one structure that both faces of CUDA declare.
#pragma once

struct CUuuid_st {
  char bytes[16];
};
