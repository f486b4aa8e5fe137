// SPDX-License-Identifier: Apache-2.0
#include "offload/store/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define WEIR_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define WEIR_CRC_TARGET __attribute__((target("+crc")))
#endif

namespace weir::offload {

namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = crc;
  }
  for (uint32_t i = 0; i < 256; ++i) {
    for (size_t t = 1; t < 8; ++t) {
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

uint64_t load_little(const unsigned char* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof value);
  if constexpr (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__) value = __builtin_bswap64(value);
  return value;
}

uint32_t table_update(uint32_t crc, const unsigned char* at, size_t bytes) {
  for (; bytes >= 8; at += 8, bytes -= 8) {
    const uint64_t word = load_little(at) ^ crc;
    crc = 0;
    for (size_t t = 0; t < 8; ++t) crc ^= kTables[7 - t][(word >> (8 * t)) & 0xFF];
  }
  for (; bytes > 0; ++at, --bytes) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xFF];
  return crc;
}

#if defined(WEIR_CRC_TARGET)

// The instruction has a latency of three cycles and starts one a cycle, so three streams of
// kStreamBytes run side by side; a table of "append kStreamBytes zero bytes" joins them.
constexpr size_t kStreamBytes = 1024;

using Shift = std::array<std::array<uint32_t, 256>, 4>;

// Appending zeros is linear, so four tables, one per byte of the checksum, are enough.
constexpr Shift make_shift() {
  std::array<uint32_t, 32> of_bit{};
  for (size_t bit = 0; bit < 32; ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < kStreamBytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xFF];
    of_bit[bit] = crc;
  }
  Shift shift{};
  for (size_t byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 0; value < 256; ++value) {
      uint32_t sum = 0;
      for (size_t bit = 0; bit < 8; ++bit) {
        if (((value >> bit) & 1) != 0) sum ^= of_bit[8 * byte + bit];
      }
      shift[byte][value] = sum;
    }
  }
  return shift;
}

const Shift& shift_tables() {
  static const Shift tables = make_shift();
  return tables;
}

uint32_t append_stream_of_zeros(const Shift& shift, uint32_t crc) {
  return shift[0][crc & 0xFF] ^ shift[1][(crc >> 8) & 0xFF] ^ shift[2][(crc >> 16) & 0xFF] ^
         shift[3][crc >> 24];
}

#if defined(__x86_64__)
WEIR_CRC_TARGET inline uint32_t step_word(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(_mm_crc32_u64(crc, word));
}
WEIR_CRC_TARGET inline uint32_t step_byte(uint32_t crc, unsigned char byte) {
  return _mm_crc32_u8(crc, byte);
}
bool cpu_has_crc() { return __builtin_cpu_supports("sse4.2") != 0; }
#else
WEIR_CRC_TARGET inline uint32_t step_word(uint32_t crc, uint64_t word) {
  return __crc32cd(crc, word);
}
WEIR_CRC_TARGET inline uint32_t step_byte(uint32_t crc, unsigned char byte) {
  return __crc32cb(crc, byte);
}
bool cpu_has_crc() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

WEIR_CRC_TARGET uint32_t cpu_update(uint32_t crc, const unsigned char* at, size_t bytes) {
  if (bytes >= 3 * kStreamBytes) {
    const Shift& shift = shift_tables();
    for (; bytes >= 3 * kStreamBytes; at += 3 * kStreamBytes, bytes -= 3 * kStreamBytes) {
      uint32_t second = 0;
      uint32_t third = 0;
      for (size_t i = 0; i < kStreamBytes; i += 8) {
        crc = step_word(crc, load_little(at + i));
        second = step_word(second, load_little(at + kStreamBytes + i));
        third = step_word(third, load_little(at + 2 * kStreamBytes + i));
      }
      crc = append_stream_of_zeros(shift, crc) ^ second;
      crc = append_stream_of_zeros(shift, crc) ^ third;
    }
  }
  for (; bytes >= 8; at += 8, bytes -= 8) crc = step_word(crc, load_little(at));
  for (; bytes > 0; ++at, --bytes) crc = step_byte(crc, *at);
  return crc;
}

#endif

}  // namespace

uint32_t crc32c(const void* data, size_t bytes, uint32_t before) {
#if defined(WEIR_CRC_TARGET)
  static const bool has_crc = cpu_has_crc();
  if (has_crc) return ~cpu_update(~before, static_cast<const unsigned char*>(data), bytes);
#endif
  return crc32c_portable(data, bytes, before);
}

uint32_t crc32c_portable(const void* data, size_t bytes, uint32_t before) {
  return ~table_update(~before, static_cast<const unsigned char*>(data), bytes);
}

}  // namespace weir::offload
