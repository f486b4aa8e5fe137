// SPDX-License-Identifier: Apache-2.0
// Table: the times of a machine's elementary tasks, from which the time of every algorithm is
// predicted. TaskTimes also lists what the start-up probe must measure. Values; thread-safe.
//
// All bandwidth figures are measured with every rank of the host doing the same work at once, so
// that they are each rank's share. They are given for three regimes: data that stays in a core's
// own cache, in the cache that cores share, and in memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/base/status.h"

namespace weir::cost {

// How two ranks are connected.
enum class Link : uint8_t { kShmSharedCache, kShmSameSocket, kShmCrossSocket, kTcp, kFabric };
inline constexpr size_t kLinkCount = 5;
const char* name_of(Link link);  // "shm_shared_cache", …
constexpr bool is_network(Link link) { return link >= Link::kTcp; }

enum class Regime : uint8_t { kL2, kL3, kDram };
inline constexpr size_t kRegimeCount = 3;
using ByRegime = std::array<double, kRegimeCount>;  // indexed by Regime

struct LinkTimes {
  // One-way time of an 8-byte message: half of a ping-pong between warm ranks.
  double message_ns = 0;
  // The part of it that occupies the sender's core: time of one of many 8-byte sends in a row.
  double send_ns = 0;
  // The part that occupies the receiver's core: time per message when many have arrived.
  double recv_ns = 0;
  // Time from the store of a counter until the peer's loop sees it.
  double signal_ns = 0;
  // Sender's and receiver's core time per byte of a large message (copy into slots or a socket, and
  // out of them). Zero where the transport moves the bytes itself.
  ByRegime slot_in_ns_per_byte{};
  ByRegime slot_out_ns_per_byte{};
  // Per byte: copying data that a peer has just written to mapped memory into the rank's own
  // memory. Networks: as slot_out.
  ByRegime window_ns_per_byte{};
  // The time on the wire, per byte; messages of one host share it. Zero for shared memory.
  double wire_ns_per_byte = 0;
};

// The numbers of sources per reduction that are measured; between them the time is interpolated.
inline constexpr std::array<uint32_t, 4> kReduceSources = {2, 4, 8, 16};

struct TaskTimes {
  std::array<LinkTimes, kLinkCount> links{};
  ByRegime copy_ns_per_byte{};  // own memory to own memory, per byte copied
  // One pass over kReduceSources[i] own sources of float32, per byte of the result.
  std::array<ByRegime, kReduceSources.size()> reduce_ns_per_byte{};
  double call_ns = 0;       // a collective that moves no data: argument checks, plan look-up
  double operation_ns = 0;  // interpreting one operation of a plan
  double switch_ns = 0;     // handing the core to another rank of this host, when they share it
  uint64_t l2_bytes = 0;    // of a core
  uint64_t l3_bytes = 0;    // of the cache that cores share; 0: none

  // The time per byte of the result, for any number of sources >= 1 (1 is a copy).
  double reduce_of(uint32_t source_count, Regime regime) const;
  const LinkTimes& link(Link link) const { return links[static_cast<size_t>(link)]; }
  LinkTimes& link(Link link) { return links[static_cast<size_t>(link)]; }
};

struct Table {
  // 2: l3_bytes is the size of one cache; before, it could be the sum of several. 3: slots and
  // windows of shared memory with both cores at work; before, with one. 4: memory is what no cache
  // holds, and each regime has the stores that are faster there; before, what was in memory could
  // be in the last cache, and only memory had non-temporal stores.
  static constexpr uint32_t kVersion = 4;
  static constexpr uint32_t kVersionReadMin = 1;

  uint64_t topology_hash = 0;  // of the machine that was measured; 0: built in
  TaskTimes times;
};

// Figures of a server of about 2020; good for orders of magnitude, not for microseconds.
Table built_in_table();

// Ranks whose data lie on devices, with messages that go over links (RankLayout::ways): what their
// programs take beside the links. Assumptions, not measurements: memory of 1,500 GB/s, which a copy
// passes twice and a reduction of two three times; 1 us of a message, at its two ranks together,
// within a host and 3 us across hosts, beside the latency of links. (NCCL's tuning assumes 0.5 to
// 3.4 us for a whole step over NVLink and 2.7 to 14 us over a network, src/graph/tuning.cc.)
Table device_table();

// Checks that every figure is finite and in range; the error text names the field.
Status validate(const Table& table);

// XXH64 of topology and figures: the last 8 bytes of the blob below.
uint64_t checksum_of(const Table& table);

// JSON object with "version", "topology", "checksum" (16 hexadecimal digits each) and one member
// per figure. from_json requires these members and no others, of any version from kVersionReadMin
// to kVersion. The checksum may be missing or another one, for people write and change tables:
// `origin` says so if asked.
std::string to_json(const Table& table);
struct TableOrigin {
  uint32_t version = 0;
  bool is_unchanged = false;  // the checksum is there, and it is that of the figures
};
Result<Table> table_from_json(const std::string& text, TableOrigin* origin = nullptr);

// For the broadcast by which all ranks agree: fixed size, little-endian, with a checksum.
//   0   4  "WTBL"        4  4  kVersion       8  8  topology_hash
//   16  8 per figure, in the order of the JSON members (float64, or uint64 of *_bytes)
//   end-8  8  XXH64 of all before
inline constexpr size_t kFigureCount =
    kLinkCount * (5 + 3 * kRegimeCount) + kRegimeCount * (1 + kReduceSources.size()) + 5;
inline constexpr size_t kTableBlobBytes = 16 + 8 * kFigureCount + 8;
using TableBlob = std::array<std::byte, kTableBlobBytes>;
TableBlob to_blob(const Table& table);
// Rejects a wrong size, magic, version or checksum, and figures that validate() rejects.
Result<Table> table_from_blob(std::span<const std::byte> blob);

}  // namespace weir::cost
