// SPDX-License-Identifier: Apache-2.0
// RealLibrary: NVIDIA's libnccl.so.2, or another library with its functions, loaded behind this
// one. It stays loaded. Thread-safe once open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "nccl/real/found_functions.h"

namespace weir::nccl {

class RealLibrary {
 public:
  // `explicit_path` "": searched for (search.h). nullptr: there is none, and `reason` says where it
  // was looked for and what was wrong there.
  static std::unique_ptr<RealLibrary> open(const std::string& explicit_path, std::string* reason);

  // A function that the library lacks returns ncclInvalidUsage, and ncclGetLastError names the
  // version that has it.
  const Table& table() const { return table_; }
  bool has(FunctionIndex function) const { return has_[static_cast<unsigned>(function)]; }

  int version() const { return version_; }  // as ncclGetVersion gives it
  std::string version_text() const;         // "2.28.9"
  const std::string& path() const { return path_; }
  const std::string& found_by() const { return found_by_; }

  // Whether a return address lies in its code.
  bool holds(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return at >= begin_ && at < end_;
  }

 private:
  RealLibrary() = default;
  // From an opened library. nullptr: `reason` says what is wrong with it.
  static std::unique_ptr<RealLibrary> of(void* library, const std::string& path,
                                         std::string* reason);

  Table table_{};
  bool has_[static_cast<unsigned>(FunctionIndex::kCount)] = {};
  int version_ = 0;
  std::string path_;
  std::string found_by_;
  uintptr_t begin_ = 0;
  uintptr_t end_ = 0;
};

// For a library that is missing: its functions return ncclSystemError, and ncclGetLastError gives
// `reason`, which lives as long as the process.
const Table& absent_table(const std::string* reason);

}  // namespace weir::nccl
