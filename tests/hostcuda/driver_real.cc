// SPDX-License-Identifier: Apache-2.0
// As runtime_real.cc, for the driver API.
#include <cuda.h>
//
#include "hostcuda/driver/functions.h"
//
#include "hostcuda/driver_facts.h"
