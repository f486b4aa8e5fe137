// SPDX-License-Identifier: Apache-2.0
#include "core/cost/table.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/base/check.h"

namespace weir::cost {

namespace {

constexpr double kNsMax = 1e9;
constexpr double kNsPerByteMax = 1e6;
constexpr uint64_t kCacheBytesMax = uint64_t{1} << 40;
constexpr std::array<const char*, kRegimeCount> kRegimeNames = {"l2", "l3", "dram"};
constexpr uint32_t kBlobMagic = 0x4c425457;  // "WTBL", little-endian

// Calls time(name, double&, limit) and size(name, uint64_t&) for every figure, always in the same
// order: the one list from which checking, JSON and blob are made. `Times` may be const.
template <typename Times, typename OnTime, typename OnSize>
void for_each_figure(Times& times, OnTime&& time, OnSize&& size) {
  const auto by_regime = [&](const std::string& name, auto& figures) {
    for (size_t i = 0; i < kRegimeCount; ++i) {
      time(name + "_" + kRegimeNames[i], figures[i], kNsPerByteMax);
    }
  };
  for (size_t i = 0; i < kLinkCount; ++i) {
    const std::string prefix = std::string(name_of(static_cast<Link>(i))) + ".";
    auto& link = times.links[i];
    time(prefix + "message_ns", link.message_ns, kNsMax);
    time(prefix + "send_ns", link.send_ns, kNsMax);
    time(prefix + "recv_ns", link.recv_ns, kNsMax);
    time(prefix + "signal_ns", link.signal_ns, kNsMax);
    by_regime(prefix + "slot_in_ns_per_byte", link.slot_in_ns_per_byte);
    by_regime(prefix + "slot_out_ns_per_byte", link.slot_out_ns_per_byte);
    by_regime(prefix + "window_ns_per_byte", link.window_ns_per_byte);
    time(prefix + "wire_ns_per_byte", link.wire_ns_per_byte, kNsPerByteMax);
  }
  by_regime("copy_ns_per_byte", times.copy_ns_per_byte);
  for (size_t i = 0; i < kReduceSources.size(); ++i) {
    by_regime("reduce" + std::to_string(kReduceSources[i]) + "_ns_per_byte",
              times.reduce_ns_per_byte[i]);
  }
  time("call_ns", times.call_ns, kNsMax);
  time("operation_ns", times.operation_ns, kNsMax);
  time("switch_ns", times.switch_ns, kNsMax);
  size("l2_bytes", times.l2_bytes);
  size("l3_bytes", times.l3_bytes);
}

void put_u64(std::byte*& at, uint64_t value) {
  for (int i = 0; i < 8; ++i) *at++ = static_cast<std::byte>(value >> (8 * i));
}

uint64_t get_u64(const std::byte*& at) {
  uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<uint64_t>(*at++) << (8 * i);
  return value;
}

Status bad_table(const std::string& reason) {
  return invalid_argument("table of task times: " + reason);
}

}  // namespace

const char* name_of(Link link) {
  switch (link) {
    case Link::kShmSharedCache:
      return "shm_shared_cache";
    case Link::kShmSameSocket:
      return "shm_same_socket";
    case Link::kShmCrossSocket:
      return "shm_cross_socket";
    case Link::kTcp:
      return "tcp";
    case Link::kFabric:
      return "fabric";
  }
  return "?";
}

double TaskTimes::reduce_of(uint32_t source_count, Regime regime) const {
  const size_t r = static_cast<size_t>(regime);
  if (source_count <= 1) return copy_ns_per_byte[r];
  if (source_count == kReduceSources[0]) return reduce_ns_per_byte[0][r];
  size_t upper = 1;
  while (upper + 1 < kReduceSources.size() && kReduceSources[upper] < source_count) ++upper;
  // Interpolates linearly between neighbours, and extrapolates beyond the last.
  const double x0 = kReduceSources[upper - 1];
  const double x1 = kReduceSources[upper];
  const double y0 = reduce_ns_per_byte[upper - 1][r];
  const double y1 = reduce_ns_per_byte[upper][r];
  const double line = y0 + (y1 - y0) * (source_count - x0) / (x1 - x0);
  return std::max(line, std::min(y0, y1));
}

Table built_in_table() {
  Table table;
  TaskTimes& t = table.times;
  t.link(Link::kShmSharedCache) = {.message_ns = 130,
                                   .send_ns = 40,
                                   .recv_ns = 40,
                                   .signal_ns = 80,
                                   .slot_in_ns_per_byte = {0.03, 0.06, 0.12},
                                   .slot_out_ns_per_byte = {0.04, 0.06, 0.12},
                                   .window_ns_per_byte = {0.05, 0.06, 0.10}};
  t.link(Link::kShmSameSocket) = {.message_ns = 220,
                                  .send_ns = 50,
                                  .recv_ns = 50,
                                  .signal_ns = 140,
                                  .slot_in_ns_per_byte = {0.04, 0.07, 0.13},
                                  .slot_out_ns_per_byte = {0.07, 0.08, 0.13},
                                  .window_ns_per_byte = {0.08, 0.09, 0.12}};
  t.link(Link::kShmCrossSocket) = {.message_ns = 400,
                                   .send_ns = 60,
                                   .recv_ns = 60,
                                   .signal_ns = 260,
                                   .slot_in_ns_per_byte = {0.05, 0.08, 0.14},
                                   .slot_out_ns_per_byte = {0.14, 0.15, 0.18},
                                   .window_ns_per_byte = {0.15, 0.16, 0.18}};
  t.link(Link::kTcp) = {.message_ns = 15000,
                        .send_ns = 3000,
                        .recv_ns = 3000,
                        .signal_ns = 15000,
                        .slot_in_ns_per_byte = {0.20, 0.22, 0.30},
                        .slot_out_ns_per_byte = {0.25, 0.27, 0.35},
                        .window_ns_per_byte = {0.25, 0.27, 0.35},
                        .wire_ns_per_byte = 0.32};
  t.link(Link::kFabric) = {.message_ns = 1500,
                           .send_ns = 200,
                           .recv_ns = 200,
                           .signal_ns = 1800,
                           .slot_in_ns_per_byte = {0.0, 0.0, 0.0},
                           .slot_out_ns_per_byte = {0.0, 0.0, 0.0},
                           .window_ns_per_byte = {0.04, 0.04, 0.04},
                           .wire_ns_per_byte = 0.04};
  t.copy_ns_per_byte = {0.02, 0.05, 0.10};
  t.reduce_ns_per_byte = {
      {{0.03, 0.08, 0.15}, {0.06, 0.14, 0.25}, {0.12, 0.26, 0.45}, {0.24, 0.50, 0.85}}};
  t.call_ns = 60;
  t.operation_ns = 5;
  t.switch_ns = 1500;
  t.l2_bytes = uint64_t{1} << 20;
  t.l3_bytes = uint64_t{32} << 20;
  return table;
}

Table device_table() {
  constexpr double kMemoryNsPerByte = 1.0 / 1500;
  constexpr double kWithinHostNs = 500;
  constexpr double kAcrossHostsNs = 1500;
  Table table;
  TaskTimes& t = table.times;
  for (size_t i = 0; i < kLinkCount; ++i) {
    const double ns = is_network(static_cast<Link>(i)) ? kAcrossHostsNs : kWithinHostNs;
    t.links[i] = {.message_ns = 2 * ns, .send_ns = ns, .recv_ns = ns, .signal_ns = ns};
  }
  t.copy_ns_per_byte.fill(2 * kMemoryNsPerByte);
  for (size_t i = 0; i < kReduceSources.size(); ++i) {
    t.reduce_ns_per_byte[i].fill(3 * kMemoryNsPerByte * (kReduceSources[i] - 1));
  }
  return table;
}

Status validate(const Table& table) {
  Status status;
  for_each_figure(
      table.times,
      [&](const std::string& name, double value, double limit) {
        if (status.ok() && !(std::isfinite(value) && value >= 0 && value <= limit)) {
          status = bad_table(fmt::format("{} is {}; allowed is 0 to {}", name, value, limit));
        }
      },
      [&](const std::string& name, uint64_t value) {
        if (status.ok() && value > kCacheBytesMax) {
          status =
              bad_table(fmt::format("{} is {}; allowed is 0 to {}", name, value, kCacheBytesMax));
        }
      });
  return status;
}

std::string to_json(const Table& table) {
  nlohmann::ordered_json json;
  json["version"] = Table::kVersion;
  json["topology"] = fmt::format("{:016x}", table.topology_hash);
  json["checksum"] = fmt::format("{:016x}", checksum_of(table));
  for_each_figure(
      table.times, [&](const std::string& name, double value, double) { json[name] = value; },
      [&](const std::string& name, uint64_t value) { json[name] = value; });
  return json.dump(1) + "\n";
}

Result<Table> table_from_json(const std::string& text, TableOrigin* origin) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) return bad_table("not a JSON object");
  const auto version = json.find("version");
  if (version == json.end() || !version->is_number_unsigned() ||
      version->get<uint64_t>() < Table::kVersionReadMin ||
      version->get<uint64_t>() > Table::kVersion) {
    return bad_table(
        fmt::format("'version' is not {} to {}", Table::kVersionReadMin, Table::kVersion));
  }
  Table table;
  const auto topology = json.find("topology");
  if (topology == json.end() || !topology->is_string()) return bad_table("'topology' is missing");
  const std::string digits = topology->get<std::string>();
  if (digits.size() != 16 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return bad_table("'topology' is not 16 hexadecimal digits");
  }
  table.topology_hash = std::stoull(digits, nullptr, 16);

  Status status;
  const auto checksum = json.find("checksum");
  size_t found_count = checksum == json.end() ? 2 : 3;
  const auto find = [&](const std::string& name) -> const nlohmann::json* {
    const auto member = json.find(name);
    if (member != json.end()) {
      ++found_count;
      return &*member;
    }
    if (status.ok()) status = bad_table("'" + name + "' is missing");
    return nullptr;
  };
  for_each_figure(
      table.times,
      [&](const std::string& name, double& value, double) {
        const nlohmann::json* member = find(name);
        if (member == nullptr) return;
        if (member->is_number()) {
          value = member->get<double>();
        } else if (status.ok()) {
          status = bad_table("'" + name + "' is not a number");
        }
      },
      [&](const std::string& name, uint64_t& value) {
        const nlohmann::json* member = find(name);
        if (member == nullptr) return;
        if (member->is_number_unsigned()) {
          value = member->get<uint64_t>();
        } else if (status.ok()) {
          status = bad_table("'" + name + "' is not a non-negative integer");
        }
      });
  WEIR_RETURN_IF_ERROR(status);
  if (found_count != json.size()) return bad_table("there are unknown members");
  WEIR_RETURN_IF_ERROR(validate(table));
  if (origin != nullptr) {
    origin->version = version->get<uint32_t>();
    origin->is_unchanged =
        checksum != json.end() && *checksum == fmt::format("{:016x}", checksum_of(table));
  }
  return table;
}

