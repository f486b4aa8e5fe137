// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/rendezvous_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/comm/start/bootstrap_parent.h"
#include "net/auth.h"

namespace weir::comm {
namespace {

constexpr std::string_view kMagic = "weirmeet";
constexpr size_t kJobOffset = 8;
constexpr size_t kSecretOffset = 40;
constexpr size_t kPlaceOffset = 72;
constexpr size_t kPidOffset = 149;
constexpr size_t kHostOffset = 157;
constexpr size_t kHostBytes = 64;
static_assert(kPlaceOffset + kPlaceBytesMax == kPidOffset);
static_assert(kHostOffset + kHostBytes == kNoticeBytes);

// How long rank 0 checks whether a rank listens at the place of a notice that it finds: who has
// just written one listens a little later.
constexpr uint64_t kLiveNs = 1'000'000'000;
constexpr timespec kBetweenCalls{0, 50'000'000};

struct File {
  explicit File(int number) : fd(number) {}
  File(const File&) = delete;
  ~File() {
    if (fd >= 0) close(fd);
  }
  int fd;
};

std::string hold(const std::string& path) { return "rendezvous file '" + path + "'"; }

}  // namespace

Secret bootstrap_secret(const Notice& notice) { return notice.secret.derive("meeting"); }

std::string pack(const Notice& notice) {
  std::string bytes(kNoticeBytes, '\0');
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  std::memcpy(bytes.data() + kJobOffset, notice.job.bytes.data(), notice.job.bytes.size());
  std::memcpy(bytes.data() + kSecretOffset, notice.secret.bytes.data(), notice.secret.bytes.size());
  const std::string place = pack(notice.place);
  std::memcpy(bytes.data() + kPlaceOffset, place.data(), place.size());
  for (size_t i = 0; i < 8; ++i) {
    bytes[kPidOffset + i] = static_cast<char>(static_cast<uint64_t>(notice.pid) >> (8 * i));
  }
  std::memcpy(bytes.data() + kHostOffset, notice.host.data(),
              std::min(notice.host.size(), kHostBytes - 1));
  return bytes;
}

bool unpack(std::string_view bytes, Notice* notice) {
  if (bytes.size() != kNoticeBytes || !bytes.starts_with(kMagic)) return false;
  if (!unpack(bytes.substr(kPlaceOffset, kPlaceBytesMax), &notice->place)) return false;
  std::memcpy(notice->job.bytes.data(), bytes.data() + kJobOffset, notice->job.bytes.size());
  std::memcpy(notice->secret.bytes.data(), bytes.data() + kSecretOffset,
              notice->secret.bytes.size());
  uint64_t pid = 0;
  for (size_t i = 0; i < 8; ++i) {
    pid |= uint64_t{static_cast<unsigned char>(bytes[kPidOffset + i])} << (8 * i);
  }
  notice->pid = static_cast<int64_t>(pid);
  notice->host.clear();
  for (size_t i = 0; i < kHostBytes && bytes[kHostOffset + i] != '\0'; ++i) {
    const char c = bytes[kHostOffset + i];
    notice->host.push_back(c > ' ' && c < 0x7f ? c : '?');
  }
  return true;
}

Status read_notice(const std::string& path, Notice* notice, bool* found) {
  *found = false;
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (file.fd < 0) {
    // ESTALE: a network file system that has just seen it replaced.
    if (errno == ENOENT || errno == ESTALE || errno == EINTR) return Status();
    if (errno == ELOOP) {
      return Status(Code::kRefused, hold(path) + " is a symbolic link; name the file itself");
    }
    return system_error(hold(path));
  }
  struct stat status {};
  if (fstat(file.fd, &status) != 0) {
    return errno == ESTALE ? Status() : system_error(hold(path));
  }
  if (!S_ISREG(status.st_mode)) {
    return Status(Code::kRefused, hold(path) + " is not a regular file; choose another path");
  }
  if (status.st_uid != geteuid()) {
    return Status(
        Code::kRefused,
        fmt::format("{} belongs to user {}, not {}: choose a path in a folder of your own",
                    hold(path), status.st_uid, geteuid()));
  }
  if ((status.st_mode & 077) != 0) {
    return Status(
        Code::kRefused,
        fmt::format("{} has mode {:04o}, not 0600: it was not written by rank 0 of a job; "
                    "remove it or choose another path",
                    hold(path), status.st_mode & 07777));
  }
  std::array<char, kNoticeBytes + 1> bytes{};
  size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t got =
        pread(file.fd, bytes.data() + size, bytes.size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == ESTALE ? Status() : system_error(hold(path) + ": read");
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  const std::string_view text(bytes.data(), size);
  const bool is_ours = text.substr(0, kMagic.size()) == kMagic.substr(0, size);
  *found = size == kNoticeBytes && unpack(text, notice);
  net::wipe(bytes.data(), bytes.size());
  if (!*found && (!is_ours || size >= kNoticeBytes)) {
    return Status(Code::kRefused,
                  hold(path) + " was not written by Weir; remove it or choose another path");
  }
  return Status();
}

namespace {

// Whether the rank 0 that has written this notice waits for its ranks. It may change meanwhile.
Result<bool> is_live(const std::string& path, const Notice& notice) {
  const uint64_t until_ns = now_ns() + kLiveNs;
  while (true) {
    if (is_answered(bootstrap_secret(notice), notice.place, until_ns)) return true;
    if (now_ns() >= until_ns) return false;
    nanosleep(&kBetweenCalls, nullptr);
    Notice now;
    bool found = false;
    WEIR_RETURN_IF_ERROR(read_notice(path, &now, &found));
    if (!found || now.secret.bytes != notice.secret.bytes) return false;
  }
}

}  // namespace

Result<PostedNotice> PostedNotice::post(const std::string& path, const Notice& notice) {
  // Tries again if another process's file appears between the removal and the creation.
  for (int attempt = 0; attempt < 3; ++attempt) {
    Notice other;
    bool found = false;
    WEIR_RETURN_IF_ERROR(read_notice(path, &other, &found));
    const Result<bool> live = found ? is_live(path, other) : Result<bool>(false);
    if (!live.ok()) return live.status();
    if (live.value()) {
      return Status(
          Code::kRefused,
          fmt::format("{} is in use: process {} on host '{}' waits there for the ranks of "
                      "its job; give every job a path of its own",
                      hold(path), other.pid, other.host));
    }
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return system_error(hold(path) + ": remove");
    const int fd =
        open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, S_IRUSR | S_IWUSR);
    if (fd < 0) {
      if (errno == EEXIST) continue;
      return system_error(hold(path) + ": make");
    }
    PostedNotice posted(path, fd);
    if (fchmod(fd, S_IRUSR | S_IWUSR) != 0) return system_error(hold(path));
    std::string bytes = pack(notice);
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    const int error_number = written < 0 ? errno : ENOSPC;
    const bool whole = written == static_cast<ssize_t>(bytes.size());
    net::wipe(bytes.data(), bytes.size());
    if (!whole) return system_error(hold(path) + ": write", error_number);
    if (fsync(fd) != 0) return system_error(hold(path) + ": write");
    return posted;
  }
  return Status(Code::kRefused, hold(path) + " is in use by another job: it keeps being replaced");
}

PostedNotice::PostedNotice(std::string path, int fd)
    : path_(std::move(path)), fd_(fd), owner_(getpid()) {}

PostedNotice::PostedNotice(PostedNotice&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), owner_(other.owner_) {}

PostedNotice::~PostedNotice() {
  if (fd_ < 0) return;
  // Of a forked child this is a copy; the file is the parent's.
  if (owner_ == getpid() && is_in_place()) (void)unlink(path_.c_str());
  close(fd_);
}

bool PostedNotice::is_in_place() const {
  struct stat there {};
  struct stat own {};
  return lstat(path_.c_str(), &there) == 0 && fstat(fd_, &own) == 0 && there.st_dev == own.st_dev &&
         there.st_ino == own.st_ino;
}

Status PostedNotice::check() const {
  if (is_in_place()) return Status();
  return Status(Code::kRefused,
                hold(path_) +
                    " was removed or replaced while its ranks were missing, by another "
                    "job or by hand; give every job a path of its own");
}

}  // namespace weir::comm
