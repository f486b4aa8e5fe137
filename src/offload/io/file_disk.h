// SPDX-License-Identifier: Apache-2.0
// FileDisk: the part of a Disk that does not depend on how bytes are moved: files and their names,
// sizes, durability, the check of transfers. Derived classes add submit and reap. Same thread rule
// as Disk.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "offload/disk/disk.h"
#include "offload/io/transfer_progress.h"

namespace weir::offload {

class FileDisk : public Disk {
 public:
  ~FileDisk() override;
  FileDisk(const FileDisk&) = delete;
  FileDisk& operator=(const FileDisk&) = delete;

  Result<FileId> open(const std::string& path, OpenMode mode, uint64_t bytes = 0) override;
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
  Status sync(FileId file) override;
  void leave_to_parent() override;

 protected:
  struct File {
    int fd = -1;  // -1: the id is free
    bool direct = false;
    bool writable = false;
    bool locked = false;
    uint32_t transfers = 0;  // under way
    std::string path;
  };

  explicit FileDisk(bool direct) : direct_(direct) {}

  const std::vector<File>& files() const { return files_; }
  File& file(FileId id) { return files_[id]; }
  // kInvalidArgument unless every transfer of the list is well formed and of an open file.
  Status check(std::span<const Transfer> transfers) const;
  // The completion's status.
  Status status_of(const Transfer& transfer, TransferOutcome outcome,
                   const TransferProgress& progress) const;
  // Remembers a sentence for describe(), once.
  void note(const std::string& text);
  std::string notes() const;  // "; a; b", or ""

 private:
  // For derived classes that register files with the kernel. An error of `opened` fails the open,
  // one of `closing` leaves the file open.
  virtual Status opened(FileId) { return Status(); }
  virtual Status closing(FileId) { return Status(); }

  Result<File*> find(FileId id);
  // Releases the lock even where the kernel still holds a reference to the file.
  static void release(File* file);
  Status allocate(int fd, const std::string& path, uint64_t bytes);
  bool make_direct(int fd, const std::string& path);

  const bool direct_;
  std::vector<File> files_;  // by FileId
  std::vector<std::string> notes_;
};

}  // namespace weir::offload
