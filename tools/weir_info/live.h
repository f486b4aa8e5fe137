// SPDX-License-Identifier: Apache-2.0
// weir-info --live: the running communicators, what each rank does and whom it waits for, read from
// the files of Weir's recorder (docs/recorder.md).
#pragma once

#include <string>

namespace weir::info {

// For this user on this machine; as text or as the JSON of weir-trace.
std::string live_report(bool json);

}  // namespace weir::info
