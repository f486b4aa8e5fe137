// SPDX-License-Identifier: Apache-2.0
// The runtime's types and functions as this library declares them.
#pragma once

#include "hostcuda/runtime/types.h"
//
#include "hostcuda/runtime/functions-inl.h"
