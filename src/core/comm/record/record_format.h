// SPDX-License-Identifier: Apache-2.0
// The recorder's file: the latest operations of one rank of one communicator, in memory that
// survives the process. Only its owner, which maps it, writes it, with plain stores; weir-trace and
// weir-info may read it at any time, so a reader checks each number and expects records that are
// half written. It holds no secret and no user data.
//
//   offset  bytes   what
//   0       8       magic "WEIRTRC1", written last
//   8       4       version
//   12      4       0x01020304 in the byte order of the writer, which all numbers have
//   16      8       bytes of the file
//   24      8       public id of the communicator
//   32      8       instance: the same on its ranks, another one in each run
//   40      4, 4    rank, rank count
//   48      4, 4    process, user
//   56      8       start of the process, in clock ticks since the machine's start
//   64      8       PID namespace (inode)
//   72      4, 4    bytes of the ways below, 0 in files of earlier libraries; zero
//   80      48      boot id of the machine
//   128     64      host name
//   192     128     name of the communicator
//   320     64      program
//   384     32      transport
//   416     48      two clock samples of {ticks, monotonic ns, wall-clock ns}: when the
//                   communicator was made, and the latest
//   512     4, 4    state (RecordState), result code
//   520     504     why it failed
//   1024    8       latest completed collective
//   1088    8       when a waiting thread last checked, monotonic ns
//   1096    8 each  how long the parts of making the communicator took, ns: rendezvous, handshake,
//                   exchange, connect, costs (start_times.h); zero in files of earlier libraries
//   1152    ~512    the ranks that it waits for (WaitBlock)
//   4096    32 each kOperationRecords operations, by sequence number
//   12288   8 each  kOperationRecords ends, in ticks
//   14336   64 each kMessageRecords point-to-point and one-sided operations, by number
//   20480   ways    how it reaches its peers, by ascending rank, those for which there is room: 4
//                   rank, 2 bytes of text, the text, which a zero byte may end before; it may
//                   change
//
// Every other text ends with a zero byte.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/types.h"

