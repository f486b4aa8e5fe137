// SPDX-License-Identifier: Apache-2.0
// Store: the optimizer state of one rank on one or several drives, in chunks of fixed size, such
// that a crash at any instant leaves the last committed step whole. docs/store_format.md has the
// protocol and its reasons, the other headers of this folder the bytes.
//
// A store has two slots for every chunk. A step reads the committed slot and writes the other one;
// commit() syncs the data, then writes and syncs a small record that makes the other slot the
// committed one. Steps may also end without a commit (durable every k steps): the steps after the
// first then read and write the uncommitted slot in place, and a crash, or abandon_step(), goes
// back to the last commit, up to k steps.
//
// The store builds the transfers of chunks and checks what was read; the caller's pipeline submits
// and reaps them. Every other call transfers, waits and syncs by itself; nothing else may be in
// flight on the Disk then (kInvalidUsage).
//
//   store->begin_step(step);
//   for each chunk, overlapped as the caller likes:
//     disk->submit(store->read_transfer(c, buffer));  reap;  store->check_read(c, buffer);
//     update the payload, the first description().payload_bytes() bytes of the buffer;
//     disk->submit(store->write_transfer(c, buffer)); reap;  store->wrote(c);
//   store->commit(data);
//
// After a failed sync or commit record the store is poisoned: the contents of the drive are
// unknown, and every later call fails with the reason; opening it again finds the last committed
// step. A failed read or write of a chunk poisons nothing: abandon_step() and try again.
//
// Nothing is written over the previous epoch before every chunk of the committed one has been read
// and found whole, or was written by this object: ensure_whole() does the reading and, where chunks
// are bad, goes back to the previous epoch if that is whole. begin_step() refuses otherwise.
//
// With several ranks, each has its own store, and all must commit the same steps. A slot is written
// again only once every rank has committed the newer step: the caller says so with
// peers_committed(). After a crash ranks may differ by one epoch: they agree on the smallest, and
// those ahead call roll_back().
//
// One thread at a time, that of the Disk; check_read and seal may run on several threads at once
// while no other call does. The Disk must outlive the store.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "offload/disk/disk.h"
#include "offload/store/chunk_damage.h"
#include "offload/store/commit_record.h"
#include "offload/store/description.h"
#include "offload/store/file_names.h"
#include "offload/store/header.h"
#include "offload/store/metadata.h"
#include "offload/store/open_file.h"

namespace weir::offload {

struct StoreOptions {
  bool read_only = false;   // no lock, no repair, no step; the only way to open a checkpoint
  bool verify_all = false;  // open: read every chunk now instead of checking each when it is read
  uint64_t timeout_ms = 60'000;      // of the store's own transfers, without any completion
  uint64_t lock_wait_ms = 0;         // for a lock that is held; programs use kLockWaitMs
  std::function<uint64_t()> random;  // the system's when empty
};

class Store {
 public:
  // Makes the directories and all files, preallocated, so that a full disk is found here. Nothing
  // is committed yet: the first step writes the initial state. Replaces the remains of an
  // interrupted creation and a store in which nothing was committed. Refused where a commit can be
  // read or may have been lost, and while the store is open elsewhere; after an error everything
  // this call made is removed again.
  static Result<std::unique_ptr<Store>> create(Disk& disk,
                                               const std::vector<std::string>& directories,
                                               const StoreDescription& description,
                                               StoreOptions options = {});

  // Opens at the last committed step, or at the one before when slot files of the last one are
  // missing or short: fallback() says so. Files of the other slot that are missing or short are
  // recreated: mended() says so. kRefused, with nothing written, where no step is whole. Read only,
  // it neither goes back nor makes files. `expected` is compared with the store's own description
  // (kMismatch, with the first difference) unless it is null. The directories come in the order
  // that the store was created with.
  static Result<std::unique_ptr<Store>> open(Disk& disk,
                                             const std::vector<std::string>& directories,
                                             const StoreDescription* expected,
                                             StoreOptions options = {});

