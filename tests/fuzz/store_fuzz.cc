// SPDX-License-Identifier: Apache-2.0
// What lies in the files of an optimizer store: headers, commit records, chunk trailers. Each is
// read as it was written or refused with a reason. The first byte says which, and whether the
// checksum is put right first, so that what a checksum keeps away is tried as well.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "offload/store/bytes.h"
#include "offload/store/chunk_trailer.h"
#include "offload/store/commit_record.h"
#include "offload/store/crc32c.h"
#include "offload/store/header.h"

using namespace weir;
using namespace weir::offload;

namespace {

constexpr size_t kChecksumOffset = 12;

void require(bool condition) {
  if (!condition) std::abort();
}

void put_checksum(std::vector<unsigned char>* bytes) {
  if (bytes->size() < kChecksumOffset + 4) return;
  put_little<uint32_t>(bytes->data() + kChecksumOffset, 0);
  put_little<uint32_t>(bytes->data() + kChecksumOffset, crc32c(bytes->data(), bytes->size()));
}

// Headers are whole pages, of which the input holds the beginning.
void read_header(std::vector<unsigned char> bytes, bool repairs) {
  if (repairs) {
    bytes.resize((bytes.size() + 4095) / 4096 * 4096);
    put_checksum(&bytes);
  }
  const Result<Header> header = decode_header(bytes);
  if (!header.ok()) return require(!header.status().text().empty());
  require(validate(header.value().description).ok());
  const std::vector<unsigned char> again = encode(header.value());
  require(decode_header(again).ok() && decode_header(again).value() == header.value());
  (void)header.value().description.chunk_count();
}

void read_record(std::vector<unsigned char> bytes, bool repairs) {
  if (repairs) {
    bytes.resize(kRecordBytes);
    put_checksum(&bytes);
  }
  StoreId id{};
  if (bytes.size() >= 16 + sizeof id) std::memcpy(&id, bytes.data() + 16, sizeof id);
  const Result<CommitRecord> record = decode_record(bytes, id);
  if (!record.ok()) return require(!record.status().text().empty());
  require(record.value().current <= kNoSlot);
  for (const SlotState& slot : record.value().slots) {
    require(slot.data.size() <= kCommitDataBytesMax);
  }
  std::vector<unsigned char> again(kRecordBytes);
  encode(record.value(), again.data());
  require(decode_record(again, id).value() == record.value());
}

void read_chunk(std::vector<unsigned char> bytes, bool repairs) {
  bytes.resize(kChunkBytesMin);
  unsigned char* trailer = bytes.data() + bytes.size() - kChunkTrailerBytes;
  // The input's beginning is the trailer.
  std::rotate(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(kChunkTrailerBytes),
              bytes.end());
  if (repairs) put_little<uint32_t>(trailer + 60, crc32c(bytes.data(), bytes.size() - 4));
  const Result<ChunkTrailer> read = read_trailer(bytes.data(), bytes.size());
  if (!read.ok()) return require(!read.status().text().empty());
  require(check_chunk(read.value(), bytes.data(), bytes.size()).ok());
  std::vector<unsigned char> again = bytes;
  seal(read.value(), again.data(), again.size());
  require(again == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const std::vector<unsigned char> rest(data + 1, data + bytes);
  const bool repairs = (data[0] & 0x80) != 0;
  switch (data[0] % 3) {
    case 0:
      read_header(rest, repairs);
      break;
    case 1:
      read_record(rest, repairs);
      break;
    default:
      read_chunk(rest, repairs);
  }
  return 0;
}
