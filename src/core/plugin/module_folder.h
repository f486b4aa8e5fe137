// SPDX-License-Identifier: Apache-2.0
// The folder of the modules: transports in files of their own, libweir_<name>.so, because of the
// libraries that they need. The folder is next to the Weir library and is found from the file that
// this code was loaded from: no setting and no working directory can point elsewhere. Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weir::plugin {

// Absolute; "" when there is none (a build without modules, or this code is linked into another
// program). Accesses the disk once.
const std::string& module_folder();

// The file that would hold the transport `name`; "" when there is no folder or when a transport
// cannot have such a name.
std::string module_path(std::string_view name);

// All files of the folder that could be modules, in alphabetical order.
std::vector<std::string> module_files();

// The folder for code that was loaded from the file `object` (absolute).
std::string module_folder_of(const std::string& object);

}  // namespace weir::plugin
