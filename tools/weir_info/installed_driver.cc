// SPDX-License-Identifier: Apache-2.0
#include "weir_info/installed_driver.h"

#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

#include "weir_info/loading.h"

namespace weir::info {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libcuda.so.";

// Digits separated by dots, with at least one dot.
bool is_version(const std::string& word) {
  return !word.empty() && word.front() != '.' && word.back() != '.' &&
         word.find('.') != std::string::npos &&
         word.find_first_not_of("0123456789.") == std::string::npos;
}

}  // namespace

std::string driver_version_in(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("NVRM version:")) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (is_version(word)) return word;
    }
  }
  return "";
}

std::string driver_version_of_file(const std::string& name) {
  const std::string prefix = kLibrary;
  if (!name.starts_with(prefix)) return "";
  const std::string version = name.substr(prefix.size());
  return is_version(version) ? version : "";
}

InstalledDriver gather_driver(const fs::path& root, const std::string& object) {
  InstalledDriver driver;
  std::ifstream file(root / "proc/driver/nvidia/version");
  driver.loaded = file.is_open();
  driver.version = driver_version_in(std::string(std::istreambuf_iterator<char>(file), {}));
  std::error_code error;
  driver.device_file = fs::exists(root / "dev/nvidiactl", error);
  driver.library = path_by_name(object, "libcuda.so.1");
  if (driver.library.empty()) return driver;
  const fs::path real = fs::canonical(driver.library, error);
  if (!error) driver.library_version = driver_version_of_file(real.filename().string());
  driver.stand_in = is_weirs(driver.library);
  return driver;
}

}  // namespace weir::info
