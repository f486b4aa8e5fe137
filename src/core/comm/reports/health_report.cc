// SPDX-License-Identifier: Apache-2.0
#include "core/comm/reports/health_report.h"

#include <algorithm>
#include <cstring>

#include "core/base/status.h"
#include "core/control/link.h"

namespace weir::comm {

static_assert(HealthReport::kBytesMax <= control::kNoticeBytesMax);

namespace {

constexpr unsigned char kMagic[4] = {'W', 'H', 'R', 'P'};
constexpr uint8_t kVersion = 2;
constexpr size_t kFixedBytes = 56;

template <typename Integer>
unsigned char* put(unsigned char* out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) {
    out[i] = static_cast<unsigned char>(static_cast<uint64_t>(value) >> (8 * i));
  }
  return out + sizeof value;
}

template <typename Integer>
Integer get(const unsigned char* in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(Integer); ++i) value |= static_cast<uint64_t>(in[i]) << (8 * i);
  return static_cast<Integer>(value);
}

bool take_ranks(const unsigned char*& at, size_t count, Rank rank_count, std::vector<Rank>* ranks) {
  ranks->clear();
  for (size_t i = 0; i < count; ++i, at += 2) {
    const Rank rank = get<uint16_t>(at);
    if (rank >= rank_count) return false;
    ranks->push_back(rank);
  }
  return true;
}

}  // namespace

size_t encode(const HealthReport& report, unsigned char* out) {
  const size_t waited = std::min(report.waited.size(), HealthReport::kWaitedRanksMax);
  const size_t blamed = std::min(report.blamed.size(), HealthReport::kBlamedMax);
  const size_t text = std::min(report.text.size(), HealthReport::kTextBytesMax);
  std::memcpy(out, kMagic, sizeof kMagic);
  unsigned char* at = out + sizeof kMagic;
  at = put(at, kVersion);
  at = put(at, static_cast<uint8_t>(report.state));
  at = put(at, report.code);
  at = put(at, static_cast<uint8_t>(report.waits ? 1 : 0));
  at = put(at, report.beat);
  at = put(at, report.mark);
  at = put(at, report.sequence);
  at = put(at, report.what);
  at = put(at, report.count);
  at = put(at, report.finished);
  at = put(at, static_cast<uint16_t>(waited));
  at = put(at, static_cast<uint16_t>(blamed));
  at = put(at, static_cast<uint16_t>(text));
  at = put(at, static_cast<uint16_t>(report.gone ? 1 : 0));
  for (size_t i = 0; i < waited; ++i) at = put(at, static_cast<uint16_t>(report.waited[i]));
  for (size_t i = 0; i < blamed; ++i) at = put(at, static_cast<uint16_t>(report.blamed[i]));
  std::memcpy(at, report.text.data(), text);
  return static_cast<size_t>(at - out) + text;
}

bool decode(const unsigned char* bytes, size_t byte_count, Rank rank_count, HealthReport* report) {
  if (byte_count < kFixedBytes || std::memcmp(bytes, kMagic, sizeof kMagic) != 0) return false;
  const uint8_t state = bytes[5];
  const uint8_t code = bytes[6];
  const bool known = bytes[4] == kVersion &&
                     state >= static_cast<uint8_t>(engine::RankState::kHealthy) &&
                     state <= static_cast<uint8_t>(engine::RankState::kRevoked) &&
                     code <= static_cast<uint8_t>(Code::kInternal) && bytes[7] <= 1 &&
                     get<uint16_t>(bytes + 54) <= 1;
  if (!known) return false;
  const size_t waited = get<uint16_t>(bytes + 48);
  const size_t blamed = get<uint16_t>(bytes + 50);
  const size_t text = get<uint16_t>(bytes + 52);
  if (waited > HealthReport::kWaitedRanksMax || blamed > HealthReport::kBlamedMax ||
      text > HealthReport::kTextBytesMax ||
      byte_count != kFixedBytes + 2 * (waited + blamed) + text) {
    return false;
  }
  report->state = static_cast<engine::RankState>(state);
  report->code = code;
  report->waits = bytes[7] == 1;
  report->gone = bytes[54] == 1;
  report->beat = get<uint32_t>(bytes + 8);
  report->mark = get<uint32_t>(bytes + 12);
  report->sequence = get<uint64_t>(bytes + 16);
  report->what = get<uint64_t>(bytes + 24);
  report->count = get<uint64_t>(bytes + 32);
  report->finished = get<uint64_t>(bytes + 40);
  const unsigned char* at = bytes + kFixedBytes;
  if (!take_ranks(at, waited, rank_count, &report->waited) ||
      !take_ranks(at, blamed, rank_count, &report->blamed)) {
    return false;
  }
  report->text.assign(reinterpret_cast<const char*>(at), text);
  for (char& c : report->text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  return true;
}

}  // namespace weir::comm
