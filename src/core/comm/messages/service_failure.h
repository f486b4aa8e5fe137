// SPDX-License-Identifier: Apache-2.0
// ServiceFailure: why a communicator must fail whose messages carry operations of another kind
// (one-sided ones, messages with tags).
#pragma once

#include <string>

#include "core/base/types.h"
#include "core/comm/requests/request.h"
#include "weir/weir.h"

namespace weir::comm {

struct ServiceFailure {
  weir_result_t result = WEIR_OK;
  Rank peer = 0;
  Request* request = nullptr;  // one that needs `peer`; nullptr: there is none
  std::string text;            // "": the transport's
};

}  // namespace weir::comm
