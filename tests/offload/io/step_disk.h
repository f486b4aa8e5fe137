// SPDX-License-Identifier: Apache-2.0
// StepDisk: one file in memory whose transfers complete only when a reap waits for them, as few as
// it asks for, in the order of submission or in a random one. So that what is under way at any
// moment is known exactly.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "offload/disk/disk.h"

namespace weir::offload {

class StepDisk final : public Disk {
 public:
  StepDisk(uint64_t bytes, uint32_t depth, uint64_t seed = 0)
      : content(bytes), depth_(depth), shuffled_(seed != 0), random_(seed) {}

  Result<FileId> open(const std::string&, OpenMode, uint64_t) override { return FileId{0}; }
  Status close(FileId) override { return Status(); }
  Result<uint64_t> size(FileId) override { return uint64_t{content.size()}; }
  Status truncate(FileId, uint64_t bytes) override {
    content.resize(bytes);
    return Status();
  }
  Result<bool> is_name_of(const std::string&, FileId) override { return true; }
  Status lock(FileId) override { return Status(); }
  Status make_directory(const std::string&) override { return Status(); }
  Result<std::vector<std::string>> list(const std::string&) override {
    return std::vector<std::string>();
  }
  Result<bool> exists(const std::string&) override { return true; }
  Status rename(const std::string&, const std::string&) override { return Status(); }
  Status remove(const std::string&) override { return Status(); }
  Status link(const std::string&, const std::string&) override { return Status(); }
  Status clone(const std::string&, const std::string&) override { return Status(); }
  Result<uint64_t> free_bytes(const std::string&) override { return uint64_t{content.size()}; }
  Status sync_directory(const std::string&) override { return Status(); }
  Status sync(FileId) override { return Status(); }

  uint32_t depth() const override { return depth_; }
  uint32_t in_flight() const override { return static_cast<uint32_t>(under_way.size()); }
  Result<uint32_t> submit(std::span<const Transfer> transfers) override {
    uint32_t count = 0;
    for (const Transfer& transfer : transfers) {
      if (in_flight() == depth_) break;
      if (on_submit) on_submit(transfer);
      under_way.push_back(transfer);
      ++count;
    }
    return count;
  }
  Status reap(uint32_t least, uint64_t, std::vector<Completion>* done) override {
    least = std::min(least, in_flight());
    for (uint32_t i = 0; i < least; ++i) {
      const size_t at = shuffled_ ? random_() % under_way.size() : 0;
      const Transfer transfer = under_way[at];
      under_way.erase(under_way.begin() + static_cast<std::ptrdiff_t>(at));
      done->push_back({transfer.tag, move(transfer)});
    }
    return Status();
  }

  uint32_t under_way_count(bool write) const {
    return static_cast<uint32_t>(std::count_if(
        under_way.begin(), under_way.end(), [&](const Transfer& t) { return t.write == write; }));
  }

  std::vector<unsigned char> content;
  std::deque<Transfer> under_way;
  std::function<void(const Transfer&)> on_submit;

 private:
  Status move(const Transfer& t) {
    if (t.offset_bytes + t.bytes > content.size()) return Status(Code::kRefused, "the file ends");
    unsigned char* const at = content.data() + t.offset_bytes;
    if (t.write)
      std::copy_n(t.buffer, t.bytes, at);
    else
      std::copy_n(at, t.bytes, t.buffer);
    return Status();
  }

  const uint32_t depth_;
  const bool shuffled_;
  std::mt19937_64 random_;
};

}  // namespace weir::offload
