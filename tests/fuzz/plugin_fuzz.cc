// SPDX-License-Identifier: Apache-2.0
// The table that somebody's plugin hands out: whatever sizes, capabilities, names and missing
// functions it holds, the check reads no byte beyond the end that the table itself declares, and
// what it lets pass has a function for everything that it says it can do.
//
//   0  4  abi_version, added to ours    4  4  struct_bytes    8  40  caps, as they lie in the table
//  48  8  one bit for each pointer behind the caps: set, it is not null
//  56  1  0: no name; 1: no summary; else both    57  …  the name
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/plugin/loader.h"
#include "weir/plugin.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

using Table = weir_transport_functions_t;

constexpr size_t kInputBytesMin = 57;
constexpr size_t kCapsOffset = offsetof(Table, caps);
constexpr size_t kCapsBytes = sizeof(weir_transport_caps_t);
constexpr size_t kPointersOffset = kCapsOffset + kCapsBytes;
constexpr size_t kHeadBytes = offsetof(Table, name);
static_assert(kCapsBytes <= 40);

template <typename Word>
Word word_at(const uint8_t* data) {
  Word word;
  std::memcpy(&word, data, sizeof word);
  return word;
}

void expect_complete(const Table& table) {
  const auto there = [&](size_t offset) {
    if (offset + sizeof(void*) > table.struct_bytes) return false;
    void* pointer;
    std::memcpy(&pointer, reinterpret_cast<const char*>(&table) + offset, sizeof pointer);
    return pointer != nullptr;
  };
  const uint64_t bits = table.caps.bits;
  require(std::strlen(table.name) >= 1 && std::strlen(table.name) <= 32);
  require(table.summary != nullptr);
  require(table.caps.lane_count >= 1 && table.caps.lane_count <= WEIR_TRANSPORT_LANES_MAX);
  for (const size_t offset :
       {offsetof(Table, viable), offsetof(Table, open), offsetof(Table, address),
        offsetof(Table, connect), offsetof(Table, close), offsetof(Table, progress)}) {
    require(there(offset));
  }
  const struct {
    uint64_t bit;
    std::vector<size_t> offsets;
  } needs[] = {
      {WEIR_CAP_SEND_RECV, {offsetof(Table, send), offsetof(Table, recv), offsetof(Table, test)}},
      {WEIR_CAP_SEGMENT, {offsetof(Table, segment)}},
      {WEIR_CAP_WINDOW, {offsetof(Table, window_open), offsetof(Table, window_close)}},
      {WEIR_CAP_PEER_FAILURE, {offsetof(Table, peer_alive)}},
      {WEIR_CAP_QUIESCE, {offsetof(Table, quiesce)}},
  };
  for (const auto& need : needs) {
    for (const size_t offset : need.offsets) {
      require((bits & need.bit) == 0 || there(offset));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  require(!weir::plugin::check_functions(nullptr).ok());
  if (bytes < kInputBytesMin) return 0;
  Table whole{};
  const uint32_t abi_version = WEIR_PLUGIN_ABI_VERSION + word_at<uint32_t>(data);
  whole.abi_version = abi_version;
  whole.struct_bytes = word_at<uint32_t>(data + 4);
  const std::string name(reinterpret_cast<const char*>(data) + kInputBytesMin,
                         bytes - kInputBytesMin);
  whole.name = data[56] == 0 ? nullptr : name.c_str();
  whole.summary = data[56] == 1 ? nullptr : "from a plugin";
  auto* raw = reinterpret_cast<unsigned char*>(&whole);
  std::memcpy(raw + kCapsOffset, data + 8, kCapsBytes);
  const uint64_t pointers = word_at<uint64_t>(data + 48);
  for (size_t i = 0; kPointersOffset + (i + 1) * sizeof(void*) <= sizeof whole; ++i) {
    void* pointer = (pointers >> (i % 64) & 1) != 0 ? raw : nullptr;
    std::memcpy(raw + kPointersOffset + i * sizeof(void*), &pointer, sizeof pointer);
  }
  // Exactly as much memory as the table says that it has, so that a sanitizer sees what is read
  // beyond it; a table without its own size is none.
  const size_t table_bytes = std::clamp<size_t>(whole.struct_bytes, kHeadBytes, sizeof whole + 64);
  std::unique_ptr<unsigned char[]> memory(new unsigned char[table_bytes]());
  std::memcpy(memory.get(), &whole, std::min(table_bytes, sizeof whole));
  const auto* table = reinterpret_cast<const Table*>(memory.get());

  const weir::Status checked = weir::plugin::check_functions(table);
  if (checked.ok()) {
    expect_complete(*table);
  } else {
    require(!checked.text().empty());
  }
  return 0;
}
