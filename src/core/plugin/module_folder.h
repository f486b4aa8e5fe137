// SPDX-License-Identifier: Apache-2.0
// The folder of the modules: transports that are files of their own, libweir_<name>.so, because of
// what they stand on. It lies beside the library, wherever that is, and is found from the place of
// this code in memory: no setting and no working directory can point elsewhere. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir::plugin {

// Absolute; "" when there is none (a build without modules, or this code is part of another's
// program). Looks at the disk once.
const std::string& module_folder();

// The file in which the transport `name` would be; "" when there is no folder or when a transport
// cannot have such a name.
std::string module_path(std::string_view name);

// All files of the folder that could be modules, in alphabetical order.
std::vector<std::string> module_files();

// What the folder would be for code that was loaded from the file `object` (absolute).
std::string module_folder_of(const std::string& object);

}  // namespace weir::plugin
