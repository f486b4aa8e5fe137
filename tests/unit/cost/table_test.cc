// SPDX-License-Identifier: Apache-2.0
#include "core/cost/table.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace weir::cost {
namespace {

uint64_t seed() {
  const char* text = std::getenv("WEIR_TEST_SEED");
  const uint64_t value = text != nullptr ? std::strtoull(text, nullptr, 0) : 20241;
  std::printf("WEIR_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
  return value;
}

Table odd_table() {
  Table table = built_in_table();
  table.topology_hash = 0xfedcba9876543210u;
  table.times.link(Link::kTcp).message_ns = 1.0 / 3;
  table.times.reduce_ns_per_byte[3][2] = 1e-300;
  table.times.l3_bytes = 0;
  return table;
}

TEST(Table, BuiltInIsValid) { EXPECT_TRUE(validate(built_in_table()).ok()); }

TEST(Table, JsonRoundTripKeepsEveryBit) {
  const Table table = odd_table();
  const Result<Table> back = table_from_json(to_json(table));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_EQ(to_blob(back.value()), to_blob(table));
}

TEST(Table, BlobRoundTripKeepsEveryBit) {
  const Table table = odd_table();
  const Result<Table> back = table_from_blob(to_blob(table));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_EQ(to_json(back.value()), to_json(table));
}

TEST(Table, EveryDamagedByteOfABlobIsRefused) {
  const TableBlob good = to_blob(odd_table());
  for (size_t i = 0; i < good.size(); ++i) {
    TableBlob bad = good;
    bad[i] ^= std::byte{1};
    EXPECT_FALSE(table_from_blob(bad).ok()) << "byte " << i;
  }
  EXPECT_FALSE(table_from_blob(std::span(good).first(good.size() - 1)).ok());
  EXPECT_FALSE(table_from_blob({}).ok());
}

TEST(Table, FiguresThatAreNoTimesAreRefused) {
  for (double bad : {-1.0, 1e10, std::numeric_limits<double>::quiet_NaN(),
                     std::numeric_limits<double>::infinity()}) {
    Table table = built_in_table();
    table.times.link(Link::kShmSameSocket).signal_ns = bad;
    const Status status = validate(table);
    ASSERT_FALSE(status.ok());
    EXPECT_NE(status.text().find("shm_same_socket.signal_ns"), std::string::npos) << status.text();
    EXPECT_FALSE(table_from_blob(to_blob(table)).ok());
  }
}

TEST(Table, DamagedJsonIsRefusedAndNeverCrashes) {
  const std::string good = to_json(odd_table());
  std::mt19937_64 random(seed());
  int refused = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    bad[random() % bad.size()] = static_cast<char>(random() % 256);
    if (i % 3 == 0) bad.resize(random() % bad.size());
    refused += table_from_json(bad).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);  // a digit may well become another digit
  for (const char* text : {"", "[]", "{}", "null", "{\"version\":4}", "{\"version\":\"1\"}"}) {
    EXPECT_FALSE(table_from_json(text).ok()) << text;
  }
  std::string more = good;
  more.insert(more.find('{') + 1, "\"extra\":1,");
  EXPECT_NE(table_from_json(more).status().text().find("unknown members"), std::string::npos);
}

TEST(Table, JsonOfAnOlderVersionIsStillRead) {
  std::string old = to_json(odd_table());
  const std::string now = "\"version\": " + std::to_string(Table::kVersion);
  ASSERT_NE(old.find(now), std::string::npos);
  old.replace(old.find(now), now.size(), "\"version\": 1");
  TableOrigin origin;
  const Result<Table> table = table_from_json(old, &origin);
  ASSERT_TRUE(table.ok()) << table.status().text();
  EXPECT_EQ(origin.version, 1u);
  EXPECT_EQ(to_blob(table.value()), to_blob(odd_table()));
  old.replace(old.find("\"version\": 1"), 12, "\"version\": 0");
  EXPECT_NE(table_from_json(old).status().text().find("'version' is not 1 to 4"),
            std::string::npos);
}

TEST(Table, JsonThatWasChangedIsReadAndKnownAsSuch) {
  const std::string good = to_json(odd_table());
  TableOrigin origin;
  ASSERT_TRUE(table_from_json(good, &origin).ok());
  EXPECT_TRUE(origin.is_unchanged);
  const auto is_unchanged = [&](const nlohmann::json& json) {
    const Result<Table> table = table_from_json(json.dump(), &origin);
    EXPECT_TRUE(table.ok()) << table.status().text();
    return origin.is_unchanged;
  };
  nlohmann::json changed = nlohmann::json::parse(good);
  EXPECT_TRUE(is_unchanged(changed)) << "only the order and the spaces are others";
  changed["call_ns"] = changed["call_ns"].get<double>() + 1;
  EXPECT_FALSE(is_unchanged(changed));
  changed["checksum"] = 7;
  EXPECT_FALSE(is_unchanged(changed));
  changed.erase("checksum");
  EXPECT_FALSE(is_unchanged(changed));
}

TEST(Table, ReductionTimesAreInterpolatedAndRise) {
  const TaskTimes times = built_in_table().times;
  double before = 0;
  for (uint32_t sources = 1; sources <= 64; ++sources) {
    const double now = times.reduce_of(sources, Regime::kL3);
    EXPECT_GT(now, before) << sources;
    before = now;
  }
  EXPECT_DOUBLE_EQ(times.reduce_of(2, Regime::kL2), times.reduce_ns_per_byte[0][0]);
  EXPECT_DOUBLE_EQ(times.reduce_of(16, Regime::kDram), times.reduce_ns_per_byte[3][2]);
  EXPECT_DOUBLE_EQ(times.reduce_of(1, Regime::kDram), times.copy_ns_per_byte[2]);
}

}  // namespace
}  // namespace weir::cost
