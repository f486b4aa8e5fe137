// SPDX-License-Identifier: Apache-2.0
// weir-fsck's report on a store, as text and as JSON. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "offload/store/inspect.h"

namespace weir::tools {

const char* name_of(offload::Verdict verdict);  // "good", "recoverable", "lost"

std::string to_text(const offload::InspectReport& report,
                    const std::vector<std::string>& directories, bool every_group);
std::string to_json(const offload::InspectReport& report,
                    const std::vector<std::string>& directories);
// The report on a store that could not be read at all.
std::string error_json(const Status& status, const std::vector<std::string>& directories,
                       bool lost);

}  // namespace weir::tools
