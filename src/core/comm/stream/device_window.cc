// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/device_window.h"

#include <fmt/format.h>

#include <algorithm>

namespace weir::comm {

namespace {

cuda::DevicePointer address_of(const void* pointer) {
  return static_cast<cuda::DevicePointer>(reinterpret_cast<uintptr_t>(pointer));
}

}  // namespace

DeviceWindow::DeviceWindow(const cuda::Driver& driver, const Config& config, void* memory,
                           uint64_t bytes, bool wanted)
    : driver_(driver), config_(config), memory_(static_cast<char*>(memory)), bytes_(bytes) {
  mine_.ok = wanted && bytes > 0 ? 1 : 0;
}

const DeviceWindow::Entry& DeviceWindow::begin() {
  const cuda::ContextScope scope(driver_, nullptr, config_.context);
  mine_.bytes = bytes_;
  mine_.process = this_process();
  if (mine_.ok == 1 &&
      (!cuda::only_on_device(driver_, memory_) || !cuda::is_on_current_device(driver_, memory_))) {
    mine_.ok = 0;
  }
  if (mine_.ok == 1 && reinterpret_cast<uintptr_t>(memory_) % kAlign != 0) {
    reason_ = fmt::format("it does not begin at a multiple of {} bytes", kAlign);
    mine_.ok = 0;
  }
  if (mine_.ok == 1 && !buffer_number(&buffer_)) {
    reason_ = "CUDA does not know it";
    mine_.ok = 0;
  }
  if (mine_.ok == 1) {
    offers_ = std::make_unique<Offers>(config_.network);
    mine_.range = range_of(driver_, memory_, bytes_,
                           config_.network == nullptr ? nullptr : offers_.get(), next_number());
  }
  return mine_;
}

bool DeviceWindow::connect(const std::vector<Entry>& all) {
  for (const Entry& it : all) {
    if (it.ok != 1) return false;
    bytes_ = std::min(bytes_, it.bytes);
  }
  const cuda::ContextScope scope(driver_, nullptr, config_.context);
  for (Rank rank = 0; rank < config_.rank_count; ++rank) {
    if (rank == config_.rank) {
      addresses_.push_back(memory_);
      continue;
    }
    const Entry& it = all[rank];
    const Reached reached =
        reach_by_kernel(driver_, it.process, it.range, it.bytes, fetch_from(config_.network, rank));
    if (reached.address == nullptr) {
      reason_ = fmt::format("rank {}'s memory: {}", rank, reached.reason);
      return false;
    }
    mapped_.push_back({it.process, it.range});
    addresses_.push_back(reached.address);
  }
  return true;
}

DeviceWindow::~DeviceWindow() {
  if (mapped_.empty()) return;
  const cuda::ContextScope scope(driver_, nullptr, config_.context);
  for (const Mapped& it : mapped_) leave(driver_, it.owner, it.range);
}

bool DeviceWindow::buffer_number(unsigned long long* number) const {
  int attribute = cuda::kAttributeBufferId;
  void* data = number;
  return driver_.cuPointerGetAttributes(1, &attribute, &data, address_of(memory_)) ==
         cuda::kSuccess;
}

bool DeviceWindow::holds(const void* memory, uint64_t bytes, uint64_t* offset) const {
  const auto at = reinterpret_cast<uintptr_t>(memory);
  const auto begin = reinterpret_cast<uintptr_t>(memory_);
  if (at < begin || at - begin > bytes_ || bytes > bytes_ - (at - begin)) return false;
  *offset = at - begin;
  unsigned long long number = 0;
  return buffer_number(&number) && number == buffer_;
}

}  // namespace weir::comm
