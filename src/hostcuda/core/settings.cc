// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/settings.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>

#include "hostcuda/core/device.h"
#include "hostcuda/core/facts.h"

namespace weir::hostcuda {

namespace {

constexpr size_t kDefaultBytes = size_t{16} << 30;
constexpr size_t kLeastBytes = size_t{1} << 20;
constexpr size_t kMostBytes = size_t{1} << 42;
// As on a GPU, one part in so many is not for programs, so that the rest is no round number:
// nccl-tests subtracts whole GiB from it, and with a rest of 0 it would run for ever.
constexpr size_t kReservedPart = 64;
constexpr size_t kPageBytes = 4096;

DeviceSettings read_settings() {
  DeviceSettings settings;
  size_t bytes = kDefaultBytes;
  if (const char* text = std::getenv("WEIR_HOSTCUDA_DEVICES"); text != nullptr && *text != '\0') {
    char* end = nullptr;
    const long count = std::strtol(text, &end, 10);
    if (end == text || *end != '\0' || count < 0 || count > kDevicesMax) {
      std::fprintf(stderr, "hostcuda: WEIR_HOSTCUDA_DEVICES is '%s', not 0 to %d: 1 is used\n",
                   text, kDevicesMax);
    } else {
      settings.machine_count = static_cast<int>(count);
    }
  }
  if (const char* text = std::getenv("WEIR_HOSTCUDA_MEMORY"); text != nullptr && *text != '\0') {
    size_t given = 0;
    if (!parse_bytes(text, &given) || given < kLeastBytes || given > kMostBytes) {
      std::fprintf(stderr,
                   "hostcuda: WEIR_HOSTCUDA_MEMORY is '%s', not 1MiB to 4096GiB: 16GiB is used\n",
                   text);
    } else {
      bytes = given;
    }
  }
  settings.nominal_bytes = bytes;
  settings.device_bytes = (bytes - bytes / kReservedPart) / kPageBytes * kPageBytes;
  const char* const chosen = std::getenv("CUDA_VISIBLE_DEVICES");
  if (chosen != nullptr) {
    settings.visible = visible_devices(chosen, settings.machine_count);
  } else {
    settings.visible.resize(static_cast<size_t>(settings.machine_count));
    std::iota(settings.visible.begin(), settings.visible.end(), 0);
  }
  return settings;
}

// -1: not exactly one device.
int device_of_entry(std::string_view entry, int machine_count) {
  if (entry.empty()) return -1;
  if (entry.find_first_not_of("0123456789") == std::string_view::npos) {
    const int number = entry.size() <= 3 ? std::atoi(std::string(entry).c_str()) : machine_count;
    return number < machine_count ? number : -1;
  }
  int found = -1;
  for (int i = 0; i < machine_count; ++i) {
    if (!uuid_text(i).starts_with(entry)) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

}  // namespace

std::vector<int> visible_devices(const char* text, int machine_count) {
  std::vector<int> visible;
  std::string_view rest = text;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string_view entry = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    while (entry.starts_with(' ')) entry.remove_prefix(1);
    while (entry.ends_with(' ')) entry.remove_suffix(1);
    const int device = device_of_entry(entry, machine_count);
    if (device < 0) break;
    if (std::find(visible.begin(), visible.end(), device) != visible.end()) return {};
    visible.push_back(device);
  }
  return visible;
}

bool parse_bytes(const char* text, size_t* bytes) {
  if (*text < '0' || *text > '9') return false;
  char* end = nullptr;
  errno = 0;
  const unsigned long long number = std::strtoull(text, &end, 10);
  if (errno != 0) return false;
  int shift = 0;
  if (*end == 'K' || *end == 'k') shift = 10;
  if (*end == 'M' || *end == 'm') shift = 20;
  if (*end == 'G' || *end == 'g') shift = 30;
  if (shift != 0) ++end;
  if (shift != 0 && end[0] == 'i' && end[1] == 'B') end += 2;
  if (*end != '\0' || number > (UINT64_MAX >> shift)) return false;
  *bytes = static_cast<size_t>(number << shift);
  return true;
}

const DeviceSettings& device_settings() {
  // Never destroyed, like the devices: exit handlers may use them.
  static const auto* const settings = new DeviceSettings(read_settings());
  return *settings;
}

}  // namespace weir::hostcuda
