// SPDX-License-Identifier: Apache-2.0
// CountingWork: items side by side in one file; compute adds to every 64-bit word its place and
// one, so that after n sweeps each word is known. Counts what the pipeline asks for and in which
// order.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <vector>

#include "offload/io/pipeline.h"

namespace weir::offload {

class CountingWork : public PipelineWork {
 public:
  CountingWork(uint64_t items, uint64_t item_bytes, FileId file = 0)
      : computed(items), items_(items), item_bytes_(item_bytes), file_(file) {
    begin();
  }

  // Before each sweep.
  void begin() {
    for (auto& one : computed) one = false;
    order.clear();
    finished.clear();
    read_items = 0;
  }
  uint64_t item_count() const override { return items_; }
  Status reads(uint64_t item, std::vector<PipelineTransfer>* transfers) override {
    ++read_items;
    // As two, so that an item is ready only with both.
    const uint64_t half = item_bytes_ / 2 / kDiskAlignment * kDiskAlignment;
    if (half > 0) transfers->push_back(part(item, 0, half));
    transfers->push_back(part(item, half, item_bytes_ - half));
    return Status();
  }
  Status compute(uint64_t item, unsigned char* buffer) override {
    if (on_compute) {
      const Status status = on_compute(item);
      if (!status.ok()) return status;
    }
    for (uint64_t at = 0; at < item_bytes_; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, buffer + at, 8);
      word += item * item_bytes_ + at + 1;
      std::memcpy(buffer + at, &word, 8);
    }
    {
      const std::lock_guard lock(order_mutex_);
      order.push_back(item);
    }
    computed[item] = true;
    return Status();
  }
  Status writes(uint64_t item, std::vector<PipelineTransfer>* transfers) override {
    transfers->push_back(part(item, 0, item_bytes_));
    return Status();
  }
  bool computes_after_all(uint64_t item) const override { return barriers.count(item) > 0; }
  Status written(uint64_t item) override {
    finished.push_back(item);
    return on_written ? on_written(item) : Status();
  }
  // The word at a place after so many sweeps over zeros.
  static uint64_t word_after(uint64_t sweeps, uint64_t at) { return sweeps * (at + 1); }
  bool holds(const unsigned char* content, uint64_t sweeps) const {
    for (uint64_t at = 0; at < items_ * item_bytes_; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, content + at, 8);
      if (word != word_after(sweeps, at)) return false;
    }
    return true;
  }

  std::vector<std::atomic<bool>> computed;
  std::vector<uint64_t> order;     // of compute
  std::vector<uint64_t> finished;  // of written
  uint64_t read_items = 0;
  std::set<uint64_t> barriers;  // items that computes_after_all is true of
  std::function<Status(uint64_t)> on_compute;
  std::function<Status(uint64_t)> on_written;

 private:
  std::mutex order_mutex_;

  PipelineTransfer part(uint64_t item, uint64_t offset, uint64_t bytes) const {
    return {.file = file_,
            .offset_bytes = item * item_bytes_ + offset,
            .buffer_offset_bytes = offset,
            .bytes = bytes};
  }

  const uint64_t items_;
  const uint64_t item_bytes_;
  const FileId file_;
};

}  // namespace weir::offload