  // Removes the files of a store, also of one whose creation was interrupted. Refused while it is
  // open elsewhere.
  static Status remove(Disk& disk, const std::vector<std::string>& directories,
                       uint64_t lock_wait_ms = 0);

  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const StoreDescription& description() const { return header_.description; }
  const StoreId& id() const { return header_.id; }
  uint64_t chunk_count() const { return chunk_count_; }
  // The committed state, and the one before unless a step of this object has begun to overwrite it
  // (a step of an earlier process may have: roll_back finds out). Null when none.
  const SlotState* committed() const;
  const SlotState* previous() const;
  bool is_poisoned() const { return !poison_.ok(); }
  // What open found damaged or outdated; repaired when it was not read only.
  const std::vector<std::string>& problems() const { return problems_; }
  // The slot files that open has recreated or truncated to their length; a sentence for each.
  const std::vector<std::string>& mended() const { return mended_; }

  // ---- A step ----
  // `step` is greater than that of the state it starts from. kInvalidUsage while another rank may
  // still need the slot that would be written.
  Status begin_step(uint64_t step);
  // Reads the newest state of the chunk: of this step, of an earlier uncommitted one, or the
  // committed one. Allowed outside steps too. The caller sets the tag.
  Result<Transfer> read_transfer(uint64_t chunk, unsigned char* buffer) const;
  // kRefused, naming chunk, file and what was found, when the buffer is not exactly what was
  // written. Call it before write_transfer or wrote of the same chunk.
  Status check_read(uint64_t chunk, const unsigned char* buffer) const;
  // Fills the trailer, the last kChunkTrailerBytes of the buffer.
  Status seal(uint64_t chunk, unsigned char* buffer) const;
  // seal, and the transfer.
  Result<Transfer> write_transfer(uint64_t chunk, unsigned char* buffer) const;
  // The transfer alone, of a buffer sealed before.
  Result<Transfer> sealed_transfer(uint64_t chunk, unsigned char* buffer) const;
  // The write of the chunk has completed without error.
  Status wrote(uint64_t chunk);
  // Ends the step without making it durable.
  Status end_step();
  // Ends the step and makes it durable: every chunk must have been written in this step. `data`: at
  // most kCommitDataBytesMax bytes of the caller's, in SlotState::data when the store is opened.
  Status commit(std::span<const unsigned char> data = {});
  // Goes back to the last committed state, exactly; allowed also between uncommitted steps.
  Status abandon_step();

  // ---- Several ranks ----
  // Every rank has committed `epoch`.
  void peers_committed(uint64_t epoch);
  uint64_t released_epoch() const { return released_epoch_; }
  // Makes the previous epoch the committed one, after reading all its chunks; kRefused, and nothing
  // changes, when it is not whole. Ok when `epoch` is committed already. Not within a step.
  Status roll_back(uint64_t epoch);

  // ---- Checkpoints ----
  // Holds the committed epoch in `directories`, one for each of the store's: hard links of its slot
  // files, which the store will not write again (it preallocates new ones now, so that a full disk
  // is found here), reflinks or copies where there are no links. Refused within and between
  // uncommitted steps, and where there is a store or checkpoint already; the remains of an
  // interrupted checkpoint are replaced. Open the result read only.
  Status checkpoint(const std::vector<std::string>& directories);

  // ---- Damage ----
  // Reads every chunk of the committed state; the error names the first chunks that are bad.
  Status verify(const ScanProgress& progress = {});
  // The chunks of the committed state that this object has neither written nor read and found
  // whole.
  std::vector<uint64_t> unverified_chunks() const;
  // Another reader has found the chunk of the committed state bad.
  void doubt(uint64_t chunk);
  // Another reader has found the chunk of the committed state whole. A chunk that was found bad
  // counts as bad until it is read again.
  void trust(uint64_t chunk);
  // The chunks of the committed state that any reader has found bad.
  std::vector<uint64_t> bad_chunks() const;
  // What this object's reads have found bad in the committed state; bad_count 0: nothing.
  ChunkDamage known_damage() const;
  // Reads bad_chunks again: kRefused, naming those that still are bad.
  Status check_bad_chunks();
  // kRefused when a file of the store was removed or has lost its name.
  Status check_names();
  // Whether the next step would overwrite an epoch that the store can still go back to, while
  // chunks of the committed one have not been read.
  bool guards_previous() const;
  // Reads the unverified chunks. Where some are bad, the previous epoch becomes the committed one,
  // after all of it was read and found whole; a record makes this durable, and fallback() tells
  // what was given up. kRefused with what was found, and nothing is written, if there is no
  // previous epoch, it is damaged too, other ranks have gone on, or the store is open read only.
  // Not within a step, nor between uncommitted ones.
  Status ensure_whole(const ScanProgress& progress = {});
  // What open or ensure_whole has gone back from, most recently.
  const std::optional<Fallback>& fallback() const { return fallback_; }
  // The committed state's files, for another reader (scrubber.h).
  ScrubTarget scrub_target() const;

