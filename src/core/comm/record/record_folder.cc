// SPDX-License-Identifier: Apache-2.0
#include "core/comm/record/record_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <utility>

#include "core/comm/record/record_format.h"
#include "net/interfaces.h"

namespace weir::comm {

namespace {

constexpr size_t kEntriesMax = 1 << 16;  // of a folder that are looked at
constexpr size_t kStatBytesMax = 4096;

// Text of /proc/<process>/stat behind the name of the program, which may hold anything.
std::string stat_behind_name(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  // A process that ends meanwhile is an error of the read, which an iterator would throw.
  std::string text(kStatBytesMax, 0);
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  const size_t end = text.rfind(") ");
  return end == std::string::npos ? std::string() : text.substr(end + 2);
}

template <typename Number>
bool take_number(std::string_view* text, int base, Number* number, char end) {
  const char* last = text->data() + text->size();
  const auto [rest, error] = std::from_chars(text->data(), last, *number, base);
  if (error != std::errc() || rest == last || *rest != end) return false;
  text->remove_prefix(static_cast<size_t>(rest - text->data()) + 1);
  return true;
}

// In seconds since 1970. Writing to mapped memory does not change the time of a file, so the
// owner's latest clock sample counts as well.
int64_t last_sign_of_life(int folder, const char* name) {
  const int file = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return 0;
  struct stat status {};
  int64_t seconds = fstat(file, &status) == 0 ? status.st_mtime : 0;
  uint64_t wall_ns = 0;
  constexpr off_t kAt = offsetof(RecordFile, latest) + offsetof(ClockSample, wall_ns);
  if (pread(file, &wall_ns, sizeof wall_ns, kAt) == sizeof wall_ns) {
    const auto sampled = static_cast<int64_t>(wall_ns / 1'000'000'000u);
    if (sampled <= time(nullptr)) seconds = std::max(seconds, sampled);
  }
  close(file);
  return seconds;
}

}  // namespace

std::string RecordName::text() const {
  return fmt::format("{}-{}-{:016x}-{}.rec", process, process_start, instance, rank);
}

std::optional<RecordName> RecordName::parse(const std::string& name) {
  RecordName parsed;
  std::string_view text = name;
  if (!take_number(&text, 10, &parsed.process, '-') ||
      !take_number(&text, 10, &parsed.process_start, '-') ||
      !take_number(&text, 16, &parsed.instance, '-') ||
      !take_number(&text, 10, &parsed.rank, '.') || text != "rec" || parsed.process <= 0) {
    return std::nullopt;
  }
  return parsed;
}

std::vector<std::string> record_folder_candidates(const std::string& wanted) {
  if (!wanted.empty()) return {wanted};
  std::vector<std::string> candidates;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') {
    candidates.push_back(std::string(runtime) + "/weir-recorder");
  }
  candidates.push_back(fmt::format("/dev/shm/weir-{}", geteuid()));
  candidates.push_back(fmt::format("/tmp/weir-{}", geteuid()));
  return candidates;
}

Result<int> open_record_folder(const std::string& path, bool make, bool wanted) {
  if (make && mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return system_error("mkdir " + path);
  }
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return system_error("open " + path);
  struct stat status {};
  const int got = fstat(folder, &status);
  const mode_t refused = wanted ? 0022 : 0077;
  if (got != 0 || status.st_uid != geteuid() || (status.st_mode & refused) != 0) {
    close(folder);
    return Status(Code::kRefused,
                  fmt::format("{} must belong to user {} and be closed to others (chmod 700)", path,
                              geteuid()));
  }
  return folder;
}

Result<int> open_any_record_folder(const std::string& wanted, bool make, std::string* path) {
  std::string why;
  for (const std::string& candidate : record_folder_candidates(wanted)) {
    Result<int> folder = open_record_folder(candidate, make, !wanted.empty());
    if (folder.ok()) {
      *path = candidate;
      return folder;
    }
    why += (why.empty() ? "" : "; ") + folder.status().text();
  }
  return Status(Code::kSystem, why);
}

uint64_t process_start_of(pid_t process) {
  // Field 22; the state, the first behind the name, is field 3.
  const std::string text = stat_behind_name(process);
  size_t at = 0;
  for (int field = 3; field < 22; ++field) {
    at = text.find(' ', at);
    if (at == std::string::npos) return 0;
    ++at;
  }
  uint64_t start = 0;
  std::from_chars(text.data() + at, text.data() + text.size(), start);
  return start;
}

char process_state_of(pid_t process) {
  const std::string text = stat_behind_name(process);
  return text.empty() ? '\0' : text[0];
}

uint64_t pid_namespace_of_self() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

std::string boot_id_of_machine() { return net::boot_id(); }

void tidy_record_folder(int folder, size_t files_max, int64_t seconds_max) {
  // The descriptor keeps its place for others: the stream gets one of its own.
  const int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* stream = own < 0 ? nullptr : fdopendir(own);
  if (stream == nullptr) {
    if (own >= 0) close(own);
    return;
  }
  std::vector<std::pair<int64_t, std::string>> dead;  // (last sign of life, name)
  size_t seen = 0;
  while (const dirent* entry = readdir(stream)) {
    if (++seen > kEntriesMax) break;
    const std::optional<RecordName> name = RecordName::parse(entry->d_name);
    if (!name || process_start_of(name->process) == name->process_start) continue;
    dead.emplace_back(last_sign_of_life(folder, entry->d_name), entry->d_name);
  }
  closedir(stream);
  std::sort(dead.begin(), dead.end());
  const int64_t now = time(nullptr);
  for (size_t i = 0; i < dead.size(); ++i) {
    const bool too_many = dead.size() - i > files_max;
    if (too_many || now - dead[i].first > seconds_max) unlinkat(folder, dead[i].second.c_str(), 0);
  }
}

}  // namespace weir::comm
