// SPDX-License-Identifier: Apache-2.0
// What a peer tells of itself is read in whole or refused; what was read is written as it came, but
// for control characters. The first byte is the rank count.
#include <cstdint>
#include <cstdlib>

#include "core/comm/reports/health_report.h"

using weir::comm::HealthReport;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  HealthReport report;
  if (!weir::comm::decode(data + 1, bytes - 1, data[0], &report)) return 0;
  unsigned char again[HealthReport::kBytesMax];
  if (weir::comm::encode(report, again) != bytes - 1) std::abort();
  HealthReport second;
  if (!weir::comm::decode(again, bytes - 1, data[0], &second) || second != report) std::abort();
  return 0;
}
