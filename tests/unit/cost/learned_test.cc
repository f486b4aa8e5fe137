// SPDX-License-Identifier: Apache-2.0
#include "core/cost/learned.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/cost/learned_file.h"
#include "core/cost/measured_times.h"
#include "core/cost/table.h"

namespace weir::cost {
namespace {

using testing::HasSubstr;

AlgorithmTime timed(const char* name, double predicted_ns, uint64_t count, double ns) {
  return {.algorithm = name,
          .predicted_ns = predicted_ns,
          .count = count,
          .least_ns = count == 0 ? 0 : 0.5 * ns,
          .average_ns = count == 0 ? 0 : 1.5 * ns,
          .middle_ns = count == 0 ? 0 : ns};
}

LearnedCall call_of(uint64_t bytes, std::vector<AlgorithmTime> times) {
  LearnedCall call;
  call.shape.bytes = bytes;
  call.choice = times.front().algorithm;
  call.reason = "least predicted time";
  call.written = std::time(nullptr);
  call.times = std::move(times);
  return call;
}

const LearnedFor kFor = {.topology_hash = 0xabcdef,
                         .transport = "tcp",
                         .layout = "4 ranks on one host with 2 cores",
                         .rank_count = 4};

Learned two_calls() {
  LearnedCall gather = call_of(4096, {timed("bruck", 4000, 20, 5000), timed("ring", 5000, 0, 0)});
  gather.shape.collective = Collective::kAllGather;
  gather.shape.lengths = algo::BlockLengths::kKnownToAll;
  gather.shape.in_place = true;
  gather.shape.in_windows = true;
  gather.shape.type = DataType::kBfloat16;
  return {
      kFor,
      {call_of(65536, {timed("ring", 9000, 40, 8000), timed("direct", 9500, 30, 6000)}), gather}};
}

// ---- Values -------------------------------------------------------------------------------------

TEST(MeasuredTimes, TheMedianIsThatOfTheLatestCalls) {
  MeasuredTimes times;
  EXPECT_EQ(times.middle_ns(), 0);
  for (const double ns : {90., 10., 50.}) times.add(ns);
  EXPECT_EQ(times.count, 3u);
  EXPECT_EQ(times.first_ns, 90);
  EXPECT_EQ(times.least_ns, 10);
  EXPECT_EQ(times.average_ns(), 50);
  EXPECT_EQ(times.middle_ns(), 50);
  for (size_t i = 0; i < MeasuredTimes::kLatest; ++i) times.add(i % 4 == 0 ? 1e9 : 200);
  EXPECT_EQ(times.middle_ns(), 200) << "a quarter of the calls waited for a core";
  EXPECT_EQ(times.least_ns, 10);
}

TEST(LearnedTimes, AreToldWithoutLossAndOnlyWhatCounts) {
  const LearnedTimes told(two_calls().calls);
  CallShape shape;
  shape.bytes = 65536;
  const auto read = LearnedTimes::unpack(told.pack());
  ASSERT_TRUE(read.ok()) << read.status().text();
  const auto* times = read.value().find(shape);
  ASSERT_NE(times, nullptr);
  ASSERT_EQ(times->size(), 2u);
  EXPECT_EQ((*times)[1].algorithm, "direct");
  EXPECT_EQ((*times)[1].count, 30u);
  EXPECT_EQ((*times)[1].middle_ns, 6000);
  // Of the other call only one algorithm was measured.
  EXPECT_EQ(read.value().find(two_calls().calls[1].shape), nullptr);
  EXPECT_TRUE(LearnedTimes({call_of(8, {timed("ring", 1, kLearnedCountMin - 1, 1),
                                        timed("direct", 1, 100, 1)})})
                  .empty());
  EXPECT_FALSE(LearnedTimes({call_of(8, {timed("ring", 1, kLearnedCountMin, 1),
                                         timed("direct", 1, 100, 1)})})
                   .empty());
}

TEST(LearnedTimes, DamagedBytesAreRefusedOrReadAndNeverCrash) {
  const std::string good = LearnedTimes(two_calls().calls).pack();
  EXPECT_FALSE(LearnedTimes::unpack("").ok());
  EXPECT_FALSE(LearnedTimes::unpack("hello").ok());
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(LearnedTimes::unpack(good.substr(0, size)).ok()) << size;
  }
  size_t refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char flip : {'\x01', '\x80', '\xff'}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      refused += LearnedTimes::unpack(bad).ok() ? 0 : 1;
    }
  }
  EXPECT_GT(refused, good.size() / 4);
}

