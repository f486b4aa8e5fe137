// SPDX-License-Identifier: Apache-2.0
#include "core/cost/cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>

#include "core/base/log.h"

namespace weir::cost {

namespace {

constexpr off_t kFileBytesMax = 1 << 20;

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  ~File() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

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

Status check_file(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return invalid_argument("'" + path + "' is not a regular file");
  if (info.st_uid != geteuid()) {
    return Status(Code::kRefused,
                  fmt::format("'{}' belongs to user {}, not to {}", path, info.st_uid, geteuid()));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return Status(Code::kRefused,
                  fmt::format("others may write '{}' (mode {:o})", path, info.st_mode & 07777));
  }
  if (info.st_size > kFileBytesMax) {
    return invalid_argument(fmt::format("'{}' has {} bytes; a table has at most {}", path,
                                        info.st_size, kFileBytesMax));
  }
  return {};
}

Result<std::string> read_all(int descriptor, const std::string& path) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = read(descriptor, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("cannot read '" + path + "'");
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > static_cast<size_t>(kFileBytesMax)) {
      return invalid_argument("'" + path + "' grows while it is read");
    }
  }
}

Status write_all(int descriptor, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t put = write(descriptor, text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return system_error("cannot write '" + path + "'");
    done += static_cast<size_t>(put);
  }
  return {};
}

struct FileText {
  std::string text;
  time_t written = 0;
};

// No value: the file does not exist.
Result<std::optional<FileText>> read_checked(const std::string& directory,
                                             const std::string& name) {
  const std::string path = directory + "/" + name;
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<FileText>();
    return system_error("cannot open '" + path + "'");
  }
  WEIR_RETURN_IF_ERROR(check_directory(directory));
  struct stat info;
  if (fstat(file.get(), &info) != 0) return system_error("cannot look at '" + path + "'");
  WEIR_RETURN_IF_ERROR(check_file(path, info));
  Result<std::string> text = read_all(file.get(), path);
  if (!text.ok()) return text.status();
  return std::optional(FileText{text.take(), info.st_mtime});
}

// A clock that was set back makes files of the future.
bool is_within(time_t written, int64_t seconds) {
  const int64_t age = int64_t{time(nullptr)} - int64_t{written};
  return age < seconds && age > -seconds;
}

std::string fingerprint_of(const Table& table) {
  const TableBlob blob = to_blob(table);
  uint64_t checksum = 0;
  for (size_t i = 1; i <= sizeof checksum; ++i) {
    checksum = checksum << 8 | std::to_integer<uint64_t>(blob[blob.size() - i]);
  }
  return fmt::format("{:016x}", checksum);
}

// Empty: there are none.
std::string doubts_about(const std::string& directory, const Table& table) {
  const std::string name = doubts_file_name(table.topology_hash);
  auto read = read_checked(directory, name);
  if (!read.ok()) {
    log_info("doubts about cached measurements are ignored: " + read.status().text());
    return "";
  }
  if (!read.value()) return "";
  const std::string& text = read.value()->text;
  const std::string head = fingerprint_of(table) + " ";
  if (!text.starts_with(head)) return "";  // it has been measured since
  // For a line of the log.
  constexpr size_t kReasonMax = 200;
  std::string reason = text.substr(head.size(), kReasonMax);
  std::replace_if(
      reason.begin(), reason.end(), [](char c) { return c < ' ' || c > '~'; }, ' ');
  return reason.substr(0, reason.find_last_not_of(' ') + 1) + " (" + directory + "/" + name + ")";
}

struct Loaded {
  std::optional<Table> table;  // none: the file does not exist, or an older Weir wrote it
  time_t written = 0;
};

Result<Loaded> load(const std::string& directory, uint64_t topology_hash) {
  const std::string name = cache_file_name(topology_hash);
  const std::string path = directory + "/" + name;
  auto read = read_checked(directory, name);
  if (!read.ok()) return read.status();
  if (!read.value()) return Loaded();
  uint32_t version = 0;
  Result<Table> table = table_from_json(read.value()->text, &version);
  if (!table.ok()) return table.status().with_context("'" + path + "'");
  if (version != Table::kVersion) return Loaded();  // it is measured anew
  if (table.value().topology_hash != topology_hash) {
    return invalid_argument(
        fmt::format("'{}' is of topology {:016x}", path, table.value().topology_hash));
  }
  return Loaded{table.take(), read.value()->written};
}

