// SPDX-License-Identifier: Apache-2.0
// What the tests of disks share: a directory that goes away, aligned memory, whole transfers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "offload/disk/disk.h"

namespace weir::offload {

inline constexpr uint64_t kSecondNs = 1'000'000'000;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = testing::TempDir() + "weir_io_XXXXXX";
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

struct Memory {
  explicit Memory(uint64_t length)
      : data(static_cast<unsigned char*>(std::aligned_alloc(kDiskAlignment, length)), std::free),
        bytes(length) {
    std::fill_n(data.get(), bytes, static_cast<unsigned char>(0));
  }
  unsigned char* at(uint64_t offset) const { return data.get() + offset; }
  // Every byte depends on its place and on `seed`.
  void fill(uint64_t seed) const {
    for (uint64_t i = 0; i < bytes; ++i)
      data.get()[i] =
          static_cast<unsigned char>((i * 0x9e3779b97f4a7c15u + seed * 0xbf58476du) >> 40);
  }

  std::unique_ptr<unsigned char, void (*)(void*)> data;
  uint64_t bytes;
};

inline int open_descriptor_count() {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++count;
  }
  return count;
}

// Submits all of them, however few the disk takes at once, and reaps all; the completions in the
// order in which they came.
inline std::vector<Completion> transfer_all(Disk* disk, const std::vector<Transfer>& transfers) {
  std::vector<Completion> done;
  size_t submitted = 0;
  while (done.size() < transfers.size()) {
    const Result<uint32_t> taken = disk->submit(std::span(transfers).subspan(submitted));
    if (!taken.ok()) {
      ADD_FAILURE() << taken.status().text();
      return done;
    }
    submitted += taken.value();
    const Status reaped = disk->reap(1, now_ns() + 30 * kSecondNs, &done);
    if (!reaped.ok()) {
      ADD_FAILURE() << reaped.text();
      return done;
    }
  }
  return done;
}

inline Status transfer_one(Disk* disk, const Transfer& transfer) {
  const std::vector<Completion> done = transfer_all(disk, {transfer});
  return done.size() == 1 ? done[0].status : Status(Code::kInternal, "not one completion");
}

}  // namespace weir::offload
