// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "offload/store/bytes.h"
#include "offload/store/chunk_trailer.h"
#include "offload/store/commit_record.h"
#include "offload/store/crc32c.h"
#include "offload/store/header.h"
#include "offload/store/store_run.h"

namespace weir::offload {
namespace {

StoreId test_id() {
  StoreId id;
  for (size_t i = 0; i < id.bytes.size(); ++i) id.bytes[i] = static_cast<unsigned char>(i + 1);
  return id;
}

Header test_header() { return {test_id(), StoreKind::kStore, 1, 3, test_description(1, 4)}; }

CommitRecord test_record() {
  CommitRecord record;
  record.id = test_id();
  record.sequence = 41;
  record.current = 1;
  record.slots[0] = {true, true, 6, 60, 0xabc, {1, 2, 3}};
  record.slots[1] = {true, false, 7, 70, 0xdef, std::vector<unsigned char>(kCommitDataBytesMax, 9)};
  return record;
}

TEST(Header, ComesBackAsItWasWritten) {
  const Result<Header> back = decode_header(encode(test_header()));
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_EQ(back.value(), test_header());
}

TEST(Header, IsRefusedWithAnyBitFlipped) {
  const std::vector<unsigned char> good = encode(test_header());
  for (size_t at = 0; at < good.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      std::vector<unsigned char> bad = good;
      bad[at] = static_cast<unsigned char>(bad[at] ^ (1u << bit));
      ASSERT_EQ(decode_header(bad).status().code(), Code::kRefused) << at << " " << bit;
    }
  }
}

TEST(Header, IsRefusedAtEveryLengthThatIsTooShort) {
  const std::vector<unsigned char> good = encode(test_header());
  for (size_t bytes = 0; bytes < good.size(); ++bytes) {
    ASSERT_FALSE(decode_header(std::span(good).first(bytes)).ok());
  }
}

TEST(Header, OfAnotherVersionSaysWhichWasExpectedAndFound) {
  std::vector<unsigned char> bytes = encode(test_header());
  put_little<uint32_t>(bytes.data() + 8, 7);
  put_little<uint32_t>(bytes.data() + 12, 0);
  put_little<uint32_t>(bytes.data() + 12, crc32c(bytes.data(), bytes.size()));
  const Status status = decode_header(bytes).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.text().find("expected format version 1, found 7"), std::string::npos);
}

TEST(CommitRecord, ComesBackAsItWasWritten) {
  std::vector<unsigned char> page(kRecordBytes);
  encode(test_record(), page.data());
  const Result<CommitRecord> back = decode_record(page, test_id());
  ASSERT_TRUE(back.ok()) << back.status().text();
  EXPECT_EQ(back.value(), test_record());
}

TEST(CommitRecord, IsRefusedWithAnyBitFlippedAndOfAnotherStore) {
  std::vector<unsigned char> page(kRecordBytes);
  encode(test_record(), page.data());
  for (size_t at = 0; at < page.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      page[at] = static_cast<unsigned char>(page[at] ^ (1u << bit));
      ASSERT_FALSE(decode_record(page, test_id()).ok()) << at << " " << bit;
      page[at] = static_cast<unsigned char>(page[at] ^ (1u << bit));
    }
  }
  EXPECT_FALSE(decode_record(page, StoreId()).ok());
  EXPECT_TRUE(decode_record(page, test_id()).ok());
}

TEST(ChunkTrailer, TellsFlippedTornStaleMisdirectedAndForeignChunksApart) {
  std::vector<unsigned char> chunk(4096, 5);
  const ChunkTrailer trailer{test_id(), 3, 9, 1234};
  seal(trailer, chunk.data(), chunk.size());
  EXPECT_TRUE(check_chunk(trailer, chunk.data(), chunk.size()).ok());
  for (size_t at = 0; at < chunk.size(); ++at) {
    for (unsigned bit = 0; bit < 8; ++bit) {
      chunk[at] = static_cast<unsigned char>(chunk[at] ^ (1u << bit));
      ASSERT_FALSE(check_chunk(trailer, chunk.data(), chunk.size()).ok()) << at << " " << bit;
      chunk[at] = static_cast<unsigned char>(chunk[at] ^ (1u << bit));
    }
  }
  const auto text = [&](const ChunkTrailer& expected) {
    return check_chunk(expected, chunk.data(), chunk.size()).text();
  };
  EXPECT_NE(text({test_id(), 4, 9, 1234}).find("misdirected"), std::string::npos);
  EXPECT_NE(text({test_id(), 3, 10, 1234}).find("expected epoch 10"), std::string::npos);
  EXPECT_NE(text({test_id(), 3, 9, 1235}).find("a write was lost"), std::string::npos);
  EXPECT_NE(text({StoreId(), 3, 9, 1234}).find("expected a chunk of store"), std::string::npos);
}