TEST(LearnedCalls, AddUpWithWeightsThatForget) {
  std::vector<LearnedCall> kept = {call_of(64, {timed("ring", 100, 30, 1000)})};
  LearnedCall newer = call_of(64, {timed("ring", 110, 10, 2000), timed("direct", 90, 5, 500)});
  newer.choice = "direct";
  newer.reason = "measured faster";
  merge({newer, call_of(128, {timed("ring", 1, 1, 1)})}, &kept);
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept[0].choice, "direct");
  EXPECT_EQ(kept[0].reason, "measured faster");
  const AlgorithmTime* ring = kept[0].find("ring");
  ASSERT_NE(ring, nullptr);
  EXPECT_EQ(ring->count, 40u);
  EXPECT_EQ(ring->predicted_ns, 110);
  EXPECT_DOUBLE_EQ(ring->middle_ns, 1250);
  EXPECT_DOUBLE_EQ(ring->least_ns, 500);
  ASSERT_NE(kept[0].find("direct"), nullptr);
  EXPECT_EQ(kept[0].find("direct")->count, 5u);
  // A million old calls count like kLearnedCountKept.
  std::vector<LearnedCall> old = {call_of(64, {timed("ring", 100, 1'000'000, 1000)})};
  merge({call_of(64, {timed("ring", 100, kLearnedCountKept, 2000)})}, &old);
  EXPECT_DOUBLE_EQ(old[0].find("ring")->middle_ns, 1500);
}

// ---- JSON ---------------------------------------------------------------------------------------

TEST(LearnedJson, RoundTripKeepsEverything) {
  const Learned before = two_calls();
  uint32_t table_version = 0;
  const auto after = learned_from_json(to_json(before), &table_version);
  ASSERT_TRUE(after.ok()) << after.status().text();
  EXPECT_EQ(table_version, Table::kVersion);
  EXPECT_EQ(after.value().of, kFor);
  EXPECT_EQ(to_json(after.value()), to_json(before));
  EXPECT_EQ(after.value().calls[1].shape, before.calls[1].shape);
}

void replace(std::string* text, const std::string& from, const std::string& to) {
  const size_t at = text->find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << *text;
  text->replace(at, from.size(), to);
}

TEST(LearnedJson, WhatIsWrongIsNamed) {
  const std::string good = to_json(two_calls());
  const struct {
    const char *from, *to, *says;
  } kWrong[] = {
      {"\"version\": 1", "\"version\": 2", "version 2 is not known"},
      {"\"topology\": \"0", "\"topology\": \"g", "'topology'"},
      {"\"transport\": \"tcp\"", "\"transport\": 7", "'transport' is no text"},
      {"\"ranks\": 4", "\"ranks\": -4", "'ranks' is no number"},
      {"\"all_reduce\"", "\"all_produce\"", "call 0: 'all_produce' is no collective"},
      {"\"float32\"", "\"float31\"", "'float31' is no type"},
      {"\"choice\": \"ring\"", "\"choice\": \"rign\"", "the choice is none of the candidates"},
      {"\"in_place\": false", "\"in_place\": 0", "'in_place' is neither true nor false"},
      {"\"count\": 40", "\"count\": 0", "times without calls"},
      {"\"count\": 40", "\"count\": 40.5", "'count' is no number"},
      {"\"middle_ns\": 8000.0", "\"middle_ns\": -1", "'middle_ns' is no time"},
      {"\"middle_ns\": 8000.0", "\"middle_ns\": 1e99", "'middle_ns' is no time"},
      {"\"least_ns\": 4000.0", "\"least_ns\": 9000", "the least time of 'ring' is not the least"},
      {"\"algorithm\": \"direct\"", "\"algorithm\": \"ring\"", "'ring' is listed twice"},
      {"\"reason\"", "\"treason\"", "'reason' is missing"},
      {"{\n \"version\"", "[\n \"version\"", "not a JSON object"},
  };
  for (const auto& [from, to, says] : kWrong) {
    std::string bad = good;
    replace(&bad, from, to);
    const auto read = learned_from_json(bad);
    ASSERT_FALSE(read.ok()) << to;
    EXPECT_THAT(read.status().text(), HasSubstr(says));
  }
  for (size_t size = 0; size + 2 < good.size(); size += 7) {
    EXPECT_FALSE(learned_from_json(good.substr(0, size)).ok()) << size;
  }
}

TEST(LearnedJson, TimesFarFromThePredictedOnesAreImplausible) {
  const auto calls = [](double factor) {
    std::vector<LearnedCall> all;
    for (uint64_t i = 1; i <= 3; ++i) {
      all.push_back(call_of(i, {timed("ring", 1000, 40, 2000 * (i == 1 ? 1 : factor))}));
    }
    return all;
  };
  EXPECT_EQ(why_implausible(calls(1)), "");
  EXPECT_EQ(why_implausible(calls(kLearnedFactorMax * 0.99)), "");
  EXPECT_THAT(why_implausible(calls(kLearnedFactorMax * 1.01)), HasSubstr("times as long"));
  EXPECT_THAT(why_implausible(calls(0.99 / kLearnedFactorMax)), HasSubstr("times as long"));
  EXPECT_EQ(why_implausible({}), "");
}

// ---- Files --------------------------------------------------------------------------------------

class LearnedFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "weir_learned_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string path() const { return directory_ + "/" + learned_file_name(kFor); }
  void store(const Learned& learned = two_calls()) {
    const Status stored = store_learned(directory_, learned);
    ASSERT_TRUE(stored.ok()) << stored.text();
  }
  std::string text() const {
    std::ifstream file(path());
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }
  void write(const std::string& content) {
    std::ofstream(path(), std::ios::trunc) << content;
    ASSERT_EQ(chmod(path().c_str(), 0600), 0);
  }
  void expect_ignored(const char* says) {
    const LearnedLookup lookup = load_learned(directory_, kFor);
    EXPECT_TRUE(lookup.calls.empty());
    EXPECT_THAT(lookup.ignored, HasSubstr(says));
  }

  std::string directory_;
};

TEST_F(LearnedFile, IsKeptForItsOwnerAndReplacedWhole) {
  EXPECT_EQ(load_learned(directory_, kFor).ignored, "");
  store();
  store();
  const LearnedLookup lookup = load_learned(directory_, kFor);
  EXPECT_EQ(lookup.ignored, "");
  EXPECT_EQ(lookup.calls.size(), 2u);
  struct stat info = {};
  ASSERT_EQ(stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(learned_files(directory_), std::vector{learned_file_name(kFor)});
}

TEST_F(LearnedFile, IsAnotherOneForOtherRanksTransportsAndTopologies) {
  std::set<std::string> names = {learned_file_name(kFor)};
  LearnedFor other = kFor;
  other.rank_count = 5;
  names.insert(learned_file_name(other));
  other = kFor;
  other.transport = "shm";
  names.insert(learned_file_name(other));
  other = kFor;
  other.topology_hash ^= 1;
  names.insert(learned_file_name(other));
  other = kFor;
  other.layout += "; WEIR_TLS=all";
  names.insert(learned_file_name(other));
  EXPECT_EQ(names.size(), 5u);
  // One that was renamed is not believed.
  store();
  std::filesystem::rename(path(), directory_ + "/" + learned_file_name(other));
  EXPECT_THAT(load_learned(directory_, other).ignored, HasSubstr("is of other ranks"));
}

TEST_F(LearnedFile, CorruptOnesAreIgnored) {
  write("{\"not\": ");
  expect_ignored("not a JSON object");
  write(std::string(2 << 20, ' '));
  expect_ignored("at most");
  std::filesystem::remove(path());
  std::filesystem::create_symlink("/dev/null", path());
  expect_ignored("cannot open");
}

TEST_F(LearnedFile, OnesThatOthersMayWriteOrOwnAreIgnored) {
  store();
  ASSERT_EQ(chmod(path().c_str(), 0620), 0);
  expect_ignored("others may write");
  ASSERT_EQ(chmod(path().c_str(), 0600), 0);
  ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
  expect_ignored("others may write");
  ASSERT_EQ(chmod(directory_.c_str(), 0700), 0);
  EXPECT_EQ(load_learned(directory_, kFor).ignored, "");
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(chown(path().c_str(), 65534, 65534), 0);
  expect_ignored("belongs to user 65534");
}

TEST_F(LearnedFile, OldOnesAreNotUsedNorAreOldCalls) {
  Learned learned = two_calls();
  learned.calls[0].written = std::time(nullptr) - kLearnedAgeMaxSeconds - 60;
  store(learned);
  EXPECT_EQ(load_learned(directory_, kFor).calls.size(), 1u);
  for (const int64_t age : {kLearnedAgeMaxSeconds + 60, -kLearnedAgeMaxSeconds - 60}) {
    const timespec when = {.tv_sec = std::time(nullptr) - age, .tv_nsec = 0};
    const timespec both[] = {when, when};
    ASSERT_EQ(utimensat(AT_FDCWD, path().c_str(), both, 0), 0);
    expect_ignored("not written within the last 30 days");
  }
}

TEST_F(LearnedFile, OnesOfAnotherTableOrOfABusyMachineAreNotUsed) {
  store();
  std::string other = text();
  replace(&other, "\"table_version\": ", "\"table_version\": 9");
  write(other);
  expect_ignored("version 9");
  store({kFor, {call_of(64, {timed("ring", 100, 40, 50'000), timed("direct", 120, 40, 100)})}});
  expect_ignored("times as long as predicted");
}

TEST_F(LearnedFile, IsBoundedAndKeepsTheLatestCalls) {
  Learned learned{kFor, {}};
  for (size_t i = 0; i < kLearnedCallsMax + 10; ++i) {
    learned.calls.push_back(call_of(i, {timed("ring", 100, 10, 100)}));
    learned.calls.back().written -= 1000 - static_cast<int64_t>(i);
  }
  std::vector<AlgorithmTime>& many = learned.calls.back().times;
  for (int i = 0; i < 40; ++i) many.push_back(timed(("a" + std::to_string(i)).c_str(), 1, 0, 0));
  many.push_back(timed("measured", 1, 10, 100));
  store(learned);
  const LearnedLookup lookup = load_learned(directory_, kFor);
  ASSERT_EQ(lookup.calls.size(), kLearnedCallsMax) << lookup.ignored;
  EXPECT_EQ(lookup.calls.front().shape.bytes, kLearnedCallsMax + 9);
  EXPECT_NE(lookup.calls.front().find("measured"), nullptr);
  EXPECT_LT(lookup.calls.front().times.size(), many.size());
}

}  // namespace
}  // namespace weir::cost