 private:
  static constexpr uint8_t kWhole = 1;
  static constexpr uint8_t kBad = 2;
  struct Directory {
    std::string path;
    OpenFile lock;
    std::array<OpenFile, kMetaCopies> meta;
    std::array<OpenFile, 2> slot;
  };

  Store(Disk& disk, StoreOptions options);
  static Status create_files(Disk& disk, const std::vector<std::string>& directories,
                             const Header& header, const StoreOptions& options);
  // `locks`: one for each directory, not open where there is nothing to lock.
  static Result<std::unique_ptr<Store>> open_locked(Disk& disk,
                                                    const std::vector<std::string>& directories,
                                                    const StoreDescription* expected,
                                                    StoreOptions options,
                                                    std::vector<OpenFile> locks);
  // A slot file whose length differs from the one it was made with; 0 bytes: it is missing.
  struct HurtFile {
    uint32_t directory = 0;
    uint32_t slot = 0;
    uint64_t bytes = 0;
    std::string why;
  };
  Status open_slots(std::vector<HurtFile>* hurt);
  ChunkDamage lost_with(const std::vector<HurtFile>& hurt);
  Status mend_slots(const std::vector<HurtFile>& hurt);
  Status check_names(uint32_t slot);
  uint64_t slot_file_bytes(uint32_t directory) const;
  Status open_metadata_files();
  Status sync_slots();
  Status check_usable(bool quiet) const;
  Status check_chunk_number(uint64_t chunk) const;
  Status poison(const char* what, const Status& reason);
  Status write_record(const CommitRecord& record);
  Result<ChunkDamage> read_slot(uint32_t slot, std::span<const uint64_t> chunks,
                                const ScanProgress& progress);
  Result<ChunkDamage> find_damage(const ScanProgress& progress);
  Status check_way_back(const ChunkDamage& damage) const;
  Status give_up(const ChunkDamage& damage);
  Status go_back(uint32_t slot);
  void mark_intact(uint64_t chunk) const;
  void mark_bad(uint64_t chunk, const std::string& why) const;
  void mark_all_intact();
  void add_bad(uint64_t chunk, uint32_t slot, const std::string& why, ChunkDamage* damage) const;
  std::vector<uint64_t> chunks_where(bool (*wanted)(uint8_t mark)) const;
  Status note_unreadable_record();
  Status write_metadata(const std::vector<std::string>& directories, const CommitRecord& newest,
                        const CommitRecord* older);
  Status replace_held_slot(uint32_t slot);
  Status copy_slot(uint32_t directory, uint32_t slot, const std::string& to);
  Status hold_in(uint32_t directory, const std::string& to, bool* linked);
  Status preallocate_next(uint32_t directory, uint32_t slot);
  Transfer transfer_of(uint64_t chunk, uint32_t slot, unsigned char* buffer) const;
  uint32_t target_slot() const { return record_.current == 0 ? 1 : 0; }
  uint64_t committed_epoch() const;

  Disk& disk_;
  StoreOptions options_;
  Header header_;
  uint64_t chunk_count_ = 0;
  std::vector<Directory> directories_;
  CommitRecord record_;  // the newest one on the drives; holds what was committed
  std::vector<std::string> problems_;
  std::vector<std::string> mended_;

  // writing_of_[chunk]: the writing that the target slot holds of the chunk since the last commit;
  // 0 when the committed slot counts.
  std::vector<uint64_t> writing_of_;
  // By chunk of the committed slot: kWhole where it was read and found whole, or written by this
  // object; kBad where it was found bad; 0 where it was not read. Chunks may be marked by several
  // threads at once.
  mutable std::vector<uint8_t> intact_;
  mutable std::mutex damage_mutex_;
  mutable ChunkDamage damage_;  // found by this object's reads; guarded by damage_mutex_
  std::optional<Fallback> fallback_;
  uint64_t writing_ = 0;  // of the present step, or of the last one
  uint64_t step_ = 0;
  bool in_step_ = false;
  bool dirty_ = false;  // the target slot was, or may have been, written since the last commit
  bool uncommitted_ = false;  // steps have ended without commit
  uint64_t released_epoch_ = 0;
  Status poison_;
};

}  // namespace weir::offload
