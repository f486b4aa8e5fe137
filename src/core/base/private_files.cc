// SPDX-License-Identifier: Apache-2.0
#include "core/base/private_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "output/output_file.h"
#include "output/owned_descriptor.h"

namespace weir {

namespace {

Status check_directory(const std::string& directory) {
  struct stat info;
  if (stat(directory.c_str(), &info) != 0)
    return system_error("cannot look at '" + directory + "'");
  if (!S_ISDIR(info.st_mode)) return invalid_argument("'" + directory + "' is not a directory");
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return Status(Code::kRefused, fmt::format("'{}' belongs to user {}, not to {} or root",
                                              directory, info.st_uid, geteuid()));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Status(Code::kRefused, fmt::format("others may write '{}' (mode {:o}); chmod go-w '{}'",
                                              directory, info.st_mode & 07777, directory));
  }
  return {};
}

Status check_size(const std::string& path, const struct stat& info, size_t bytes_max) {
  if (!S_ISREG(info.st_mode)) return invalid_argument("'" + path + "' is not a regular file");
  if (static_cast<size_t>(info.st_size) > bytes_max) {
    return invalid_argument(
        fmt::format("'{}' has {} bytes; it may have at most {}", path, info.st_size, bytes_max));
  }
  return {};
}

Status check_file(const std::string& path, const struct stat& info, size_t bytes_max) {
  if (!S_ISREG(info.st_mode)) return invalid_argument("'" + path + "' is not a regular file");
  if (info.st_uid != geteuid()) {
    return Status(Code::kRefused,
                  fmt::format("'{}' belongs to user {}, not to {}", path, info.st_uid, geteuid()));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Status(Code::kRefused,
                  fmt::format("others may write '{}' (mode {:o})", path, info.st_mode & 07777));
  }
  return check_size(path, info, bytes_max);
}

Result<std::string> read_all(int descriptor, const std::string& path, size_t bytes_max) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(descriptor, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("cannot read '" + path + "'");
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > bytes_max) {
      return invalid_argument("'" + path + "' grows while it is read");
    }
  }
}

Status make_directories(const std::string& directory) {
  for (size_t end = directory.find('/', 1);; end = directory.find('/', end + 1)) {
    const std::string part = directory.substr(0, end);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      return system_error("cannot make directory '" + part + "'");
    }
    if (end == std::string::npos) return {};
  }
}

}  // namespace

Result<std::optional<PrivateFile>> read_private_file(const std::string& directory,
                                                     const std::string& name, size_t bytes_max) {
  const std::string path = directory + "/" + name;
  const OwnedDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<PrivateFile>();
    return system_error("cannot open '" + path + "'");
  }
  WEIR_RETURN_IF_ERROR(check_directory(directory));
  struct stat info;
  if (fstat(file.get(), &info) != 0) return system_error("cannot look at '" + path + "'");
  WEIR_RETURN_IF_ERROR(check_file(path, info, bytes_max));
  Result<std::string> text = read_all(file.get(), path, bytes_max);
  if (!text.ok()) return text.status();
  return std::optional(PrivateFile{text.take(), info.st_mtime});
}

Result<std::string> read_any_file(const std::string& path, size_t bytes_max) {
  const OwnedDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return system_error("cannot open '" + path + "'");
  struct stat info;
  if (fstat(file.get(), &info) != 0) return system_error("cannot look at '" + path + "'");
  WEIR_RETURN_IF_ERROR(check_size(path, info, bytes_max));
  return read_all(file.get(), path, bytes_max);
}

Status replace_file(const std::string& path, const std::string& text) {
  const std::string wrong = output::write_file(path, text, {.mode = 0600});
  return wrong.empty() ? Status() : Status(Code::kSystem, wrong);
}

Status store_private_file(const std::string& directory, const std::string& name,
                          const std::string& text) {
  if (directory.empty()) return invalid_argument("the cache directory has no name");
  WEIR_RETURN_IF_ERROR(make_directories(directory));
  WEIR_RETURN_IF_ERROR(check_directory(directory));
  const std::string wrong =
      output::write_file(directory + "/" + name, text, {.mode = 0600, .is_own = true});
  return wrong.empty() ? Status() : Status(Code::kSystem, wrong);
}

}  // namespace weir
