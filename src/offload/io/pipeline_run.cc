// SPDX-License-Identifier: Apache-2.0
#include "offload/io/pipeline_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/log.h"

namespace weir::offload {

Pipeline::Run::Run(State* state, PipelineWork* work, PipelineReport* report)
    : s_(*state), work_(*work), report_(*report), item_count_(work->item_count()) {
  const PipelineOptions& options = s_.options;
  report_.depth = options.depth > 0 ? options.depth : choose_shape(s_.rates, s_.load).depth;
  report_.depth = std::min(report_.depth, s_.disk->depth());
  report_.buffer_count = static_cast<uint32_t>(s_.slots.size());
}

Status Pipeline::Run::all() {
  const uint64_t begin_ns = now_ns();
  Status status = sweep();
  if (!status.ok()) drain();
  report_.wall_ns = now_ns() - begin_ns;
  return status;
}

Status Pipeline::Run::sweep() {
  while (!finished()) {
    WEIR_RETURN_IF_ERROR(admit());
    if (s_.workers != nullptr) {
      WEIR_RETURN_IF_ERROR(compute_on_workers());
      WEIR_RETURN_IF_ERROR(take_computed(false));
      WEIR_RETURN_IF_ERROR(admit());
    }
    WEIR_RETURN_IF_ERROR(submit());
    if (s_.workers == nullptr && !to_compute_.empty() &&
        s_.slots[to_compute_.front()].transfers == 0)
      WEIR_RETURN_IF_ERROR(compute_here());
    else if (in_flight_ > 0)
      WEIR_RETURN_IF_ERROR(wait_for_disk(1));
    else if (s_.workers != nullptr && s_.workers->outstanding() > 0)
      WEIR_RETURN_IF_ERROR(take_computed(true));
  }
  return Status();
}

// Gives buffers to the next items of the sweep and lists their reads.
Status Pipeline::Run::admit() {
  while (admitted_count_ < item_count_ && working_ < s_.slots.size()) {
    const uint32_t slot = free_slot();
    s_.slots[slot].item = admitted_count_++;
    s_.slots[slot].working = true;
    ++working_;
    to_compute_.push_back(slot);
    WEIR_RETURN_IF_ERROR(cut(slot, false));
  }
  return Status();
}

uint32_t Pipeline::Run::free_slot() const {
  uint32_t slot = 0;
  while (slot < s_.slots.size() && s_.slots[slot].working) ++slot;
  WEIR_CHECK(slot < s_.slots.size(), "fewer items are at work than there are buffers");
  return slot;
}

// Cuts the item's reads or writes into pieces and queues them.
Status Pipeline::Run::cut(uint32_t index, bool write) {
  Slot& slot = s_.slots[index];
  wanted_.clear();
  if (write)
    WEIR_RETURN_IF_ERROR(work_.writes(slot.item, &wanted_));
  else
    WEIR_RETURN_IF_ERROR(work_.reads(slot.item, &wanted_));
  const uint64_t buffer_bytes = s_.options.buffer_bytes;
  for (const PipelineTransfer& t : wanted_) {
    if (t.buffer_offset_bytes > buffer_bytes || t.bytes > buffer_bytes - t.buffer_offset_bytes)
      return invalid_argument(
          fmt::format("pipeline: a {} of item {} has bytes {} to {} of a buffer of {}",
                      write ? "write" : "read", slot.item, t.buffer_offset_bytes,
                      t.buffer_offset_bytes + t.bytes, buffer_bytes));
    for (uint64_t at = 0; at < t.bytes; at += s_.options.transfer_bytes) {
      uint32_t id = static_cast<uint32_t>(pieces_.size());
      if (free_pieces_.empty()) {
        pieces_.emplace_back();
      } else {
        id = free_pieces_.back();
        free_pieces_.pop_back();
      }
      Piece& piece = pieces_[id];
      piece.slot = index;
      piece.transfer = {.write = write,
                        .file = t.file,
                        .offset_bytes = t.offset_bytes + at,
                        .buffer = slot.buffer.data() + t.buffer_offset_bytes + at,
                        .bytes = std::min(s_.options.transfer_bytes, t.bytes - at),
                        .tag = id};
      (write ? writes_ : reads_).push_back(id);
      ++slot.transfers;
    }
  }
  return Status();
}

// Both directions share one bandwidth: the one with less under way goes first, so that neither
// starves the other and buffers come back at the rate at which they are filled.
uint32_t Pipeline::Run::next_piece() {
  const bool write =
      reads_.empty() || (!writes_.empty() && write_bytes_in_flight_ <= read_bytes_in_flight_);
  std::deque<uint32_t>& queue = write ? writes_ : reads_;
  const uint32_t id = queue.front();
  queue.pop_front();
  (write ? write_bytes_in_flight_ : read_bytes_in_flight_) += pieces_[id].transfer.bytes;
  return id;
}

void Pipeline::Run::put_back(uint32_t id) {
  const Transfer& t = pieces_[id].transfer;
  (t.write ? writes_ : reads_).push_front(id);
  (t.write ? write_bytes_in_flight_ : read_bytes_in_flight_) -= t.bytes;
}

Status Pipeline::Run::submit() {
  batch_.clear();
  batch_pieces_.clear();
  while (in_flight_ + batch_.size() < report_.depth && (!reads_.empty() || !writes_.empty())) {
    batch_pieces_.push_back(next_piece());
    batch_.push_back(pieces_[batch_pieces_.back()].transfer);
  }
  if (batch_.empty()) return Status();
  const uint64_t begin_ns = now_ns();
  const Result<uint32_t> taken = s_.disk->submit(batch_);
  const uint32_t count = taken.ok() ? taken.value() : 0;
  for (size_t i = batch_.size(); i > count; --i) put_back(batch_pieces_[i - 1]);
  for (size_t i = 0; i < count; ++i) {
    Piece& piece = pieces_[batch_pieces_[i]];
    piece.begin_ns = begin_ns;
    piece.lane = take_lane(piece.transfer.write);
    ++s_.slots[piece.slot].submitted;
  }
  if (in_flight_ == 0 && count > 0) busy_since_ns_ = begin_ns;
  in_flight_ += count;
  report_.in_flight_max = std::max(report_.in_flight_max, in_flight_);
  report_.transfer_count += count;
  if (!taken.ok()) return taken.status().with_context("pipeline");
  if (in_flight_ == 0)
    return Status(Code::kInternal, "pipeline: the disk takes no transfer though none is under way");
  return Status();
}

Status Pipeline::Run::compute_here() {
  const uint32_t slot = to_compute_.front();
  to_compute_.pop_front();
  const bool overlapped = in_flight_ > 0;
  const uint64_t begin_ns = now_ns();
  Status status = work_.compute(s_.slots[slot].item, s_.slots[slot].buffer.data());
  const uint64_t end_ns = now_ns();
  if (overlapped) ++report_.overlapped_compute_count;
  WEIR_RETURN_IF_ERROR(computed({slot, 0, std::move(status), begin_ns, end_ns}));
  // Reaped before the next submission, so that what the disk finished meanwhile is seen.
  WEIR_RETURN_IF_ERROR(wait_for_disk(0));
  if (!overlapped || in_flight_ == 0) report_.compute_exposed_ns += end_ns - begin_ns;
  return Status();
}

Status Pipeline::Run::compute_on_workers() {
  while (!to_compute_.empty() && s_.slots[to_compute_.front()].transfers == 0) {
    const uint32_t slot = to_compute_.front();
    const uint64_t item = s_.slots[slot].item;
    if (work_.computes_after_all(item) && s_.workers->outstanding() > 0) {
      WEIR_RETURN_IF_ERROR(take_computed(false));
      if (s_.workers->outstanding() > 0) break;
    }
    to_compute_.pop_front();
    if (in_flight_ > 0) ++report_.overlapped_compute_count;
    s_.workers->give(
        slot, [this, item, at = s_.slots[slot].buffer.data()] { return work_.compute(item, at); });
  }
  return Status();
}

Status Pipeline::Run::take_computed(bool wait) {
  const uint64_t begin_ns = wait ? now_ns() : 0;
  const uint64_t at_work = std::min(s_.workers->outstanding(), s_.options.compute_thread_count);
  const std::vector<ComputeWorkers::Finished> finished = s_.workers->take(wait);
  if (wait) {
    const uint64_t waited_ns = now_ns() - begin_ns;
    report_.compute_wait_ns += waited_ns;
    // It waits only when nothing is under way.
    report_.compute_exposed_ns += waited_ns * at_work;
  }
  for (const ComputeWorkers::Finished& one : finished) WEIR_RETURN_IF_ERROR(computed(one));
  return Status();
}

Status Pipeline::Run::computed(const ComputeWorkers::Finished& finished) {
  Slot& slot = s_.slots[finished.id];
  report_.compute_ns += finished.end_ns - finished.begin_ns;
  report_.computed_bytes += s_.options.buffer_bytes;
  trace(TraceKind::kCompute, finished.worker, slot.item, finished.begin_ns, finished.end_ns, 0);
  if (!finished.status.ok())
    return finished.status.with_context(fmt::format("pipeline: item {}", slot.item));
  WEIR_RETURN_IF_ERROR(cut(finished.id, true));
  return slot.transfers == 0 ? finish(finished.id) : Status();
}

// The item's writes have completed.
Status Pipeline::Run::finish(uint32_t index) {
  Slot& slot = s_.slots[index];
  slot.working = false;
  --working_;
  ++finished_count_;
  ++report_.item_count;
  return work_.written(slot.item);
}

Status Pipeline::Run::wait_for_disk(uint32_t least) {
  if (in_flight_ == 0) return Status();
  done_.clear();
  const uint64_t begin_ns = now_ns();
  const uint64_t deadline_ns = begin_ns + s_.options.timeout_ms * 1'000'000u;
  const Status reaped = s_.disk->reap(least, least == 0 ? begin_ns : deadline_ns, &done_);
  if (least > 0) report_.disk_wait_ns += now_ns() - begin_ns;
  Status handled = handle(done_);
  if (!handled.ok()) return handled;
  if (reaped.ok()) return Status();
  if (reaped.code() != Code::kTimeout) return reaped.with_context("pipeline");
  if (least == 0 || !done_.empty()) return Status();
  return reaped.with_context(fmt::format("pipeline: {} ms without a transfer that completes; {}",
                                         s_.options.timeout_ms, under_way()));
}

// Every completion is taken into account, also after the first that failed.
Status Pipeline::Run::handle(const std::vector<Completion>& done) {
  const uint64_t end_ns = now_ns();
  Status first;
  for (const Completion& completion : done) {
    WEIR_CHECK(completion.tag < pieces_.size(), "the disk completes what it was given");
    const auto id = static_cast<uint32_t>(completion.tag);
    const Piece piece = pieces_[id];
    free_pieces_.push_back(id);
    const Transfer& t = piece.transfer;
    Slot& slot = s_.slots[piece.slot];
    --slot.transfers;
    --slot.submitted;
    --in_flight_;
    if (in_flight_ == 0) report_.disk_busy_ns += end_ns - busy_since_ns_;
    (t.write ? write_bytes_in_flight_ : read_bytes_in_flight_) -= t.bytes;
    lanes_[t.write ? 1 : 0][piece.lane] = false;
    trace(t.write ? TraceKind::kWrite : TraceKind::kRead, piece.lane, slot.item, piece.begin_ns,
          end_ns, t.bytes);
    if (!completion.status.ok()) {
      if (first.ok())
        first = completion.status.with_context(fmt::format("pipeline: item {}", slot.item));
      continue;
    }
    (t.write ? report_.written_bytes : report_.read_bytes) += t.bytes;
    if (t.write && slot.transfers == 0 && first.ok()) first = finish(piece.slot);
  }
  return first;
}

// After an error: submits nothing more and waits for what is under way, as far as the disk can end
// it.
void Pipeline::Run::drain() {
  reads_.clear();
  writes_.clear();
  if (s_.workers != nullptr) s_.workers->drop_all();
  if (in_flight_ > 0) s_.disk->cancel();
  while (in_flight_ > 0) {
    done_.clear();
    const uint64_t deadline_ns = now_ns() + s_.options.timeout_ms * 1'000'000u;
    const Status reaped = s_.disk->reap(1, deadline_ns, &done_);
    (void)handle(done_);  // the first error is the one that counts
    if (!reaped.ok() && done_.empty()) {
      log_error(
          reaped.with_context("pipeline: buffers are lost until the disk is closed; " + under_way())
              .text());
      break;
    }
  }
  for (Slot& slot : s_.slots) {
    slot.transfers = slot.submitted;
    slot.working = slot.submitted > 0;
  }
}

uint32_t Pipeline::Run::take_lane(bool write) {
  std::vector<bool>& lanes = lanes_[write ? 1 : 0];
  uint32_t lane = 0;
  while (lane < lanes.size() && lanes[lane]) ++lane;
  if (lane == lanes.size()) lanes.push_back(false);
  lanes[lane] = true;
  return lane;
}

void Pipeline::Run::trace(TraceKind kind, uint32_t lane, uint64_t item, uint64_t begin_ns,
                          uint64_t end_ns, uint64_t bytes) {
  if (s_.options.trace_events_max == 0) return;
  if (report_.trace.events.size() >= s_.options.trace_events_max) {
    ++report_.trace.dropped_count;
    return;
  }
  report_.trace.events.push_back({kind, lane, item, begin_ns, end_ns, bytes});
}

std::string Pipeline::Run::under_way() const {
  std::string items;
  for (const Slot& slot : s_.slots)
    if (slot.submitted > 0 && items.size() < 200) items += fmt::format(" {}", slot.item);
  return fmt::format("{} transfers are under way, of items{}", in_flight_, items);
}

}  // namespace weir::offload
