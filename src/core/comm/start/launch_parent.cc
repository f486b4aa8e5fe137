// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/launch_parent.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace weir::comm {
namespace {

constexpr int kAncestorCountMax = 64;
constexpr size_t kFileBytesMax = size_t{4} << 20;

// Names as /proc/<pid>/stat has them, cut to 15 characters.
constexpr std::string_view kLaunchers[] = {
    "hydra_pmi_proxy",
    "hydra_pmi_proxy.mpich",
    "mpiexec.hydra",
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prterun",
    "prted",
    "prte",
    "srun",
    "slurmstepd",
    "torchrun",
    "palsd",
    "pmi_proxy",
};

struct Process {
  std::string name;
  uint64_t parent = 0;
  uint64_t start_ticks = 0;
};

// False when the file cannot be read. Files of /proc have no size: read to the end, up to a limit.
bool read_file(const std::string& path, std::string* text) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
  if (file == nullptr) return false;
  text->clear();
  char buffer[4096];
  size_t got = 0;
  while (text->size() < kFileBytesMax &&
         (got = std::fread(buffer, 1, sizeof buffer, file.get())) > 0) {
    text->append(buffer, got);
  }
  return std::ferror(file.get()) == 0;
}

bool parse(std::string_view text, uint64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

// proc(5): "pid (name) state ppid …"; the start time is field 22. The name may hold anything, so
// the last parenthesis ends it.
bool read_process(uint64_t pid, Process* process) {
  std::string text;
  if (!read_file(fmt::format("/proc/{}/stat", pid), &text)) return false;
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return false;
  process->name = text.substr(open + 1, close - open - 1);
  std::vector<std::string_view> fields;  // from field 3 on
  const std::string_view rest(text);
  for (size_t at = close + 1; at < rest.size();) {
    const size_t first = rest.find_first_not_of(" \n", at);
    if (first == std::string_view::npos) break;
    const size_t last = std::min(rest.find_first_of(" \n", first), rest.size());
    fields.push_back(rest.substr(first, last - first));
    at = last;
  }
  return fields.size() > 19 && parse(fields[1], &process->parent) &&
         parse(fields[19], &process->start_ticks);
}

bool is_launcher(std::string_view name) {
  return std::any_of(std::begin(kLaunchers), std::end(kLaunchers),
                     [name](std::string_view known) { return name == known.substr(0, 15); });
}

bool holds(uint64_t pid, const std::string& entry) {
  std::string text;
  if (!read_file(fmt::format("/proc/{}/environ", pid), &text)) return false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\0', at), text.size());
    if (std::string_view(text).substr(at, end - at) == entry) return true;
    at = end + 1;
  }
  return false;
}

uint64_t process_namespace() {
  struct stat status {};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

}  // namespace

Result<std::string> describe_launcher_process(std::string_view rank_variable,
                                              std::string_view rank_text) {
  const std::string entry = fmt::format("{}={}", rank_variable, rank_text);
  uint64_t pid = static_cast<uint64_t>(getppid());
  for (int i = 0; i < kAncestorCountMax && pid > 0; ++i) {
    Process process;
    if (!read_process(pid, &process)) break;
    if (is_launcher(process.name) || !holds(pid, entry) || process.parent == 0) {
      return fmt::format("process {} started {} in {}", pid, process.start_ticks,
                         process_namespace());
    }
    pid = process.parent;
  }
  return Status(
      Code::kSystem,
      "the process that started the ranks cannot be found in /proc; set WEIR_ID to a text "
      "that is the same for all ranks of the job and for no other job");
}

}  // namespace weir::comm
