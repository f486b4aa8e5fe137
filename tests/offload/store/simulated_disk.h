// SPDX-License-Identifier: Apache-2.0
// SimulatedDisk: the Disk of tests. A SimulatedDrive is what outlives a process: files with their
// durable and their cached content; each SimulatedDisk is one process that uses it. Tests crash the
// drive before its n-th I/O event, choose what becomes of unsynced data, fail the k-th request, or
// send the k-th write astray. Everything is drawn from one seed. Not thread-safe.
//
// Taken as real: sync makes the completed writes of one file durable; a failed sync drops them for
// good although reads still see them; names become durable by sync_directory, in their order;
// directories at once; a file is created with its size.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "offload/disk/disk.h"

namespace weir::offload {

enum class CrashMode {
  kDropped,      // no unsynced write survives
  kTorn,         // of every unsynced write, any of its 512-byte sectors
  kReordered,    // any unsynced writes, whole, in any order
  kMisdirected,  // as reordered, and one of them lands somewhere else
};

enum class FaultKind { kEio, kNoSpace, kShort };

class SimulatedDrive {
 public:
  explicit SimulatedDrive(uint64_t seed) : random_(seed) {}

  // ---- What is to go wrong; counts from 0 ----
  std::optional<uint64_t> crash_at_event;      // writes, syncs and changes of names
  std::optional<uint64_t> fail_at_request;     // every call that reaches the drive
  std::optional<uint64_t> misdirect_at_write;  // silently
  FaultKind fault = FaultKind::kEio;
  bool links = true;
  bool clones = false;
  uint64_t capacity_bytes = uint64_t{1} << 40;
  std::set<std::string> forbidden;  // paths whose opening is refused with EACCES

  uint64_t events() const { return events_; }
  uint64_t requests() const { return requests_; }
  uint64_t writes() const { return writes_; }
  bool crashed() const { return crashed_; }
  bool fault_happened() const { return fault_happened_; }

  // After a crash or at any time: power is lost and comes back. Processes of before are dead.
  void power_cycle(CrashMode mode);
  // All processes die; what they wrote stays, cached.
  void kill_processes();
  // The cache is written back, as if nothing more went wrong.
  void settle();

  // Direct access, as an editor of the medium: content and names become durable.
  std::vector<unsigned char>* content(const std::string& path);  // null: no such file
  void commit_edit(const std::string& path);
  void erase(const std::string& path);
  void erase_directory(const std::string& path);
  std::vector<std::string> paths() const;
  uint64_t link_count(const std::string& path) const;
  std::unique_ptr<SimulatedDrive> copy(uint64_t seed) const;

 private:
  friend class SimulatedDisk;
  struct Write {
    uint64_t id = 0;
    uint64_t offset = 0;
    std::vector<unsigned char> data;
    bool completed = false;
  };
  struct Inode {
    std::vector<unsigned char> durable;
    std::vector<unsigned char> cached;
    std::vector<Write> unsynced;
    uint64_t holder = 0;  // of the lock
  };
  struct NameChange {
    std::map<std::string, uint64_t> set;
    std::vector<std::string> erased;
  };

  Status event();             // before each change
  Status request(bool* bad);  // *bad: this one fails with `fault`
  Status fault_status(const std::string& what) const;
  void apply_names(const NameChange& change, std::map<std::string, uint64_t>* names) const;
  void change_names(NameChange change);
  uint64_t used_bytes() const;
  static void store(std::vector<unsigned char>* content, uint64_t offset,
                    const std::vector<unsigned char>& data);
  void store_sectors(std::vector<unsigned char>* content, const Write& write);
  void misdirect(const Write& write);
  uint64_t draw(uint64_t below) { return random_() % below; }

  std::mt19937_64 random_;
  std::map<uint64_t, Inode> inodes_;
  std::map<std::string, uint64_t> names_;  // as processes see them
  std::map<std::string, uint64_t> durable_names_;
  std::vector<NameChange> name_log_;
  std::set<std::string> directories_;
  uint64_t next_inode_ = 1;
  uint64_t next_write_ = 1;
  uint64_t next_process_ = 1;
  uint64_t generation_ = 0;  // of power and processes
  uint64_t events_ = 0;
  uint64_t requests_ = 0;
  uint64_t writes_ = 0;
  bool crashed_ = false;
  bool fault_happened_ = false;
};

class SimulatedDisk : public Disk {
 public:
  explicit SimulatedDisk(SimulatedDrive& drive, uint32_t depth = 4);
  ~SimulatedDisk() override;

  uint32_t open_files() const;

  Result<FileId> open(const std::string& path, OpenMode mode, uint64_t bytes) override;
  Status close(FileId file) override;
  Result<uint64_t> size(FileId file) override;
  Status truncate(FileId file, uint64_t bytes) override;
  Result<bool> is_name_of(const std::string& path, FileId file) override;
  Status lock(FileId file) override;
  Status make_directory(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& directory) override;
  Result<bool> exists(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Status link(const std::string& from, const std::string& to) override;
  Status clone(const std::string& from, const std::string& to) override;
  Result<uint64_t> free_bytes(const std::string& directory) override;
  Status sync_directory(const std::string& directory) override;
  uint32_t depth() const override { return depth_; }
  uint32_t in_flight() const override { return static_cast<uint32_t>(queue_.size()); }
  Result<uint32_t> submit(std::span<const Transfer> transfers) override;
  Status reap(uint32_t least, uint64_t deadline_ns, std::vector<Completion>* done) override;
  Status sync(FileId file) override;

 private:
  struct Open {
    uint64_t inode = 0;
    bool writable = false;
    bool used = false;
  };
  struct Queued {
    Transfer transfer;
    uint64_t inode = 0;
    uint64_t write = 0;
    bool bad = false;
  };

  Status alive() const;
  Status ask(const std::string& what);  // alive, counted, and failed when its turn has come
  Status complete(const Queued& queued);

  SimulatedDrive& drive_;
  uint32_t depth_;
  uint64_t process_;
  uint64_t generation_;
  std::vector<Open> files_;
  std::vector<Queued> queue_;
};

}  // namespace weir::offload
