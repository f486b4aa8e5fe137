// SPDX-License-Identifier: Apache-2.0
// Pieces that hook_seal is to open. The first byte chooses: whatever arrives (nothing of it may
// open), a head that was sealed and then changed, or a script of pieces that are delivered in any
// order, repeated, left out and changed: one opens exactly when it is the next of those that were
// sealed, as it was.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "plugins/hook_seal/cipher.h"

using namespace weir::plugins::hook_seal;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

struct Ends {
  explicit Ends(uint64_t records_max = kRecordsMax)
      : seals(secret(), Cipher::Use::kSeals, records_max),
        opens(secret(), Cipher::Use::kOpens, records_max) {
    require(seals.is_usable() && opens.is_usable());
  }
  TrafficSecret* secret() {
    kept.fill(7);
    return &kept;
  }
  TrafficSecret kept;
  Cipher seals, opens;
};

void fuzz_strange(const uint8_t* data, size_t bytes) {
  Ends ends;
  unsigned char head[kHeadBytes] = {};
  if (bytes != 0) std::memcpy(head, data, std::min(bytes, sizeof head));
  std::vector<unsigned char> got(1000, 0xee);
  uint64_t told = 5;
  require(!ends.opens.open_head(head, &told, got.data(), got.size()));
  require(told == 5 && got == std::vector<unsigned char>(1000, 0xee));
  if (bytes < kTagBytes) return;
  got.assign(bytes, 0xee);
  require(!ends.opens.open_body(data, bytes - kTagBytes, got.data()));
  require(std::all_of(got.begin(), got.end() - kTagBytes, [](unsigned char b) { return b == 0; }));
}

// Length told (8 bytes), room (2), then what is changed (2: where, 1: how), then data.
void fuzz_head(const uint8_t* data, size_t bytes) {
  if (bytes < 13) return;
  uint64_t length = 0;
  std::memcpy(&length, data, sizeof length);
  const size_t room = data[8] | size_t{data[9]} << 8;
  const size_t at = (data[10] | size_t{data[11]} << 8) % kHeadBytes;
  std::vector<unsigned char> sent(kHeadDataBytes, 0);
  std::memcpy(sent.data(), data + 13, std::min(bytes - 13, sent.size()));
  Ends ends;
  unsigned char head[kHeadBytes];
  require(ends.seals.seal_head(length, sent.data(), head));
  head[at] = static_cast<unsigned char>(head[at] ^ data[12]);
  std::vector<unsigned char> got(room + 1, 0xee);
  uint64_t told = 0;
  const bool opened = ends.opens.open_head(head, &told, got.data(), room);
  require(opened == (data[12] == 0));
  size_t filled = 0;
  if (opened) {
    require(told == length);
    filled = static_cast<size_t>(std::min<uint64_t>({length, room, kHeadDataBytes}));
    require(filled == 0 || std::memcmp(got.data(), sent.data(), filled) == 0);
  }
  require(std::all_of(got.begin() + static_cast<std::ptrdiff_t>(filled), got.end(),
                      [](unsigned char b) { return b == 0xee; }));
}

void fuzz_script(const uint8_t* data, size_t bytes) {
  constexpr size_t kCount = 8;
  Ends ends(3);
  std::array<std::vector<unsigned char>, kCount> plain, pieces;
  for (size_t i = 0; i < kCount; ++i) {
    plain[i].assign(i * 5, static_cast<unsigned char>(i));
    pieces[i].resize(plain[i].size() + kTagBytes);
    require(ends.seals.seal_body(plain[i].data(), plain[i].size(), pieces[i].data()));
  }
  size_t expected = 0;
  for (size_t at = 0; at + 1 < bytes && expected < kCount; at += 2) {
    const size_t which = data[at] % kCount;
    std::vector<unsigned char> piece = pieces[which];
    piece[data[at] / kCount % piece.size()] ^= data[at + 1];
    std::vector<unsigned char> got(plain[which].size());
    const bool opened = ends.opens.open_body(piece.data(), got.size(), got.data());
    require(opened == (which == expected && data[at + 1] == 0));
    // The receiver gives up with the first that does not open.
    if (!opened) return;
    require(got == plain[which]);
    ++expected;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  switch (data[0] % 3) {
    case 0:
      fuzz_strange(data + 1, bytes - 1);
      break;
    case 1:
      fuzz_head(data + 1, bytes - 1);
      break;
    default:
      fuzz_script(data + 1, bytes - 1);
  }
  return 0;
}