uint64_t checksum_of(const Table& table) {
  const TableBlob blob = to_blob(table);
  const std::byte* at = blob.data() + kTableBlobBytes - 8;
  return get_u64(at);
}

TableBlob to_blob(const Table& table) {
  TableBlob blob;
  std::byte* at = blob.data();
  put_u64(at, kBlobMagic | uint64_t{Table::kVersion} << 32);
  put_u64(at, table.topology_hash);
  for_each_figure(
      table.times,
      [&](const std::string&, double value, double) {
        put_u64(at, std::bit_cast<uint64_t>(value));
      },
      [&](const std::string&, uint64_t value) { put_u64(at, value); });
  WEIR_CHECK(at == blob.data() + kTableBlobBytes - 8, "kFigureCount is the number of figures");
  put_u64(at, XXH64(blob.data(), kTableBlobBytes - 8, 0));
  return blob;
}

Result<Table> table_from_blob(std::span<const std::byte> blob) {
  if (blob.size() != kTableBlobBytes) {
    return bad_table(
        fmt::format("{} bytes were received, {} expected", blob.size(), kTableBlobBytes));
  }
  const std::byte* at = blob.data();
  const uint64_t head = get_u64(at);
  if ((head & 0xffffffffu) != kBlobMagic) return bad_table("wrong magic");
  if (head >> 32 != Table::kVersion) {
    return bad_table(
        fmt::format("version {} was received, {} is ours; all ranks need the same "
                    "version of Weir",
                    head >> 32, Table::kVersion));
  }
  const std::byte* end = blob.data() + kTableBlobBytes - 8;
  if (get_u64(end) != XXH64(blob.data(), kTableBlobBytes - 8, 0)) {
    return bad_table("the checksum does not match");
  }
  Table table;
  table.topology_hash = get_u64(at);
  for_each_figure(
      table.times,
      [&](const std::string&, double& value, double) {
        value = std::bit_cast<double>(get_u64(at));
      },
      [&](const std::string&, uint64_t& value) { value = get_u64(at); });
  WEIR_RETURN_IF_ERROR(validate(table));
  return table;
}

}  // namespace weir::cost
