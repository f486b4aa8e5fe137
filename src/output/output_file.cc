// SPDX-License-Identifier: Apache-2.0
#include "output/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "output/owned_descriptor.h"

namespace weir::output {
namespace {

constexpr int kLinksMax = 40;  // as the kernel
constexpr int kNamesMax = 100;

// A reader that closes its end is an error here and must not end the process.
class PipeSignalHeld {
 public:
  PipeSignalHeld() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~PipeSignalHeld() {
    const timespec now{0, 0};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  PipeSignalHeld(const PipeSignalHeld&) = delete;
  PipeSignalHeld& operator=(const PipeSignalHeld&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

std::string cannot(const char* what, const std::string& path, int error) {
  const char* remedy = error == ENOENT   ? "; check that the folder exists"
                       : error == EACCES ? "; check that the folder and the file are writable"
                       : error == ENOSPC ? "; make room, or name a file on another drive"
                                         : "";
  return fmt::format("cannot {} {}: {}{}", what, path, std::strerror(error), remedy);
}

std::string write_all(int file, std::string_view text, const std::string& path) {
  const PipeSignalHeld held;
  while (!text.empty()) {
    const ssize_t put = write(file, text.data(), text.size());
    if (put >= 0) {
      text.remove_prefix(static_cast<size_t>(put));
    } else if (errno == EAGAIN) {
      pollfd ready{file, POLLOUT, 0};
      if (poll(&ready, 1, kSilentMsMax) == 0) {
        return fmt::format("cannot write {}: nobody has read from it for {} s", path,
                           kSilentMsMax / 1000);
      }
    } else if (errno != EINTR) {
      return cannot("write", path, errno);
    }
  }
  return {};
}

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// The file that links lead to, which need not exist. "": the links lead in a circle.
std::string target_of(std::string path) {
  for (int i = 0; i < kLinksMax; ++i) {
    char link[4096];
    const ssize_t length = readlink(path.c_str(), link, sizeof link);
    if (length < 0) return path;
    const std::string to(link, static_cast<size_t>(length));
    const size_t slash = path.rfind('/');
    const bool is_relative = !to.starts_with('/') && slash != std::string::npos;
    path.resize(is_relative ? slash + 1 : 0);
    path += to;
  }
  return {};
}

std::string write_to(const std::string& path, std::string_view text, const struct stat& info) {
  const char* kind = S_ISDIR(info.st_mode)    ? "a directory"
                     : S_ISBLK(info.st_mode)  ? "a block device"
                     : S_ISSOCK(info.st_mode) ? "a socket"
                                              : nullptr;
  if (kind != nullptr) return fmt::format("cannot write {}: it is {}; name a file", path, kind);
  const int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const OwnedDescriptor file(open(path.c_str(), flags | (S_ISREG(info.st_mode) ? O_TRUNC : 0)));
  if (file.get() >= 0) return write_all(file.get(), text, path);
  if (errno == ENXIO && S_ISFIFO(info.st_mode)) {
    return fmt::format("cannot write {}: no program reads this FIFO; start its reader first", path);
  }
  return cannot("write", path, errno);
}

std::string replace(const std::string& path, std::string_view text, const FileOptions& options) {
  static std::atomic<unsigned> next = 0;
  std::string fresh;
  int number = -1;
  for (int i = 0; number < 0 && i < kNamesMax; ++i) {
    fresh = fmt::format("{}.{}-{}.new", path, getpid(), next++);
    number =
        open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, options.mode);
    if (number < 0 && errno != EEXIST) break;
  }
  if (number < 0) return cannot("write", path, errno);
  const OwnedDescriptor file(number);
  std::string wrong = write_all(file.get(), text, path);
  if (wrong.empty() && options.sync && fsync(file.get()) != 0) wrong = cannot("sync", path, errno);
  if (wrong.empty() && rename(fresh.c_str(), path.c_str()) != 0) {
    wrong = cannot("replace", path, errno);
  }
  if (!wrong.empty()) unlink(fresh.c_str());
  return wrong;
}

}  // namespace

std::string write_file(const std::string& path, std::string_view text, const FileOptions& options) {
  if (options.is_own) return replace(path, text, options);
  struct stat info;
  const bool exists = stat(path.c_str(), &info) == 0;
  if (!exists && errno != ENOENT) return cannot("write", path, errno);
  if (exists) {
    for (std::FILE* stream : {stdout, stderr}) {
      struct stat own;
      if (fstat(fileno(stream), &own) != 0 || !is_same(info, own)) continue;
      std::fflush(stream);
      return write_all(fileno(stream), text, path);
    }
  }
  const std::string target = target_of(path);
  if (target.empty()) return cannot("write", path, ELOOP);
  if (!exists) return replace(target, text, options);
  // Links in /proc lead to open files, whose names may be gone.
  struct stat named;
  const bool replaceable =
      S_ISREG(info.st_mode) && lstat(target.c_str(), &named) == 0 && is_same(info, named);
  return replaceable ? replace(target, text, options) : write_to(path, text, info);
}

}  // namespace weir::output
