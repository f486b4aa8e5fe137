// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/runtime/types.h"
//
#include "hostcuda/runtime_facts.h"
