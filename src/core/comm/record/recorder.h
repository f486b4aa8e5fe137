// SPDX-License-Identifier: Apache-2.0
// Recorder: keeps the latest operations of a rank of a communicator in a mapped file that survives
// the process (record_format.h), for weir-trace and weir-info --live. A warm collective costs it a
// few stores while the peers are waited for; the ranks that a rank waits for are written only once
// a wait is long. A recorder that is off, or could not make its file, does nothing.
//
// Used under the communicator's lock, but for `aborted` and the functions of messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/process_generation.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/comm/record/record_format.h"
#include "core/comm/record/start_times.h"
#include "core/comm/record/ticks.h"

namespace weir::comm {

// Both clocks at once.
struct ClockReading {
  uint64_t ticks = 0;
  uint64_t monotonic_ns = 0;
  uint64_t wall_ns = 0;
  static ClockReading now();
};

// How this rank reaches a peer, as its transport says it.
struct PeerWay {
  Rank peer = 0;
  std::string text;
  size_t room = 0;  // of bytes, for a longer text later
};

struct RecorderIdentity {
  uint64_t comm_id = 0;   // public
  uint64_t instance = 0;  // see record_format.h
  Rank rank = 0;
  Rank rank_count = 1;
  std::string name;
  std::string transport;
  StartTimes start;
  std::vector<PeerWay> ways;  // ascending
  ClockReading earlier;       // some time before now, so that the rate of the ticks is known
};

struct Wait {
  RecordKind kind = RecordKind::kNothing;
  uint64_t sequence = 0;
  uint64_t what = 0;
  uint64_t count = 0;
  uint64_t since_ns = 0;
  uint32_t step = 0, step_count = 0;  // 0 of 0: unknown
  uint64_t slice = 0, slice_count = 0;
  std::string_view algorithm;
  std::string_view protocol;
  std::span<const Rank> awaited;
};

class Recorder {
 public:
  Recorder() = default;
  ~Recorder() { close(); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Makes the file in `folder` ("": the default place), where the settings allow it. A failure is
  // logged as information.
  void open(const RecorderIdentity& identity, const std::string& folder);
  // Removes the file, unless the communicator failed: then it is kept for weir-trace.
  void close();

  bool on() const { return file_ != nullptr; }

  // --- Collectives ---
  // Written before `finished` of the same number, and in the order of the numbers. `flag`:
  // engine::call_flag. `at`: in ticks, 0 when the operation did not have to wait.
  void begun(uint64_t sequence, uint64_t flag, uint64_t what, uint64_t count, uint64_t at) {
    OperationRecord& record = file_->operations[sequence % kOperationRecords];
    record.begin_ticks.store(at, std::memory_order_relaxed);
    record.what.store(what, std::memory_order_relaxed);
    record.count.store(count, std::memory_order_relaxed);
    record.flag.store(flag, std::memory_order_release);
  }
  void finished(uint64_t sequence) { file_->completed.store(sequence, std::memory_order_release); }
  void finished_at(uint64_t sequence, uint64_t at) {
    file_->end_ticks[sequence % kOperationRecords].store(at, std::memory_order_relaxed);
    finished(sequence);
  }

  // The collective was begun and refused: the next one gets its number.
  void withdrawn(uint64_t sequence) {
    file_->operations[sequence % kOperationRecords].flag.store(0, std::memory_order_release);
  }

  // --- Point to point and one-sided. A message has the number that message_begun gives. ---
  uint64_t message_begun(RecordKind kind, Rank peer, uint64_t bytes);
  void message_finished(uint64_t number);
  // Records a message that is done as soon as it is called.
  void message_done(RecordKind kind, Rank peer, uint64_t bytes);
  // Whether the wait that is written is for this message.
  bool waits_of(uint64_t number) const {
    return waited_message_.load(std::memory_order_relaxed) == number;
  }

  // The text that says how a peer is reached has changed; written as far as there is room.
  void way_changed(Rank peer, const std::string& text);

  // The program has called the communicator: a sign of life while no thread waits in Weir.
  void looked_after();

  // --- Long waits ---
  static constexpr uint64_t kLongWaitNs = 20'000'000;
  // A waiting thread has made its checks. True when it is time to write which ranks it waits for.
  bool looked(uint64_t since_ns, uint64_t now_ns);
  void waits(const Wait& wait, uint64_t now_ns);
  // No thread waits any more; cheap where none did.
  void wait_ended() {
    if (waiting_) end_wait();
  }

  void failed(const Status& status);
  void aborted();  // thread-safe

  // Nothing is under way and nothing went wrong, as far as is recorded.
  bool idle() const;
  const std::string& path() const { return path_; }  // "" when off

 private:
  uint64_t write_message(RecordKind kind, Rank peer, uint64_t bytes, bool is_done);
  void end_wait();
  void sample_clocks();

  RecordFile* file_ = nullptr;
  size_t file_bytes_ = 0;
  std::atomic<uint64_t> message_count_{0};
  std::atomic<uint64_t> waited_message_{0};
  uint64_t waits_written_ns_ = 0;
  bool waiting_ = false;
  std::optional<MakingProcess> maker_;  // of the file
  std::string path_;
  std::string folder_;  // may be removed once it is empty; "": the user's own
};

}  // namespace weir::comm
