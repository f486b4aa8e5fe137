// SPDX-License-Identifier: Apache-2.0
// MSCCL's XML becomes programs that the verifier accepts, or an error that names the line.
#include "core/algo/msccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>

#include "core/algo/imported.h"
#include "core/sched/verify.h"
#include "sched/msccl_documents.h"

namespace weir::algo {
namespace {

using testing::HasSubstr;

void expect_right(const std::string& document, Collective collective, Rank n,
                  const std::string& what) {
  const auto read = read_programs(document, "test.xml");
  ASSERT_TRUE(read.ok()) << what << ": " << read.status().text();
  const sched::ProgramSet& set = read.value().set;
  ASSERT_EQ(set.programs.size(), n) << what;
  EXPECT_EQ(set.programs[0].collective, collective) << what;
  EXPECT_LE(set.programs[0].shape.lane_count, 4u) << what << ": tcp has no more";
  const auto imported = Imported::make(set, "test");
  ASSERT_TRUE(imported.ok()) << what << ": "
                             << with_origins(imported.status().text(), read.value());
  for (const bool in_place : {false, true}) {
    const auto verdict =
        sched::verify(imported.value()->programs(), {.access = {.in_place = in_place}});
    EXPECT_TRUE(verdict.ok()) << what << ": " << verdict.flaw.text;
  }
}

TEST(Msccl, RingsOfOneAndSeveralChannelsAreRight) {
  for (Rank n = 2; n <= 9; ++n) {
    for (const uint32_t channels : {1u, 2u, 5u}) {
      for (const bool in_place : {false, true}) {
        expect_right(msccl_ring_all_reduce(n, channels, in_place), Collective::kAllReduce, n,
                     "ring of " + std::to_string(n) + " on " + std::to_string(channels));
      }
    }
  }
}

TEST(Msccl, BlocksThatWaitForEachOtherArePackedIntoFewLanes) {
  for (Rank n = 2; n <= 12; ++n) {
    expect_right(msccl_pairs_all_reduce(n), Collective::kAllReduce, n,
                 "pairs of " + std::to_string(n));
  }
}

TEST(Msccl, RanksThatFoldInMirroredOrderHaveTheSameBits) {
  for (const Rank n : {2u, 4u, 8u, 16u}) {
    expect_right(msccl_doubling_all_reduce(n), Collective::kAllReduce, n,
                 "doubling on " + std::to_string(n));
  }
}

TEST(Msccl, AllGatherReduceScatterAndAllToAllAreRightInPlaceAndApart) {
  for (Rank n = 2; n <= 9; ++n) {
    for (const bool in_place : {false, true}) {
      const std::string what = std::to_string(n) + (in_place ? " in place" : " apart");
      expect_right(msccl_ring_all_gather(n, in_place), Collective::kAllGather, n, what);
      expect_right(msccl_ring_reduce_scatter(n, in_place), Collective::kReduceScatter, n, what);
      for (const uint32_t chunks : {1u, 3u}) {
        expect_right(msccl_pairs_all_to_all(n, chunks, in_place), Collective::kAllToAll, n, what);
      }
    }
  }
}

TEST(Msccl, AConnectionHoldsEightMessages) {
  for (const Rank n : {2u, 3u, 5u}) {
    for (const uint32_t chunks : {2u, 8u}) {
      expect_right(msccl_eager_all_to_all(n, chunks), Collective::kAllToAll, n,
                   std::to_string(chunks) + " messages, " + std::to_string(n) + " ranks");
    }
    const auto read = read_programs(msccl_eager_all_to_all(n, 9), "a.xml");
    ASSERT_FALSE(read.ok());
    EXPECT_THAT(read.status().text(), HasSubstr("gpu 0 block 0 step 8: waits for ever"));
  }
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

TEST(Msccl, ErrorsNameFileAndLine) {
  const std::string ring = msccl_ring_all_reduce(3, 1, true);
  struct Case {
    std::string text;
    const char* expected;
  };
  const Case cases[] = {
      {"", "a.xml: the file is empty"},
      {"<algo", "a.xml:1: "},
      {"<graph/>", "a.xml:1: the first element is not <algo>"},
      {replaced(ring, "allreduce", "broadcast"), "a.xml:1: coll=\"broadcast\" cannot be imported"},
      {replaced(ring, "ngpus=\"3\"", "ngpus=\"0\""), "a.xml:1: "},
      {replaced(ring, "ngpus=\"3\"", "ngpus=\"4\""), "there is no <gpu id=\"3\">, of 4"},
      {replaced(ring, "ngpus=\"3\"", "ngpus=\"2\""), "a.xml:3: recv=\"2\""},
      {replaced(ring, "gpu id=\"1\"", "gpu id=\"0\""), "a.xml:11: a second <gpu id=\"0\">"},
      {replaced(ring, "i_chunks=\"3\"", "i_chunks=\"-3\""), "a.xml:2: "},
      {replaced(ring, "send=\"1\"", "send=\"7\""), "a.xml:3: "},
      {replaced(ring, "send=\"1\"", "send=\"0\""), "a.xml:3: gpu 0 block 0: exchanges messages"},
      {replaced(ring, "send=\"1\"", "send=\"-1\""), "a.xml:4: sends, but its block 0"},
      {replaced(ring, "recv=\"2\"", "recv=\"-1\""), "a.xml:5: receives, but its block 0"},
      {replaced(ring, "type=\"rrs\"", "type=\"rsr\""), "a.xml:5: type=\"rsr\" is unknown"},
      {replaced(ring, "srcbuf=\"i\"", "srcbuf=\"x\""), "a.xml:4: srcbuf=\"x\" is unknown"},
      {replaced(ring, "srcoff=\"0\"", "srcoff=\"3\""), "a.xml:4: gpu 0 block 0 step 0: 1 chunks"},
      {replaced(ring, "cnt=\"1\"", "cnt=\"0\""), "a.xml:4: cnt is 0"},
      {replaced(ring, "cnt=\"1\"", "cnt=\"2\""), "receives 1 chunks, but a.xml:4: gpu 0 block 0"},
      {replaced(ring, "step s=\"1\"", "step s=\"2\""), "a.xml:5: s=\"2\" must be 1"},
      {replaced(ring, "depid=\"-1\" deps=\"-1\"", "depid=\"4\" deps=\"0\""),
       "a.xml:4: waits for step 0 of block 4, which this gpu does not have"},
      {replaced(ring, "depid=\"-1\" deps=\"-1\"", "depid=\"0\" deps=\"9\""),
       "a.xml:4: waits for step 9 of block 0, which has"},
      {replaced(ring, "depid=\"-1\" deps=\"-1\"", "depid=\"0\" deps=\"0\""),
       "a.xml:4: waits for itself"},
      {replaced(ring, "hasdep=", "hasdeps="), "a.xml:4: <step> has an unknown attribute hasdeps"},
      {replaced(ring, "<step s=\"0\" type=\"s\"", "<op s=\"0\" type=\"s\""),
       "a.xml:4: <op> is unknown in <tb>"},
      {replaced(ring, "chan=\"0\"", "chan=\"1\""), "waits for ever"},
  };
  for (const Case& test : cases) {
    const auto read = read_programs(test.text, "a.xml");
    ASSERT_FALSE(read.ok()) << test.expected;
    EXPECT_EQ(read.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(read.status().text(), HasSubstr(test.expected));
  }
}

// One attribute of one step is changed: the document is refused, and the step is named where the
// verifier finds it, or it still is an all-reduce.
TEST(Msccl, ADocumentWithOneStepChangedIsRefusedWithThatStep) {
  const std::string good = msccl_ring_all_reduce(4, 1, false);
  const auto verdict_on = [](const std::string& text) -> std::string {
    const auto read = read_programs(text, "a.xml");
    if (!read.ok()) return read.status().text();
    const auto imported = Imported::make(read.value().set, "test");
    return imported.ok() ? "" : with_origins(imported.status().text(), read.value());
  };
  ASSERT_EQ(verdict_on(good), "");
  size_t refused = 0;
  for (size_t at = good.find("dstoff=\""); at != std::string::npos;
       at = good.find("dstoff=\"", at + 1)) {
    const size_t begin = good.rfind("type=\"", at) + 6;
    const std::string type = good.substr(begin, good.find('"', begin) - begin);
    std::string text = good;
    char& digit = text[at + 8];
    digit = digit == '3' ? '0' : static_cast<char>(digit + 1);
    const std::string verdict = verdict_on(text);
    if (type == "s" || type == "rrs") {
      EXPECT_EQ(verdict, "") << "dst of a send is the peer's affair";
      continue;
    }
    ++refused;
    const auto line =
        std::count(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(at), '\n') + 1;
    EXPECT_THAT(verdict, HasSubstr("line " + std::to_string(line))) << type;
  }
  EXPECT_EQ(refused, 4u * 4);
}

// Whatever is done to the text, reading it ends with programs or an error.
TEST(Msccl, DamagedTextNeverDoesHarm) {
  const char* seed_text = std::getenv("WEIR_TEST_SEED");
  const uint64_t seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : 7;
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  const std::string documents[] = {msccl_pairs_all_reduce(3), msccl_ring_all_gather(3, true),
                                   msccl_pairs_all_to_all(3, 2, true),
                                   msccl_ring_all_reduce(3, 2, false)};
  const std::string alphabet = "0123456789<>/\"= -iosrcpyen";
  int right = 0, refused = 0;
  for (int round = 0; round < 8000; ++round) {
    std::string text = documents[random() % 4];
    for (uint64_t i = 0; i <= random() % 3; ++i) {
      const size_t at = random() % text.size();
      if (random() % 4 == 0) {
        text.erase(at, 1 + random() % 8);
      } else {
        text[at] = alphabet[random() % alphabet.size()];
      }
    }
    const auto read = read_programs(text, "a.xml");
    if (!read.ok()) {
      EXPECT_FALSE(read.status().text().empty());
      ++refused;
      continue;
    }
    const auto imported = Imported::make(read.value().set, "test");
    ++(imported.ok() ? right : refused);
  }
  EXPECT_GT(right, 0) << "seed " << seed;
  EXPECT_GT(refused, 0) << "seed " << seed;
}

}  // namespace
}  // namespace weir::algo
