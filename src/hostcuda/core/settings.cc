// SPDX-License-Identifier: Apache-2.0
#include "hostcuda/core/settings.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "hostcuda/core/device.h"

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
      settings.device_count = static_cast<int>(count);
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
  settings.device_bytes = (bytes - bytes / kReservedPart) / kPageBytes * kPageBytes;
  return settings;
}

}  // namespace

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
  static const DeviceSettings settings = read_settings();
  return settings;
}

}  // namespace weir::hostcuda
