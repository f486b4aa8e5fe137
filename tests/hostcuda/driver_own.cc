// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/driver/types.h"
//
#include "hostcuda/driver_facts.h"
