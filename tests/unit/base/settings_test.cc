// SPDX-License-Identifier: Apache-2.0
#include "core/base/settings.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace weir {
namespace {

Result<Settings> parse(std::vector<std::string> entries) {
  std::vector<char*> environment;
  for (std::string& entry : entries) environment.push_back(entry.data());
  environment.push_back(nullptr);
  return parse_settings(environment.data());
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Settings, AnEmptyEnvironmentGivesTheDefaults) {
  const Result<Settings> parsed = parse({});
  ASSERT_TRUE(parsed.ok()) << parsed.status().text();
  const Settings& settings = parsed.value();
  EXPECT_EQ(settings.timeout_ms, 300000);
  EXPECT_EQ(settings.transport, "");
  EXPECT_EQ(settings.hooks, "");
  EXPECT_TRUE(settings.probe);
  EXPECT_FALSE(settings.explain);
  EXPECT_FALSE(settings.deterministic);
  EXPECT_TRUE(settings.huge_pages);
  EXPECT_EQ(settings.staging_bytes, 2 << 20);
  EXPECT_EQ(settings.slice_bytes, 0);
  EXPECT_EQ(settings.spin_us, -1);
  EXPECT_EQ(settings.log_level, "warn");
  EXPECT_EQ(settings.topology_merge, "auto");
  EXPECT_EQ(settings.fabric, "auto");
  EXPECT_TRUE(settings.set_names.empty());
  EXPECT_TRUE(settings.warnings.empty());
  EXPECT_TRUE(parse_settings(nullptr).ok());
}

TEST(Settings, EveryVariableReachesItsField) {
  const Result<Settings> parsed = parse({"PATH=/bin",
                                         "WEIR_LOG=debug",
                                         "WEIR_LOG_FILE=/tmp/log",
                                         "WEIR_TIMEOUT_MS=17",
                                         "WEIR_TRANSPORT=shm,self",
                                         "WEIR_FAILOVER=tcp",
                                         "WEIR_FABRIC=0",
                                         "WEIR_PLUGIN_PATH=/plugins",
                                         "WEIR_HOOKS=trace,check",
                                         "WEIR_FAULT=delay=100us,seed=7",
                                         "WEIR_ALGORITHM=all_reduce=ring",
                                         "WEIR_TUNING_FILE=rules",
                                         "WEIR_TOPOLOGY_FILE=topology.xml",
                                         "WEIR_TOPOLOGY_MERGE=1",
                                         "WEIR_CACHE_DIR=cache",
                                         "WEIR_PROBE=off",
                                         "WEIR_EXPLAIN=TRUE",
                                         "WEIR_DETERMINISTIC=on",
                                         "WEIR_HUGE_PAGES=false",
                                         "WEIR_STAGING_BYTES=64k",
                                         "WEIR_SLICE_BYTES=4096",
                                         "WEIR_SPIN_US=50",
                                         "WEIR_PROGRESS_THREAD=0"});
  ASSERT_TRUE(parsed.ok()) << parsed.status().text();
  const Settings& settings = parsed.value();
  EXPECT_EQ(settings.log_level, "debug");
  EXPECT_EQ(settings.log_file, "/tmp/log");
  EXPECT_EQ(settings.timeout_ms, 17);
  EXPECT_EQ(settings.transport, "shm,self");
  EXPECT_EQ(settings.failover, "tcp");
  EXPECT_EQ(settings.fabric, "0");
  EXPECT_EQ(settings.plugin_path, "/plugins");
  EXPECT_EQ(settings.hooks, "trace,check");
  EXPECT_EQ(settings.fault, "delay=100us,seed=7");
  EXPECT_EQ(settings.algorithm, "all_reduce=ring");
  EXPECT_EQ(settings.tuning_file, "rules");
  EXPECT_EQ(settings.topology_file, "topology.xml");
  EXPECT_EQ(settings.topology_merge, "1");
  EXPECT_EQ(settings.cache_dir, "cache");
  EXPECT_FALSE(settings.probe);
  EXPECT_TRUE(settings.explain);
  EXPECT_TRUE(settings.deterministic);
  EXPECT_FALSE(settings.huge_pages);
  EXPECT_EQ(settings.staging_bytes, 65536);
  EXPECT_EQ(settings.slice_bytes, 4096);
  EXPECT_EQ(settings.spin_us, 50);
  EXPECT_FALSE(settings.progress_thread);
  EXPECT_EQ(settings.set_names.size(), 22u);
}

TEST(Settings, BytesTakeSuffixes) {
  const std::pair<const char*, int64_t> kCases[] = {
      {"65536", 65536}, {"65536B", 65536}, {"64K", 65536},  {"64KiB", 65536},  {"64kib", 65536},
      {"3M", 3 << 20},  {"3MiB", 3 << 20}, {"1G", 1 << 30}, {"1GiB", 1 << 30},
  };
  for (const auto& [text, bytes] : kCases) {
    const Result<Settings> parsed = parse({std::string("WEIR_STAGING_BYTES=") + text});
    ASSERT_TRUE(parsed.ok()) << parsed.status().text();
    EXPECT_EQ(parsed.value().staging_bytes, bytes) << text;
  }
}

TEST(Settings, BooleansTakeSixSpellings) {
  for (const char* text : {"1", "true", "on", "ON"}) {
    EXPECT_TRUE(parse({std::string("WEIR_EXPLAIN=") + text}).value().explain) << text;
  }
  for (const char* text : {"0", "false", "off", "Off"}) {
    EXPECT_FALSE(parse({std::string("WEIR_PROBE=") + text}).value().probe) << text;
  }
}

TEST(Settings, EachBadValueIsRefusedWithItsNameAndWhatIsAllowed) {
  const std::pair<const char*, const char*> kCases[] = {
      {"WEIR_TIMEOUT_MS=abc", "1..86400000"},
      {"WEIR_TIMEOUT_MS=0", "1..86400000"},
      {"WEIR_TIMEOUT_MS=86400001", "1..86400000"},
      {"WEIR_TIMEOUT_MS=5s", "milliseconds"},
      {"WEIR_TIMEOUT_MS=99999999999999999999", "1..86400000"},
      {"WEIR_TIMEOUT_MS= 5", "1..86400000"},
      {"WEIR_PROBE=2", "1, true, on"},
      {"WEIR_PROBE=yes", "0, false, off"},
      {"WEIR_STAGING_BYTES=63K", "64KiB..1GiB"},
      {"WEIR_STAGING_BYTES=2G", "64KiB..1GiB"},
      {"WEIR_STAGING_BYTES=9223372036854775807G", "64KiB..1GiB"},
      {"WEIR_STAGING_BYTES=1T", "K, M or G"},
      {"WEIR_STAGING_BYTES=-1K", "64KiB..1GiB"},
      {"WEIR_STAGING_BYTES=K", "64KiB..1GiB"},
      {"WEIR_SLICE_BYTES=-1", "0..1GiB"},
      {"WEIR_SPIN_US=-2", "-1..1000000"},
      {"WEIR_LOG=loud", "error|warn|info|debug|trace"},
      {"WEIR_LOG=warn|info", "error|warn|info|debug|trace"},
      {"WEIR_RANK=x", "0..65535"},
      {"WEIR_SIZE=0", "1..65536"},
  };
  for (const auto& [entry, allowed] : kCases) {
    const Result<Settings> parsed = parse({entry});
    ASSERT_FALSE(parsed.ok()) << entry;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    const std::string text = parsed.status().text();
    const std::string name = std::string(entry).substr(0, std::string(entry).find('='));
    const std::string value = std::string(entry).substr(name.size() + 1);
    std::string quoted = name;
    quoted.append("=\"").append(value).append("\"");
    EXPECT_TRUE(contains(text, quoted)) << text;
    EXPECT_TRUE(contains(text, allowed)) << text;
  }
}

TEST(Settings, OneErrorNamesAllBadVariables) {
  const Result<Settings> parsed =
      parse({"WEIR_TIMEOUT_MS=x", "WEIR_SPIN_US=10", "WEIR_PROBE=maybe", "WEIR_LOG=loud"});
  ASSERT_FALSE(parsed.ok());
  for (const char* name : {"WEIR_TIMEOUT_MS", "WEIR_PROBE", "WEIR_LOG"}) {
    EXPECT_TRUE(contains(parsed.status().text(), name)) << parsed.status().text();
  }
  EXPECT_FALSE(contains(parsed.status().text(), "WEIR_SPIN_US"));
}

TEST(Settings, ErrorsCarryNoControlCharactersAndNoEndlessValues) {
  const Result<Settings> parsed =
      parse({"WEIR_LOG=a\nforged line\x1b[2J" + std::string(100000, 'x')});
  ASSERT_FALSE(parsed.ok());
  EXPECT_LT(parsed.status().text().size(), 1000u);
  for (const char c : parsed.status().text()) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
}

TEST(Settings, AnUnknownNameIsAWarningWithTheNearestKnownOne) {
  const Result<Settings> parsed = parse({"WEIR_TIMEOUT=5", "WEIR_TRANSPORTS=shm",
                                         "WEIR_TEST_SEED=1", "NOT_WEIR_X=1", "WEIR_DETERMINSTIC"});
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(parsed.value().warnings.size(), 3u);
  EXPECT_TRUE(contains(parsed.value().warnings[0], "WEIR_TIMEOUT is set"));
  EXPECT_TRUE(contains(parsed.value().warnings[0], "WEIR_TIMEOUT_MS"));
  EXPECT_TRUE(contains(parsed.value().warnings[1], "nearest is WEIR_TRANSPORT"));
  EXPECT_TRUE(contains(parsed.value().warnings[2], "nearest is WEIR_DETERMINISTIC"));
}

TEST(Settings, AnEmptyValueIsAsGoodAsNone) {
  const Result<Settings> parsed = parse({"WEIR_TIMEOUT_MS=", "WEIR_LOG="});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().timeout_ms, 300000);
  EXPECT_TRUE(parsed.value().set_names.empty());
}

