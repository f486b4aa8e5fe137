// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/job_secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/base/printable.h"
#include "net/auth.h"
#include "output/owned_descriptor.h"

namespace weir::comm {
namespace {

constexpr uint64_t kReadNsMax = 10'000'000'000;

// Room for the longest secret, its line end, and one byte that shows that it is too long.
struct Buffer {
  std::array<char, kJobSecretBytesMax + 3> bytes{};
  size_t size = 0;
  ~Buffer() { net::wipe(bytes.data(), bytes.size()); }
  bool full() const { return size == bytes.size(); }
};

Result<Secret> make_secret(const Buffer& buffer, const std::string& source) {
  std::string_view text(buffer.bytes.data(), buffer.size);
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.ends_with('\r')) text.remove_suffix(1);
  if (text.size() < kJobSecretBytesMin || text.size() > kJobSecretBytesMax) {
    const std::string size = text.size() > kJobSecretBytesMax
                                 ? fmt::format("more than {} bytes", kJobSecretBytesMax)
                                 : fmt::format("{} bytes", text.size());
    return invalid_argument(fmt::format(
        "{}: the job's secret has {}, not {} to {}; make one with: openssl rand -hex 32", source,
        size, kJobSecretBytesMin, kJobSecretBytesMax));
  }
  constexpr std::string_view kLabel = "weir job secret";
  Secret secret;
  secret.bytes = net::hmac_sha256(kLabel.data(), kLabel.size(), text.data(), text.size());
  return secret;
}

Status read_regular(int descriptor, const std::string& source, Buffer* buffer) {
  while (!buffer->full()) {
    const ssize_t got =
        pread(descriptor, buffer->bytes.data() + buffer->size, buffer->bytes.size() - buffer->size,
              static_cast<off_t>(buffer->size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error(source + ": read");
    if (got == 0) break;
    buffer->size += static_cast<size_t>(got);
  }
  return Status();
}

// A pipe or socket: its writer may be slow, or forget to close it.
Status read_stream(int descriptor, const std::string& source, uint64_t until_ns, Buffer* buffer) {
  while (!buffer->full()) {
    const uint64_t now = now_ns();
    if (now >= until_ns) {
      return Status(Code::kTimeout,
                    fmt::format("timed out: {}: the secret was not followed by an end of file; "
                                "close the write end of the pipe in every process",
                                source));
    }
    pollfd entry{descriptor, POLLIN, 0};
    const int left_ms =
        static_cast<int>(std::min<uint64_t>((until_ns - now) / 1'000'000 + 1, 1000));
    const int ready = poll(&entry, 1, left_ms);
    if (ready < 0 && errno != EINTR) return system_error(source + ": poll");
    if (ready <= 0) continue;
    const ssize_t got =
        read(descriptor, buffer->bytes.data() + buffer->size, buffer->bytes.size() - buffer->size);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0) return system_error(source + ": read");
    if (got == 0) break;
    buffer->size += static_cast<size_t>(got);
  }
  return Status();
}

struct Store {
  std::optional<JobSecret> secret;
  std::string path;  // of the file that it came from
};

constinit InheritedState<Store> store;

const char* find(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr && *text != '\0' ? text : nullptr;
}

// Takes the value out of the environment, also out of the memory that /proc shows.
Result<Secret> secret_from_environment(const char* name) {
  Buffer buffer;
  char* value = std::getenv(name);
  const size_t bytes = std::strlen(value);
  buffer.size = std::min(bytes, buffer.bytes.size());
  std::memcpy(buffer.bytes.data(), value, buffer.size);
  net::wipe(value, bytes);
  unsetenv(name);
  return make_secret(buffer, name);
}

Result<Secret> secret_from_descriptor_text(std::string_view text, uint64_t deadline_ns) {
  int number = -1;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < 0) {
    // Without the value: the user may have put the secret itself there.
    return invalid_argument("WEIR_SECRET_FD is not the number of a descriptor");
  }
  return secret_from_descriptor(number, deadline_ns);
}

}  // namespace