namespace weir::comm {

inline constexpr char kRecordMagic[8] = {'W', 'E', 'I', 'R', 'T', 'R', 'C', '1'};
inline constexpr uint32_t kRecordVersion = 1;
inline constexpr uint32_t kRecordByteOrder = 0x01020304;
inline constexpr uint32_t kOperationRecords = 256;
inline constexpr uint32_t kMessageRecords = 64;
inline constexpr uint32_t kAwaitedRanksMax = 64;
// The transport of a communicator whose calls go to the real NCCL. There "completed" means that the
// call has returned: its work may still be queued on the device.
inline constexpr char kForwardedTransport[] = "the real NCCL";
// The transport of the record of collectives that are work of streams of devices. There "begun"
// means enqueued, and a rank waits only while its stream stands in the collective.
inline constexpr char kStreamTransport[] = "streams of devices";
inline constexpr size_t kWayHeaderBytes = 6;
inline constexpr size_t kWayTextBytesMax = 240;
inline constexpr size_t kWaysBytesMax = 65536;

enum class RecordState : uint32_t {
  kOpen = 1,    // in use, or its process died
  kFailed = 2,  // `code` and `why` tell
  kAborted = 3,
};

// The kind of an operation. The numbers are written to files.
enum class RecordKind : uint32_t {
  kNothing = 0,
  kCollective = 1,
  kQueued = 2,  // a collective that is called and cannot begin yet
  kSend = 3,
  kRecv = 4,
  // 5 was an all_to_all_v, which is a collective now. One-sided. A wait for signals, which belongs
  // to the NCCL API, counts signals, and its peer is the first one awaited.
  kPutSignal = 6,
  kSignal = 7,
  kWaitSignal = 8,
  kPut = 9,
  kGet = 10,
  kFetchAdd = 11,
  kCompareSwap = 12,
  kFlush = 13,
  kRetire = 14,
  kWaitWord = 15,  // weir_wait_signal: what is counted is the value, and its peer is this rank
  // Messages with tags: matched by tag, so not k-th with k-th. The peer of a receive from any rank
  // is this rank.
  kTagSend = 16,
  kTagRecv = 17,
  kCapture = 18,  // an operation on devices became part of a graph; its peer is this rank
};
inline constexpr uint32_t kRecordKindMax = 18;

// Kinds with a single peer, kept among the messages.
constexpr bool is_message(RecordKind kind) {
  return kind >= RecordKind::kSend && static_cast<uint32_t>(kind) <= kRecordKindMax;
}
constexpr bool is_one_sided(RecordKind kind) {
  return kind >= RecordKind::kPutSignal && kind <= RecordKind::kWaitWord;
}

struct ClockSample {
  std::atomic<uint64_t> ticks;
  std::atomic<uint64_t> monotonic_ns;
  std::atomic<uint64_t> wall_ns;
};

// One collective. `flag` is sequence << 32 | fingerprint, 0 for none, and is written last.
struct alignas(32) OperationRecord {
  std::atomic<uint64_t> flag;
  std::atomic<uint64_t> begin_ticks;  // 0: it was done at once, so no clock was read
  std::atomic<uint64_t> what;         // see engine/call.h
  std::atomic<uint64_t> count;
};

struct alignas(64) MessageRecord {
  std::atomic<uint64_t> number;  // from 1; 0 while it is written
  std::atomic<uint32_t> kind;
  std::atomic<uint32_t> peer;
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> begin_ticks;
  std::atomic<uint64_t> end_ticks;  // 0 until it is done
};

// The ranks that this rank waits for. Written once a wait has become long, and again while it
// lasts.
struct alignas(64) WaitBlock {
  std::atomic<uint64_t> version;   // odd while it is written
  std::atomic<uint64_t> sequence;  // of the collective, or number of the message
  std::atomic<uint64_t> what;
  std::atomic<uint64_t> count;  // elements, or bytes of a message
  std::atomic<uint64_t> since_ns;
  std::atomic<uint64_t> slice, slice_count;
  std::atomic<uint32_t> kind;  // RecordKind
  std::atomic<uint32_t> step, step_count;
  std::atomic<uint32_t> awaited_count;  // may be more than are listed
  std::atomic<uint32_t> awaited[kAwaitedRanksMax];
  std::atomic<uint64_t> algorithm[4];  // text
  std::atomic<uint64_t> protocol[2];   // text
};

struct RecordFile {
  char magic[8];
  uint32_t version;
  uint32_t byte_order;
  uint64_t file_bytes;
  uint64_t comm_id;
  uint64_t instance;
  uint32_t rank;
  uint32_t rank_count;
  uint32_t process;
  uint32_t user;
  uint64_t process_start;
  uint64_t pid_namespace;
  uint32_t ways_bytes;
  uint32_t reserved;
  char boot_id[48];
  char host[64];
  char name[128];
  char program[64];
  char transport[32];
  ClockSample made;
  ClockSample latest;
  alignas(512) std::atomic<uint32_t> state;
  std::atomic<uint32_t> code;
  char why[504];
  alignas(64) std::atomic<uint64_t> completed;
  alignas(64) std::atomic<uint64_t> looked_ns;
  uint64_t start_ns[5];
  WaitBlock wait;
  alignas(4096) OperationRecord operations[kOperationRecords];
  std::atomic<uint64_t> end_ticks[kOperationRecords];
  MessageRecord messages[kMessageRecords];
};

static_assert(offsetof(RecordFile, comm_id) == 24 && offsetof(RecordFile, process) == 48);
static_assert(offsetof(RecordFile, boot_id) == 80 && offsetof(RecordFile, transport) == 384);
static_assert(offsetof(RecordFile, made) == 416 && offsetof(RecordFile, state) == 512);
static_assert(offsetof(RecordFile, completed) == 1024 && offsetof(RecordFile, wait) == 1152);
static_assert(offsetof(RecordFile, start_ns) == 1096);
static_assert(offsetof(RecordFile, operations) == 4096);
static_assert(offsetof(RecordFile, end_ticks) == 12288);
static_assert(offsetof(RecordFile, messages) == 14336 && sizeof(RecordFile) == 20480);
static_assert(offsetof(RecordFile, ways_bytes) == 72);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace weir::comm
