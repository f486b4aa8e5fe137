// SPDX-License-Identifier: Apache-2.0
#include "offload/io/file_disk.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <limits>

#include "core/base/log.h"

namespace weir::offload {
namespace {

// Repeats a system call that a signal interrupted.
template <typename Call>
auto uninterrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

std::string parent_of(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// The remedy for a failed call on a path.
std::string remedy(int error_number, const std::string& path) {
  switch (error_number) {
    case EACCES:
    case EPERM:
      return fmt::format(" (the process runs as user {}, group {}; give it rights to '{}')",
                         geteuid(), getegid(), parent_of(path));
    case EROFS:
      return fmt::format(
          " (the file system of '{}' is mounted read-only: mount it for writing; a store there can "
          "be read with WEIR_OFFLOAD_READ_ONLY)",
          parent_of(path));
    case EISDIR:
    case ELOOP:
      return " (move it elsewhere)";
    case ENOTDIR:
      return fmt::format(
          " (expected '{}' to be a directory: move what is there elsewhere, or name "
          "another directory)",
          parent_of(path));
    default:
      return "";
  }
}

Status path_error(const char* call, const std::string& path) {
  const int number = errno;
  const Status status = system_error(fmt::format("{} '{}'", call, path), number);
  return Status(status.code(), status.text() + remedy(number, path));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// The alignment that the file needs for direct I/O: 0 = no direct I/O, 1 = the kernel does not say.
uint32_t direct_offset_alignment(int fd) {
#ifdef STATX_DIOALIGN
  struct statx info;
  if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0)
    return std::max(info.stx_dio_offset_align, info.stx_dio_mem_align);
#else
  (void)fd;
#endif
  return 1;
}

}  // namespace

FileDisk::~FileDisk() {
  for (File& file : files_) {
    if (file.fd < 0) continue;
    release(&file);
    ::close(file.fd);
  }
}

// The lock belongs to the open file description, which the parent shares.
void FileDisk::leave_to_parent() {
  for (File& file : files_) {
    if (file.fd >= 0) ::close(file.fd);
    file.fd = -1;
  }
}

void FileDisk::release(File* file) {
  if (file->locked) flock(file->fd, LOCK_UN);
  file->locked = false;
}

Result<FileId> FileDisk::open(const std::string& path, OpenMode mode, uint64_t bytes) {
  // O_NONBLOCK: opening a FIFO of that name must not block. O_DIRECT comes later, since allocation
  // may have to write single bytes.
  int flags = O_CLOEXEC | O_NONBLOCK;
  flags |= mode == OpenMode::kReadOnly ? O_RDONLY : O_RDWR;
  if (mode == OpenMode::kCreate) flags |= O_CREAT | O_EXCL;
  Descriptor fd(uninterrupted([&] { return ::open(path.c_str(), flags, 0600); }));
  if (fd.get() < 0) return path_error(mode == OpenMode::kCreate ? "create" : "open", path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return path_error("fstat", path);
  if (!S_ISREG(info.st_mode))
    return Status(Code::kRefused,
                  fmt::format("open '{}': it is not a regular file; move it elsewhere", path));
  const auto undo = [&](Status status) {
    if (mode == OpenMode::kCreate) ::unlink(path.c_str());
    return status;
  };
  if (mode == OpenMode::kCreate && bytes > 0) {
    const Status allocated = allocate(fd.get(), path, bytes);
    if (!allocated.ok()) return undo(allocated);
  }
  if (fcntl(fd.get(), F_SETFL, 0) != 0) return undo(path_error("fcntl", path));

  FileId id = 0;
  while (id < files_.size() && files_[id].fd >= 0) ++id;
  if (id == files_.size()) files_.emplace_back();
  File& file = files_[id];
  file.direct = make_direct(fd.get(), path);
  file.writable = mode != OpenMode::kReadOnly;
  file.transfers = 0;
  file.path = path;
  file.fd = fd.get();
  const Status known = opened(id);
  if (!known.ok()) {
    file = File();
    return undo(known);
  }
  fd.release();
  return id;
}

Status FileDisk::allocate(int fd, const std::string& path, uint64_t bytes) {
  if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return invalid_argument(
        fmt::format("create '{}': {} bytes is not a valid file size", path, bytes));
  // Beyond it the kernel sends SIGXFSZ, which ends the process.
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) {
    return Status(Code::kSystem, fmt::format("'{}' needs {} bytes, and the limit of this process "
                                             "for a file is {}: raise `ulimit -f`",
                                             path, bytes, limit.rlim_cur));
  }
  const auto length = static_cast<off_t>(bytes);
  int number = 0;
  if (uninterrupted([&] { return fallocate(fd, 0, 0, length); }) != 0) {
    number = errno;
    if (number == EOPNOTSUPP || number == ENOSYS) {
      note(fmt::format(
          "'{}' is on a file system without fallocate, every block was written instead", path));
      do {
        number = posix_fallocate(fd, 0, length);
      } while (number == EINTR);
    }
  }
  if (number == 0) return Status();
  Status status = system_error(fmt::format("allocate {} bytes for '{}'", bytes, path), number);
  if (number != ENOSPC && number != EDQUOT && number != EFBIG) return status;
  const Result<uint64_t> available = free_bytes(parent_of(path));
  return Status(
      status.code(),
      fmt::format("{}; {} bytes are free in '{}': free some or choose another directory",
                  status.text(), available.ok() ? available.value() : 0, parent_of(path)));
}

bool FileDisk::make_direct(int fd, const std::string& path) {
  if (!direct_) return false;
  const uint32_t alignment = direct_offset_alignment(fd);
  std::string reason;
  if (alignment == 0) {
    reason = "the file system has no O_DIRECT";
  } else if (alignment > kDiskAlignment) {
    reason = fmt::format("O_DIRECT needs an alignment of {} bytes there", alignment);
  } else if (fcntl(fd, F_SETFL, O_DIRECT) == 0) {
    return true;
  } else {
    reason = system_error("O_DIRECT").text();
  }
  note(fmt::format("files in '{}' go through the page cache: {}", parent_of(path), reason));
  return false;
}

Result<FileDisk::File*> FileDisk::find(FileId id) {
  if (id >= files_.size() || files_[id].fd < 0)
    return invalid_argument(fmt::format("file {} is not open", id));
  return &files_[id];
}

Status FileDisk::close(FileId id) {
  const Result<File*> found = find(id);
  if (!found.ok()) return found.status();
  File& file = *found.value();
  if (file.transfers > 0)
    return Status(Code::kInvalidUsage,
                  fmt::format("close '{}': {} transfers are under way, reap them first", file.path,
                              file.transfers));
  WEIR_RETURN_IF_ERROR(closing(id));
  release(&file);
  const int fd = file.fd;
  const std::string path = file.path;
  file = File();
  // Linux has released the descriptor whatever close answers.
  if (::close(fd) != 0 && errno != EINTR) return path_error("close", path);
  return Status();
}

Result<uint64_t> FileDisk::size(FileId id) {
  const Result<File*> found = find(id);
  if (!found.ok()) return found.status();
  struct stat info;
  if (fstat(found.value()->fd, &info) != 0) return path_error("fstat", found.value()->path);
  return static_cast<uint64_t>(info.st_size);
}

Status FileDisk::truncate(FileId id, uint64_t bytes) {
  const Result<File*> found = find(id);
  if (!found.ok()) return found.status();
  const File& file = *found.value();
  if (uninterrupted([&] { return ftruncate(file.fd, static_cast<off_t>(bytes)); }) == 0) return {};
  return path_error("truncate", file.path);
}

Result<bool> FileDisk::is_name_of(const std::string& path, FileId id) {
  const Result<File*> found = find(id);
  if (!found.ok()) return found.status();
  struct stat opened;
  struct stat named;
  if (fstat(found.value()->fd, &opened) != 0) return path_error("fstat", found.value()->path);
  if (stat(path.c_str(), &named) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return path_error("stat", path);
  }
  return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

Status FileDisk::lock(FileId id) {
  const Result<File*> found = find(id);
  if (!found.ok()) return found.status();
  File& file = *found.value();
  if (uninterrupted([&] { return flock(file.fd, LOCK_EX | LOCK_NB); }) == 0) {
    file.locked = true;
    return Status();
  }
  if (errno == EWOULDBLOCK)
    return Status(Code::kRefused, fmt::format("lock '{}': another process or optimizer has locked "
                                              "it; end the other process, or close the "
                                              "file where this one has it open",
                                              file.path));
  return path_error("lock", file.path);
}

Status FileDisk::make_directory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return Status();
  const int number = errno;
  struct stat info;
  if (number == EEXIST && stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return Status();
  if (number == EEXIST) {
    return Status(Code::kRefused, fmt::format("expected '{}' to be a directory, found something "
                                              "else: move it elsewhere, or name another directory",
                                              path));
  }
  errno = number;
  return path_error("make the directory", path);
}

Result<std::vector<std::string>> FileDisk::list(const std::string& directory) {
  DIR* stream = opendir(directory.c_str());
  if (stream == nullptr) return path_error("list", directory);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(stream);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  const int number = errno;
  closedir(stream);
  errno = number;
  if (number != 0) return path_error("list", directory);
  std::sort(names.begin(), names.end());
  return names;
}

Result<bool> FileDisk::exists(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0) return true;
  if (errno != ENOENT) return path_error("stat", path);
  if (lstat(path.c_str(), &info) != 0) return false;
  return Status(
      Code::kRefused,
      fmt::format("'{}' is a symbolic link to nothing: move it elsewhere, or restore its target",
                  path));
}

Status FileDisk::rename(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return Status();
  return path_error("rename", from).with_context("to '" + to + "'");
}

Status FileDisk::remove(const std::string& path) {
  return ::remove(path.c_str()) == 0 ? Status() : path_error("remove", path);
}

Status FileDisk::link(const std::string& from, const std::string& to) {
  if (::link(from.c_str(), to.c_str()) == 0) return Status();
  const int number = errno;
  Status status = path_error("link", from).with_context("to '" + to + "'");
  // EPERM is also what Linux answers where the file system has no hard links.
  if (number == EOPNOTSUPP || number == EPERM || number == EXDEV || number == EMLINK)
    return Status(Code::kUnsupported, status.text());
  return status;
}

Status FileDisk::clone(const std::string& from, const std::string& to) {
  const Descriptor source(
      uninterrupted([&] { return ::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (source.get() < 0) return path_error("open", from);
  const Descriptor copy(uninterrupted(
      [&] { return ::open(to.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600); }));
  if (copy.get() < 0) return path_error("create", to);
  if (uninterrupted([&] { return ioctl(copy.get(), FICLONE, source.get()); }) == 0) return Status();
  const int number = errno;
  ::unlink(to.c_str());
  Status status =
      system_error(fmt::format("share the extents of '{}' with '{}'", from, to), number);
  for (const int unsupported : {EOPNOTSUPP, ENOTTY, ENOSYS, EXDEV, EINVAL})
    if (number == unsupported) return Status(Code::kUnsupported, status.text());
  return status;
}

Result<uint64_t> FileDisk::free_bytes(const std::string& directory) {
  struct statvfs info;
  if (uninterrupted([&] { return statvfs(directory.c_str(), &info); }) != 0)
    return path_error("statvfs", directory);
  return uint64_t{info.f_bavail} * info.f_frsize;
}

Status FileDisk::sync_directory(const std::string& directory) {
  const Descriptor fd(
      uninterrupted([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (fd.get() < 0) return path_error("open the directory", directory);
  if (uninterrupted([&] { return fsync(fd.get()); }) != 0)
    return path_error("sync the directory", directory);
  return Status();
}

Status FileDisk::sync(FileId id) {
  const Result<File*> found = find(id);
  if (!found.ok()) return found.status();
  if (uninterrupted([&] { return fdatasync(found.value()->fd); }) != 0)
    return path_error("sync the data of", found.value()->path);
  return Status();
}

Status FileDisk::check(std::span<const Transfer> transfers) const {
  constexpr uint64_t kEndMax = std::numeric_limits<int64_t>::max();
  for (const Transfer& t : transfers) {
    if (t.file >= files_.size() || files_[t.file].fd < 0)
      return invalid_argument(fmt::format("transfer {}: file {} is not open", t.tag, t.file));
    const File& file = files_[t.file];
    if (t.write && !file.writable)
      return invalid_argument(fmt::format("write {}: '{}' is open for reading", t.tag, file.path));
    const auto address = reinterpret_cast<uintptr_t>(t.buffer);
    if (t.buffer == nullptr || t.bytes == 0 || address % kDiskAlignment != 0 ||
        t.bytes % kDiskAlignment != 0 || t.offset_bytes % kDiskAlignment != 0 ||
        t.offset_bytes > kEndMax || t.bytes > kEndMax - t.offset_bytes)
      return invalid_argument(
          fmt::format("transfer {} of '{}': buffer {:#x}, offset {} and length {} must be nonzero "
                      "(the offset may be 0) multiples of {} within a file",
                      t.tag, file.path, address, t.offset_bytes, t.bytes, kDiskAlignment));
  }
  return Status();
}

Status FileDisk::status_of(const Transfer& transfer, TransferOutcome outcome,
                           const TransferProgress& progress) const {
  if (outcome == TransferOutcome::kDone) return Status();
  const std::string& path = files_[transfer.file].path;
  const std::string what =
      fmt::format("{} {} bytes at {} of '{}'", transfer.write ? "write" : "read", transfer.bytes,
                  transfer.offset_bytes, path);
  if (outcome == TransferOutcome::kFileEnds)
    return Status(Code::kRefused,
                  what + ": the file ends before that, it was truncated or is another file");
  if (progress.error_number == ECANCELED) return Status(Code::kAborted, what + ": cancelled");
  return system_error(fmt::format("{} (after {} bytes)", what, progress.done_bytes),
                      progress.error_number);
}

void FileDisk::note(const std::string& text) {
  if (std::find(notes_.begin(), notes_.end(), text) != notes_.end()) return;
  constexpr size_t kNotesMax = 16;
  if (notes_.size() < kNotesMax) notes_.push_back(text);
  log_info(text);
}

std::string FileDisk::notes() const {
  std::string text;
  for (const std::string& one : notes_) text += "; " + one;
  return text;
}

}  // namespace weir::offload
