// SPDX-License-Identifier: Apache-2.0
// Reads the recorder's files, of processes that live, have died, or ran elsewhere. For any bytes
// the result is a Record or a Status; texts are printable and indices are in range. Values;
// functions are thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/record/record_format.h"
#include "core/comm/record/start_times.h"

namespace weir::comm {

inline constexpr size_t kRecordFileBytesMax = 1 << 20;
inline constexpr size_t kRecordFilesMax = 65536;  // that are read at once

// What is known about the process that wrote a record.
enum class Life : uint8_t {
  kUnknown,  // it ran on another machine, or in another PID namespace
  kAlive,
  kStopped,  // by a signal or a debugger
  kDead,
};
const char* name_of(Life life);

// Times are nanoseconds of the wall clock since 1970; 0: unknown.
struct RecordedOperation {
  uint64_t sequence = 0;
  uint32_t fingerprint = 0;
  uint64_t what = 0;  // see engine/call.h
  uint64_t count = 0;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};

struct RecordedMessage {
  uint64_t number = 0;
  RecordKind kind = RecordKind::kNothing;
  Rank peer = 0;
  uint64_t bytes = 0;
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
  bool done = false;
};

struct RecordedWait {
  RecordKind kind = RecordKind::kNothing;  // kNothing: it does not wait, or not for long
  uint64_t sequence = 0;
  uint64_t what = 0;
  uint64_t count = 0;
  uint64_t since_ns = 0;
  uint32_t step = 0, step_count = 0;
  uint64_t slice = 0, slice_count = 0;
  std::string algorithm;
  std::string protocol;
  std::vector<Rank> awaited;  // the first of them
  uint32_t awaited_count = 0;
};

struct RecordedWay {
  Rank peer = 0;
  std::string text;
};

struct Record {
  std::string path;
  uint64_t comm_id = 0;
  uint64_t instance = 0;
  Rank rank = 0;
  Rank rank_count = 1;
  uint32_t process = 0;
  uint64_t process_start = 0;
  uint64_t pid_namespace = 0;
  std::string boot_id, host, name, program, transport;
  RecordState state = RecordState::kOpen;
  uint32_t code = 0;
  std::string why;
  uint64_t made_ns = 0;
  StartTimes start;
  uint64_t looked_ns = 0;                     // when a waiting thread last checked
  uint64_t latest_ns = 0;                     // the latest time in the file
  uint64_t completed = 0;                     // sequence number of the latest completed collective
  std::vector<RecordedOperation> operations;  // ascending
  std::vector<RecordedMessage> messages;      // ascending
  RecordedWait wait;
  std::vector<RecordedWay> ways;  // how it reaches its peers, ascending; as of the start

  Life life = Life::kUnknown;  // set by read_record

  uint64_t begun() const {
    return operations.empty() ? completed : std::max(completed, operations.back().sequence);
  }
  // nullptr: never begun, or too long ago.
  const RecordedOperation* find(uint64_t sequence) const;
};

// kRefused with the reason when the bytes are no record. `path` is for texts.
Result<Record> parse_record(const void* data, size_t bytes, const std::string& path);
// Reads and parses; asks whether the process lives, where that can be known.
Result<Record> read_record(const std::string& path);
// The paths of a folder's records; or `path` itself when it is a file.
Result<std::vector<std::string>> list_records(const std::string& path);

}  // namespace weir::comm
