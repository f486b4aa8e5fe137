// SPDX-License-Identifier: Apache-2.0
// Disk: the file operations that a store needs, as an interface, so that the same store runs over
// io_uring, over pread and pwrite, and over a simulated disk that crashes where a test wants it.
//
// Transfers are asynchronous: `submit` hands them over, `reap` collects completions in any order. A
// completion without error means that the whole length was transferred; it says nothing about
// durability. `sync` makes the data of the file's earlier *completed* writes durable. Names are
// paths below the directories that the caller chose.
//
// Units are bytes. Offsets, lengths and buffers of transfers are multiples of kDiskAlignment. A
// buffer belongs to the disk from submit until its completion is reaped, so it outlives the Disk
// when transfers may be under way: the destructor ends and reaps them. One thread at a time per
// Disk object, and the same one (the destructor's too) while transfers are under way. No function
// throws, and none blocks beyond the deadline it is given.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace weir::offload {

inline constexpr uint64_t kDiskAlignment = 4096;

using FileId = uint32_t;  // small, reused after close

enum class OpenMode : uint8_t {
  kReadOnly,   // must exist
  kReadWrite,  // must exist
  kCreate,     // must not exist; mode 0600
};

struct Transfer {
  bool write = false;
  FileId file = 0;
  uint64_t offset_bytes = 0;
  unsigned char* buffer = nullptr;
  uint64_t bytes = 0;
  uint64_t tag = 0;  // the caller's, comes back with the completion
};

struct Completion {
  uint64_t tag = 0;
  Status status;  // kSystem with errno's text; kRefused: the file ends before the read did
};

class Disk {
 public:
  virtual ~Disk() = default;

  // ---- Names; synchronous ----
  // `bytes` of a created file are allocated at once, so that a full disk is found here.
  virtual Result<FileId> open(const std::string& path, OpenMode mode, uint64_t bytes = 0) = 0;
  // kInvalidUsage, and the file stays open, while transfers of it are under way. After any other
  // error it is closed.
  virtual Status close(FileId file) = 0;
  virtual Result<uint64_t> size(FileId file) = 0;
  // Removes everything after the first `bytes` bytes of a file opened for writing.
  virtual Status truncate(FileId file, uint64_t bytes) = 0;
  // Whether `path` names the open file; false when it names another one, or none.
  virtual Result<bool> is_name_of(const std::string& path, FileId file) = 0;
  // Locks the file against every other holder, in this process and others, until close (flock).
  // Never waits: kRefused while another holder has the lock. Works on files opened for reading too.
  virtual Status lock(FileId file) = 0;
  virtual Status make_directory(const std::string& path) = 0;  // mode 0700; may exist
  virtual Result<std::vector<std::string>> list(const std::string& directory) = 0;
  // kRefused: a dangling symbolic link.
  virtual Result<bool> exists(const std::string& path) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  virtual Status remove(const std::string& path) = 0;  // a file, or an empty directory
  // Makes a hard link; kUnsupported where the file system has none, or `to` is on another one.
  virtual Status link(const std::string& from, const std::string& to) = 0;
  // A new file `to` with the content of `from` that shares its extents (reflink); kUnsupported
  // where the file system cannot. Durable after sync of the new file and of its directory.
  virtual Status clone(const std::string& from, const std::string& to) = 0;
  // Free bytes of the file system that holds the directory.
  virtual Result<uint64_t> free_bytes(const std::string& directory) = 0;
  // Makes created, renamed, linked and removed names of the directory durable.
  virtual Status sync_directory(const std::string& directory) = 0;

  // ---- Transfers ----
  // How many transfers may be under way; submit takes only as many as are free.
  virtual uint32_t depth() const = 0;
  virtual uint32_t in_flight() const = 0;
  // Takes the first transfers of the list; returns how many. An error concerns the disk as a whole.
  virtual Result<uint32_t> submit(std::span<const Transfer> transfers) = 0;
  // Appends completions; waits until there are `least` of them (at most what is in flight) or
  // `deadline_ns` (base clock) has passed, which is kTimeout.
  virtual Status reap(uint32_t least, uint64_t deadline_ns, std::vector<Completion>* done) = 0;

  // Asks transfers under way to end early; each still completes, as usual or with kAborted, and is
  // reaped as usual. A disk that cannot do this does nothing.
  virtual void cancel() {}

  // Data of completed writes is on stable storage when this returns ok. After an error of sync the
  // data of the file is in an unknown state: the caller must not trust a later success.
  virtual Status sync(FileId file) = 0;

  // In a process forked from the one that made the disk: closes the child's copies of open files
  // and releases no lock. The child calls no other function, not even the destructor.
  virtual void leave_to_parent() {}

  // One line for people: the kind of disk, why this kind, and what it could not use.
  virtual std::string describe() const { return "disk"; }
};

}  // namespace weir::offload
