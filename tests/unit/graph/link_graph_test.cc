// SPDX-License-Identifier: Apache-2.0
#include "unit/graph/graph_support.h"
