// SPDX-License-Identifier: Apache-2.0
// The folder of the recorder's files: finds it, keeps it private to its user, and bounds its size.
// Names of files: "<process>-<start>-<instance>-<rank>.rec", so that it is known without opening
// them which belong to processes that live. Functions; thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"

namespace weir::comm {

// Files that processes which died have left: kept up to this number and age.
inline constexpr size_t kDeadRecordsMax = 256;
inline constexpr int64_t kDeadRecordSecondsMax = 7 * 24 * 3600;

struct RecordName {
  pid_t process = 0;
  uint64_t process_start = 0;
  uint64_t instance = 0;
  Rank rank = 0;
  std::string text() const;
  static std::optional<RecordName> parse(const std::string& name);
};

// WEIR_RECORDER_DIR where it is given (`wanted`), else the first of these that can be used:
// weir-recorder in XDG_RUNTIME_DIR, /dev/shm/weir-<user>, /tmp/weir-<user>.
std::vector<std::string> record_folder_candidates(const std::string& wanted);

// A descriptor of the folder, made where it is missing. Refused: a link, another owner's, one that
// others may write (or read, but for a `wanted` one).
Result<int> open_record_folder(const std::string& path, bool make, bool wanted);

// The first of record_folder_candidates that can be used; `path` says which.
Result<int> open_any_record_folder(const std::string& wanted, bool make, std::string* path);

// Start of a process in clock ticks since the machine's start; 0: there is no such process.
uint64_t process_start_of(pid_t process);
// The letter of /proc/<process>/stat (R, S, D, T, Z, …); 0: there is no such process.
char process_state_of(pid_t process);
uint64_t pid_namespace_of_self();
std::string boot_id_of_machine();

// Removes the files of dead processes beyond the bounds, oldest first.
void tidy_record_folder(int folder, size_t files_max = kDeadRecordsMax,
                        int64_t seconds_max = kDeadRecordSecondsMax);

}  // namespace weir::comm
