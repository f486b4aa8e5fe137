// SPDX-License-Identifier: Apache-2.0
// Scrubber: a thread that reads the chunks of the committed state while nothing else reads them, so
// that damage is found while the epoch before is still there. It reads one chunk at a time, at most
// so many bytes a second, through a Disk of its own, and nothing at all while it is paused. A pass
// begins where the one before was interrupted; after a whole pass it rests.
//
// It only reads. It logs its findings and keeps them for report(); the store's owner decides.
// Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "offload/disk/disk.h"
#include "offload/store/chunk_damage.h"
#include "offload/store/open_file.h"

namespace weir::offload {

struct ScrubOptions {
  uint64_t bytes_per_s = 0;           // more than 0
  uint64_t rest_ms = 60 * 60 * 1000;  // between two passes over the same state
  uint64_t timeout_ms = 60'000;       // of one read
};

struct ScrubReport {
  uint64_t read_bytes = 0;
  uint64_t pass_count = 0;           // over the state that is watched now
  ChunkDamage damage;                // of that state
  std::vector<uint64_t> bad_chunks;  // all of them
  Status stopped;                    // why it no longer reads
};

class Scrubber {
 public:
  // Watches nothing yet. `buffer` has room for a chunk of any state watched later and must outlive
  // the scrubber.
  static Result<std::unique_ptr<Scrubber>> start(std::unique_ptr<Disk> disk,
                                                 std::span<unsigned char> buffer,
                                                 const ScrubOptions& options);
  // Ends after the read under way.
  ~Scrubber();
  Scrubber(const Scrubber&) = delete;
  Scrubber& operator=(const Scrubber&) = delete;

  // Another state is the committed one; findings about the one before are forgotten. A target
  // without chunks: nothing to read.
  void watch(ScrubTarget target);
  // No read begins until resume has been called as often. Does not wait for a read under way, whose
  // result counts as long as the same state is watched.
  void pause();
  void resume();

  ScrubReport report() const;
  // The chunks found whole since this state has been watched, each returned once.
  std::vector<uint64_t> take_whole();

 private:
  Scrubber(std::unique_ptr<Disk> disk, std::span<unsigned char> buffer,
           const ScrubOptions& options);
  void run();
  bool may_read() const;
  // Reads and judges one chunk. An error ends the scrubbing.
  Status read_chunk(const ScrubTarget& target, uint64_t chunk, Status* found);
  void found_bad(uint64_t chunk, const Status& why);

  const std::unique_ptr<Disk> disk_;
  const std::span<unsigned char> buffer_;
  const ScrubOptions options_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  ScrubTarget target_;
  uint64_t generation_ = 0;  // of target_
  uint64_t next_ = 0;        // chunk
  uint64_t left_ = 0;        // chunks of this pass
  uint64_t rest_until_ns_ = 0;
  uint32_t pause_count_ = 0;
  bool stop_ = false;
  std::vector<uint64_t> whole_;
  ScrubReport report_;

  // Used by the thread only.
  std::vector<OpenFile> files_;
  uint64_t files_generation_ = 0;

  std::thread thread_;
};

}  // namespace weir::offload