TEST(Description, SaysItsFirstDifference) {
  const StoreDescription a = test_description();
  EXPECT_TRUE(compare(a, a).ok());
  const auto differs = [&](auto change, const std::string& words) {
    StoreDescription b = a;
    change(b);
    const Status status = compare(a, b);
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.text().find(words), std::string::npos) << status.text();
  };
  differs([](auto& b) { b.model = "big"; }, "'little', found 'big'");
  differs([](auto& b) { b.fingerprint = 5; }, "0000000000001234, found 0000000000000005");
  differs([](auto& b) { b.rank = 2; }, "the state of rank 0, found 2");
  differs([](auto& b) { b.rank_count = 8; }, "a rank count of 1, found 8");
  differs([](auto& b) { b.chunk_bytes = 8192; }, "chunk_bytes 4096, found 8192");
  // What a person can see comes first.
  differs([](auto& b) { b.fingerprint = b.groups[1].element_count = 5; }, "element count 10");
  differs([](auto& b) { b.groups.pop_back(); }, "a group count of 3, found 2");
  differs([](auto& b) { b.groups[1].name = "x"; }, "group 1 to be 'norm', found 'x'");
  differs([](auto& b) { b.groups[1].element_count = 5; }, "element count 10, found 5");
  differs([](auto& b) { b.groups[1].first_element = 5; }, "first element 0, found 5");
  differs([](auto& b) { b.groups[1].chunk_elements = 5; }, "chunk elements 300, found 5");
  differs([](auto& b) { b.groups[2].method = 5; }, "method 2, found 5");
  differs([](auto& b) { b.groups[2].state_format = 5; }, "state format 1, found 5");
}

TEST(Description, RefusesWhatAStoreCannotHold) {
  const auto refused = [](auto change) {
    StoreDescription description = test_description();
    change(description);
    return validate(description).code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(validate(test_description()).ok());
  EXPECT_TRUE(refused([](auto& d) { d.chunk_bytes = 0; }));
  EXPECT_TRUE(refused([](auto& d) { d.chunk_bytes = 5000; }));
  EXPECT_TRUE(refused([](auto& d) { d.rank_count = 0; }));
  EXPECT_TRUE(refused([](auto& d) { d.rank = 1; }));
  EXPECT_TRUE(refused([](auto& d) { d.groups.clear(); }));
  EXPECT_TRUE(refused([](auto& d) { d.groups[0].name.clear(); }));
  EXPECT_TRUE(refused([](auto& d) { d.groups[0].name = "norm"; }));
  EXPECT_TRUE(refused([](auto& d) { d.groups[0].chunk_elements = 0; }));
  EXPECT_TRUE(refused([](auto& d) { d.groups[0].element_count = ~uint64_t{0}; }));
  EXPECT_TRUE(refused([](auto& d) {
    for (auto& group : d.groups) group.element_count = 0;
  }));
}

TEST(Description, FindsThePlaceOfEveryChunk) {
  const StoreDescription description = test_description();
  ASSERT_EQ(description.chunk_count(), 6u);
  EXPECT_EQ(place_of(description, 2).first_element, 600u);
  EXPECT_EQ(place_of(description, 3).group, 1u);
  EXPECT_EQ(place_of(description, 3).element_count, 10u);
  EXPECT_EQ(place_of(description, 5).group, 2u);
  EXPECT_EQ(place_of(description, 5).element_count, 1u);
}

}  // namespace
}  // namespace weir::offload