Result<Secret> secret_from_descriptor(int descriptor, uint64_t deadline_ns) {
  const std::string source = fmt::format("WEIR_SECRET_FD={}", descriptor);
  struct stat status {};
  if (fstat(descriptor, &status) != 0) {
    return invalid_argument(
        fmt::format("{}: this descriptor is not open; the launcher must leave it open across exec, "
                    "and nothing may close it before the first communicator is made",
                    source));
  }
  OwnedDescriptor owned(descriptor);
  if (S_ISDIR(status.st_mode) || isatty(descriptor) != 0) {
    return invalid_argument(fmt::format("{} is neither a file nor a pipe nor a socket", source));
  }
  Buffer buffer;
  const uint64_t until_ns = std::min(deadline_ns, now_ns() + kReadNsMax);
  WEIR_RETURN_IF_ERROR(S_ISREG(status.st_mode)
                           ? read_regular(descriptor, source, &buffer)
                           : read_stream(descriptor, source, until_ns, &buffer));
  return make_secret(buffer, source);
}

Result<Secret> secret_from_file(const std::string& path) {
  const std::string source = "WEIR_SECRET_FILE=" + printable(path);
  struct stat link {};
  if (lstat(path.c_str(), &link) != 0) return system_error(source);
  const uid_t user = geteuid();
  if (S_ISLNK(link.st_mode) && link.st_uid != user) {
    return Status(
        Code::kRefused,
        fmt::format("{} is a symbolic link that belongs to user {}, not {}: name the file "
                    "itself",
                    source, link.st_uid, user));
  }
  // Nonblocking, so that a FIFO put there does not hold us up.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return system_error(source);
  OwnedDescriptor owned(fd);
  struct stat status {};
  if (fstat(fd, &status) != 0) return system_error(source);
  if (!S_ISREG(status.st_mode)) {
    return Status(Code::kRefused, fmt::format("{} is not a regular file", source));
  }
  if (status.st_uid != user) {
    return Status(Code::kRefused,
                  fmt::format("{} belongs to user {}, but this rank runs as user {}", source,
                              status.st_uid, user));
  }
  if ((status.st_mode & 077) != 0) {
    return Status(Code::kRefused,
                  fmt::format("{} has mode {:04o}, so others may have read or written it: make a "
                              "new secret in a file of mode 0600 (umask 077)",
                              source, status.st_mode & 07777));
  }
  Buffer buffer;
  WEIR_RETURN_IF_ERROR(read_regular(fd, source, &buffer));
  return make_secret(buffer, source);
}

Result<std::optional<JobSecret>> job_secret(uint64_t deadline_ns) {
  const auto access = store.use();
  Store& kept = *access;
  const char* descriptor = find("WEIR_SECRET_FD");
  const char* file = find("WEIR_SECRET_FILE");
  const char* text = find("WEIR_SECRET");
  std::optional<Result<Secret>> made;
  std::string source;
  std::string path;
  if (descriptor != nullptr) {
    source = "WEIR_SECRET_FD";
    made = secret_from_descriptor_text(descriptor, deadline_ns);
    unsetenv("WEIR_SECRET_FD");
  } else if (file != nullptr) {
    source = "WEIR_SECRET_FILE";
    path = file;
    if (!kept.secret || kept.path != path) made = secret_from_file(path);
  }
  if (text != nullptr) {
    Result<Secret> taken = secret_from_environment("WEIR_SECRET");
    if (!source.empty()) {
      log_warn(fmt::format("WEIR_SECRET is not used, since {} is set too", source));
    } else {
      source = "WEIR_SECRET";
      made = std::move(taken);
    }
  }
  if (made) {
    if (!made->ok()) return made->status();
    kept.secret = JobSecret{made->take(), source};
    kept.path = path;
  }
  return kept.secret;
}

}  // namespace weir::comm
