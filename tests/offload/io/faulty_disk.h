// SPDX-License-Identifier: Apache-2.0
// FaultyDisk: another disk, but for one transfer, the k-th that is submitted, or one call.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "offload/disk/disk.h"

namespace weir::offload {

enum class Fault {
  kNone,
  kFail,     // it completes with an error and nothing was moved
  kShorten,  // its first half was moved, and it completes with an error
  kCancel,   // kAborted
  kDelay,    // it completes after all others under way have
  kHang,     // it completes only after release()
  kSubmit,   // the k-th submit is refused as a whole
  kReap,     // the k-th reap is an error, though nothing is lost
};

class FaultyDisk final : public Disk {
 public:
  explicit FaultyDisk(Disk* inner) : inner_(*inner) {}

  // From now on the k-th (from 0) is hit by the fault.
  void set(Fault fault, uint64_t k) {
    fault_ = fault;
    at_ = k;
    transfers_ = submits_ = reaps_ = 0;
    hit_ = false;
  }
  bool hit() const { return hit_; }
  void release() {
    for (Completion& one : hung_) ready_.push_back(one);
    hung_.clear();
  }

  uint32_t depth() const override { return inner_.depth(); }
  uint32_t in_flight() const override {
    return inner_.in_flight() + static_cast<uint32_t>(ready_.size() + late_.size() + hung_.size());
  }

  Result<uint32_t> submit(std::span<const Transfer> transfers) override {
    if (is(Fault::kSubmit, &submits_)) return Status(Code::kSystem, "injected: submit");
    uint32_t count = 0;
    for (Transfer transfer : transfers) {
      if (in_flight() >= depth()) break;
      const bool here = fault_ != Fault::kSubmit && fault_ != Fault::kReap &&
                        fault_ != Fault::kNone && transfers_ == at_ && !hit_;
      if (here && (fault_ == Fault::kFail || fault_ == Fault::kCancel)) {
        hit_ = true;
        ready_.push_back({transfer.tag, fault_ == Fault::kFail
                                            ? Status(Code::kSystem, "injected: failed")
                                            : Status(Code::kAborted, "injected: cancelled")});
      } else if (here && fault_ == Fault::kHang) {
        hit_ = true;
        hung_.push_back({transfer.tag, Status(Code::kSystem, "injected: hung")});
      } else {
        if (here && fault_ == Fault::kShorten)
          transfer.bytes =
              std::max(kDiskAlignment, transfer.bytes / 2 / kDiskAlignment * kDiskAlignment);
        const Result<uint32_t> taken = inner_.submit(std::span(&transfer, 1));
        if (!taken.ok()) return taken.status();
        if (taken.value() == 0) break;
        if (here) {
          hit_ = true;
          marked_ = transfer.tag;
          marking_ = true;
        }
      }
      ++transfers_;
      ++count;
    }
    return count;
  }

  Status reap(uint32_t least, uint64_t deadline_ns, std::vector<Completion>* done) override {
    if (is(Fault::kReap, &reaps_)) return Status(Code::kSystem, "injected: reap");
    const size_t before = done->size();
    least = std::min(least, in_flight());
    done->insert(done->end(), ready_.begin(), ready_.end());
    ready_.clear();
    while (true) {
      const auto got = static_cast<uint32_t>(done->size() - before);
      const uint32_t wanted = least > got ? std::min(least - got, inner_.in_flight()) : 0;
      std::vector<Completion> inner_done;
      const Status status = inner_.reap(wanted, deadline_ns, &inner_done);
      for (Completion& one : inner_done) {
        if (!marking_ || one.tag != marked_) {
          done->push_back(one);
          continue;
        }
        marking_ = false;
        if (fault_ == Fault::kDelay)
          late_.push_back(one);
        else
          done->push_back({one.tag, Status(Code::kSystem, "injected: short")});
      }
      if (!status.ok()) return status;
      if (inner_.in_flight() == 0) {
        done->insert(done->end(), late_.begin(), late_.end());
        late_.clear();
      }
      if (done->size() - before >= least) return Status();
      if (inner_.in_flight() == 0) return Status(Code::kTimeout, "injected: hung");
    }
  }

  void cancel() override { inner_.cancel(); }
  Result<FileId> open(const std::string& path, OpenMode mode, uint64_t bytes) override {
    return inner_.open(path, mode, bytes);
  }
  Status close(FileId file) override { return inner_.close(file); }
  Result<uint64_t> size(FileId file) override { return inner_.size(file); }
  Status truncate(FileId file, uint64_t bytes) override { return inner_.truncate(file, bytes); }
  Result<bool> is_name_of(const std::string& path, FileId file) override {
    return inner_.is_name_of(path, file);
  }
  Status lock(FileId file) override { return inner_.lock(file); }
  Status make_directory(const std::string& path) override { return inner_.make_directory(path); }
  Result<std::vector<std::string>> list(const std::string& path) override {
    return inner_.list(path);
  }
  Result<bool> exists(const std::string& path) override { return inner_.exists(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return inner_.rename(from, to);
  }
  Status remove(const std::string& path) override { return inner_.remove(path); }
  Status link(const std::string& from, const std::string& to) override {
    return inner_.link(from, to);
  }
  Status clone(const std::string& from, const std::string& to) override {
    return inner_.clone(from, to);
  }
  Result<uint64_t> free_bytes(const std::string& path) override { return inner_.free_bytes(path); }
  Status sync_directory(const std::string& path) override { return inner_.sync_directory(path); }
  Status sync(FileId file) override { return inner_.sync(file); }

 private:
  // Whether this call, the (*count)-th of its kind, is the one.
  bool is(Fault fault, uint64_t* count) {
    const bool here = fault_ == fault && *count == at_ && !hit_;
    ++*count;
    if (here) hit_ = true;
    return here;
  }

  Disk& inner_;
  Fault fault_ = Fault::kNone;
  uint64_t at_ = 0;
  uint64_t transfers_ = 0;
  uint64_t submits_ = 0;
  uint64_t reaps_ = 0;
  bool hit_ = false;
  bool marking_ = false;
  uint64_t marked_ = 0;
  std::vector<Completion> ready_;
  std::vector<Completion> late_;
  std::vector<Completion> hung_;
};

}  // namespace weir::offload