// Replaces the whole file; mode 0600.
Status write_text(const std::string& path, const std::string& text) {
  std::string temporary = path + ".XXXXXX";
  Status status;
  {
    const File file(mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
    if (file.get() < 0) return system_error("cannot make '" + temporary + "'");
    status = write_all(file.get(), text, temporary);
    if (status.ok() && fsync(file.get()) != 0) {
      status = system_error("cannot sync '" + temporary + "'");
    }
  }
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = system_error("cannot rename '" + temporary + "' to '" + path + "'");
  }
  if (!status.ok()) unlink(temporary.c_str());
  return status;
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

Result<std::string> cache_directory(const std::string& setting) {
  if (!setting.empty()) return setting;
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg != nullptr && xdg[0] == '/') return std::string(xdg) + "/weir";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/weir";
  return Status(
      Code::kUnsupported,
      "no place for cached measurements: set WEIR_CACHE_DIR, XDG_CACHE_HOME or HOME to an "
      "absolute path");
}

std::string cache_file_name(uint64_t topology_hash) {
  return fmt::format("tasks-v{}-{:016x}.json", Table::kVersion, topology_hash);
}

std::string doubts_file_name(uint64_t topology_hash) {
  return fmt::format("tasks-v{}-{:016x}.doubts", Table::kVersion, topology_hash);
}

CacheLookup load_cached_table(const std::string& directory, uint64_t topology_hash) {
  CacheLookup lookup;
  Result<Loaded> loaded = load(directory, topology_hash);
  if (!loaded.ok()) {
    lookup.warning = "cached measurements are ignored: " + loaded.status().text();
    log(LogLevel::kWarn, lookup.warning);
    return lookup;
  }
  if (!loaded.value().table) return lookup;
  if (!is_within(loaded.value().written, kTableAgeMaxSeconds)) {
    lookup.outdated = fmt::format("'{}/{}' was not written within the last {} days", directory,
                                  cache_file_name(topology_hash), kTableAgeMaxSeconds / 86400);
  } else {
    lookup.outdated = doubts_about(directory, *loaded.value().table);
  }
  if (lookup.outdated.empty()) {
    lookup.table = loaded.value().table;
  } else {
    log_info("costs are measured anew: " + lookup.outdated);
  }
  return lookup;
}

Result<bool> doubt_cached_table(const std::string& directory, const Table& table,
                                const std::string& reason) {
  auto loaded = load(directory, table.topology_hash);
  if (!loaded.ok()) return loaded.status();
  const std::string fingerprint = fingerprint_of(table);
  if (!loaded.value().table || fingerprint_of(*loaded.value().table) != fingerprint) return false;
  const std::string name = doubts_file_name(table.topology_hash);
  auto earlier = read_checked(directory, name);
  if (!earlier.ok()) return earlier.status();
  if (earlier.value() && is_within(earlier.value()->written, kDoubtEverySeconds)) return false;
  WEIR_RETURN_IF_ERROR(write_text(directory + "/" + name, fingerprint + " " + reason + "\n"));
  return true;
}

Status store_cached_table(const std::string& directory, const Table& table) {
  WEIR_RETURN_IF_ERROR(validate(table));
  if (directory.empty()) return invalid_argument("the cache directory has no name");
  WEIR_RETURN_IF_ERROR(make_directories(directory));
  WEIR_RETURN_IF_ERROR(check_directory(directory));
  return write_table(directory + "/" + cache_file_name(table.topology_hash), table);
}

Result<Table> read_table(const std::string& path) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return system_error("cannot open '" + path + "'");
  struct stat info;
  if (fstat(file.get(), &info) != 0) return system_error("cannot look at '" + path + "'");
  if (!S_ISREG(info.st_mode)) return invalid_argument("'" + path + "' is not a regular file");
  Result<std::string> text = read_all(file.get(), path);
  if (!text.ok()) return text.status();
  Result<Table> table = table_from_json(text.value());
  if (!table.ok()) return table.status().with_context("'" + path + "'");
  return table;
}

Status write_table(const std::string& path, const Table& table) {
  WEIR_RETURN_IF_ERROR(validate(table));
  return write_text(path, to_json(table));
}

}  // namespace weir::cost