TEST(Settings, OfTwoEntriesTheFirstCounts) {
  const Result<Settings> parsed = parse({"WEIR_SPIN_US=1", "WEIR_SPIN_US=2"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed.value().spin_us, 1);
}

TEST(Settings, DescriptionSaysWhatIsSetAndWhatIsDefault) {
  const Result<Settings> parsed =
      parse({"WEIR_STAGING_BYTES=3145728", "WEIR_SPIN_US=-1", "WEIR_SPINN_US=3"});
  ASSERT_TRUE(parsed.ok());
  const std::string text = describe_settings(parsed.value());
  for (const SettingInfo& info : setting_table()) EXPECT_TRUE(contains(text, info.name));
  const auto line_of = [&](const std::string& name) {
    const size_t at = text.find(name);
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_TRUE(contains(line_of("WEIR_STAGING_BYTES"), "3MiB"));
  EXPECT_TRUE(line_of("WEIR_STAGING_BYTES").ends_with("set"));
  EXPECT_TRUE(line_of("WEIR_SPIN_US").ends_with("set"));
  EXPECT_TRUE(line_of("WEIR_TIMEOUT_MS").ends_with("default"));
  EXPECT_TRUE(contains(text, "WEIR_SPINN_US"));
}

TEST(Settings, DescriptionTellsEveryDefaultThatHolds) {
  const Result<Settings> parsed = parse({});
  ASSERT_TRUE(parsed.ok());
  const std::string text = describe_settings(parsed.value());
  for (const SettingInfo& info : setting_table()) {
    const size_t at = text.find(std::string("  ") + info.name + " ");
    ASSERT_NE(at, std::string::npos) << info.name;
    const std::string line = text.substr(at, text.find('\n', at) - at);
    const std::string expected = *info.default_text != '\0' ? info.default_text : "(none)";
    EXPECT_TRUE(contains(line, " " + expected + " ")) << line;
  }
}

TEST(Settings, MarkdownHasOneRowForEachVariable) {
  const std::string text = settings_markdown();
  std::set<std::string> names;
  for (const SettingInfo& info : setting_table()) {
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_TRUE(contains(text, std::string("| `") + info.name + "` |")) << info.name;
    EXPECT_TRUE(contains(text, info.help)) << info.name;
    EXPECT_TRUE(std::string(info.help).ends_with(".")) << info.name;
  }
  EXPECT_TRUE(contains(text, "error\\|warn\\|info"));
}

TEST(Settings, TheDefaultOfEachVariableIsAValueItAccepts) {
  for (const SettingInfo& info : setting_table()) {
    const Result<Settings> parsed = parse({std::string(info.name) + "=" + info.default_text});
    EXPECT_TRUE(parsed.ok()) << parsed.status().text();
  }
}

}  // namespace
}  // namespace weir
