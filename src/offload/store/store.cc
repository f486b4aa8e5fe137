// SPDX-License-Identifier: Apache-2.0
#include "offload/store/store.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/log.h"
#include "offload/store/aligned_buffer.h"
#include "offload/store/chunk_trailer.h"
#include "offload/store/file_names.h"
#include "offload/store/transfer_all.h"

namespace weir::offload {

namespace {

Status usage(std::string text) { return Status(Code::kInvalidUsage, std::move(text)); }

}  // namespace

Store::Store(Disk& disk, StoreOptions options) : disk_(disk), options_(std::move(options)) {}

Store::~Store() = default;

const SlotState* Store::committed() const {
  return record_.current == kNoSlot ? nullptr : &record_.slots[record_.current];
}

const SlotState* Store::previous() const {
  const SlotState& slot = record_.slots[target_slot()];
  return record_.current != kNoSlot && slot.committed && !dirty_ ? &slot : nullptr;
}

uint64_t Store::committed_epoch() const {
  return record_.current == kNoSlot ? 0 : record_.slots[record_.current].epoch;
}

Status Store::check_usable(bool quiet) const {
  WEIR_RETURN_IF_ERROR(poison_);
  if (quiet && disk_.in_flight() > 0) {
    return usage(fmt::format("{} transfers are in flight; reap them first", disk_.in_flight()));
  }
  return {};
}

Status Store::check_chunk_number(uint64_t chunk) const {
  if (chunk < chunk_count_) return {};
  return invalid_argument(fmt::format("chunk {} of a store of {}", chunk, chunk_count_));
}

Status Store::poison(const char* what, const Status& reason) {
  poison_ = Status(
      reason.code(),
      fmt::format(
          "the store in '{}' is poisoned: {} failed ({}); the state of its drives is unknown: "
          "close the store and open it again, to continue from the last committed step",
          directories_[0].path, what, reason.text()));
  in_step_ = false;
  log_error(poison_.text());
  return poison_;
}

Transfer Store::transfer_of(uint64_t chunk, uint32_t slot, unsigned char* buffer) const {
  const uint64_t count = directories_.size();
  Transfer transfer;
  transfer.file = directories_[chunk % count].slot[slot].id();
  transfer.offset_bytes = chunk / count * header_.description.chunk_bytes;
  transfer.buffer = buffer;
  transfer.bytes = header_.description.chunk_bytes;
  return transfer;
}

// ---- A step -------------------------------------------------------------------------------------

Status Store::begin_step(uint64_t step) {
  WEIR_RETURN_IF_ERROR(check_usable(true));
  if (options_.read_only) return usage("the store is open read only");
  if (in_step_) return usage(fmt::format("step {} has not ended", step_));
  const SlotState* base = committed();
  const uint64_t base_step = uncommitted_ ? step_ : (base != nullptr ? base->step : 0);
  if ((base != nullptr || uncommitted_) && step <= base_step) {
    return invalid_argument(fmt::format("step {} after step {}", step, base_step));
  }
  if (!uncommitted_) {
    const uint64_t epoch = committed_epoch();
    if (header_.description.rank_count > 1 && released_epoch_ < epoch) {
      return usage(
          fmt::format("step {} would overwrite epoch {}, and not all {} ranks are known to have "
                      "committed epoch {} (known: {}); report that with peers_committed",
                      step, epoch - 1, header_.description.rank_count, epoch, released_epoch_));
    }
    // This would overwrite the only state to go back to.
    if (guards_previous()) {
      const Result<ChunkDamage> damage = find_damage({});
      if (!damage.ok()) return damage.status();
      if (damage.value().bad_count > 0) {
        return Status(Code::kRefused, damage.value().text() +
                                          "; nothing was written: ensure_whole goes back to the "
                                          "epoch before");
      }
    }
    WEIR_RETURN_IF_ERROR(check_names().with_context(
        fmt::format("nothing was written of step {}; close the store and open it again", step)));
    if (record_.slots[target_slot()].held) WEIR_RETURN_IF_ERROR(replace_held_slot(target_slot()));
  }
  if (++writing_ == 0) ++writing_;  // 0 means none
  step_ = step;
  in_step_ = true;
  dirty_ = true;
  return {};
}

Result<Transfer> Store::read_transfer(uint64_t chunk, unsigned char* buffer) const {
  WEIR_RETURN_IF_ERROR(check_usable(false));
  WEIR_RETURN_IF_ERROR(check_chunk_number(chunk));
  if (!writing_of_.empty() && writing_of_[chunk] != 0) {
    return transfer_of(chunk, target_slot(), buffer);
  }
  if (record_.current == kNoSlot) {
    return usage(fmt::format("chunk {} was never written", chunk));
  }
  return transfer_of(chunk, record_.current, buffer);
}

Status Store::check_read(uint64_t chunk, const unsigned char* buffer) const {
  WEIR_RETURN_IF_ERROR(check_usable(false));
  WEIR_RETURN_IF_ERROR(check_chunk_number(chunk));
  ChunkTrailer expected{header_.id, chunk, committed_epoch(), 0};
  uint32_t slot = record_.current;
  if (!writing_of_.empty() && writing_of_[chunk] != 0) {
    slot = target_slot();
    expected.epoch += 1;
    expected.writing = writing_of_[chunk];
  } else if (slot == kNoSlot) {
    return usage(fmt::format("chunk {} was never written", chunk));
  } else {
    expected.writing = record_.slots[slot].writing;
  }
  const Status status = check_chunk(expected, buffer, header_.description.chunk_bytes);
  if (status.ok()) {
    if (slot == record_.current) mark_intact(chunk);
    return {};
  }
  if (slot == record_.current) mark_bad(chunk, status.text());
  const std::string& directory = directories_[chunk % directories_.size()].path;
  return status.with_context(fmt::format("chunk {} of {} in '{}' is bad", chunk, chunk_count_,
                                         slot_path(directory, slot)));
}

Status Store::seal(uint64_t chunk, unsigned char* buffer) const {
  WEIR_RETURN_IF_ERROR(check_usable(false));
  WEIR_RETURN_IF_ERROR(check_chunk_number(chunk));
  if (!in_step_) return usage("no step has begun");
  offload::seal({header_.id, chunk, committed_epoch() + 1, writing_}, buffer,
                header_.description.chunk_bytes);
  return {};
}

Result<Transfer> Store::write_transfer(uint64_t chunk, unsigned char* buffer) const {
  WEIR_RETURN_IF_ERROR(seal(chunk, buffer));
  return sealed_transfer(chunk, buffer);
}

Result<Transfer> Store::sealed_transfer(uint64_t chunk, unsigned char* buffer) const {
  WEIR_RETURN_IF_ERROR(check_usable(false));
  WEIR_RETURN_IF_ERROR(check_chunk_number(chunk));
  if (!in_step_) return usage("no step has begun");
  Transfer transfer = transfer_of(chunk, target_slot(), buffer);
  transfer.write = true;
  return transfer;
}

Status Store::wrote(uint64_t chunk) {
  WEIR_RETURN_IF_ERROR(check_usable(false));
  WEIR_RETURN_IF_ERROR(check_chunk_number(chunk));
  if (!in_step_) return usage("no step has begun");
  writing_of_[chunk] = writing_;
  return {};
}

Status Store::end_step() {
  WEIR_RETURN_IF_ERROR(check_usable(true));
  if (!in_step_) return usage("no step has begun");
  in_step_ = false;
  uncommitted_ = true;
  return {};
}

Status Store::commit(std::span<const unsigned char> data) {
  WEIR_RETURN_IF_ERROR(check_usable(true));
  if (!in_step_) return usage("no step has begun");
  if (data.size() > kCommitDataBytesMax) {
    return invalid_argument(
        fmt::format("{} bytes of commit data; at most {}", data.size(), kCommitDataBytesMax));
  }
  const auto missing = std::find_if(writing_of_.begin(), writing_of_.end(),
                                    [this](uint64_t writing) { return writing != writing_; });
  if (missing != writing_of_.end()) {
    return usage(fmt::format("chunk {} was not written in step {}; a commit needs all {}",
                             missing - writing_of_.begin(), step_, chunk_count_));
  }
  const uint32_t slot = target_slot();
  for (Directory& directory : directories_) {
    if (Status status = disk_.sync(directory.slot[slot].id()); !status.ok()) {
      return poison("sync of the data", status.with_context("'" + directory.path + "'"));
    }
  }
  CommitRecord record = record_;
  ++record.sequence;
  record.current = slot;
  SlotState& state = record.slots[slot];
  state.committed = true;
  state.held = false;
  state.epoch = committed_epoch() + 1;
  state.step = step_;
  state.writing = writing_;
  state.data.assign(data.begin(), data.end());
  WEIR_RETURN_IF_ERROR(write_record(record));
  std::fill(writing_of_.begin(), writing_of_.end(), 0);
  mark_all_intact();
  in_step_ = false;
  uncommitted_ = false;
  dirty_ = false;
  return {};
}

Status Store::abandon_step() {
  WEIR_RETURN_IF_ERROR(check_usable(true));
  std::fill(writing_of_.begin(), writing_of_.end(), 0);
  in_step_ = false;
  uncommitted_ = false;
  return {};
}

// A record that is on some drives and not on others cannot be undone: after a crash, an old record
// would be trusted although its slot was written again. So every failure poisons.
Status Store::write_record(const CommitRecord& record) {
  if (Status status = check_names(record.current); !status.ok()) {
    return poison("the check of the files' names", status);
  }
  Result<AlignedBuffer> page = AlignedBuffer::make(kRecordBytes);
  if (!page.ok()) return poison("the commit record", page.status());
  encode(record, page.value().data());
  std::vector<Transfer> writes;
  for (const Directory& directory : directories_) {
    for (const OpenFile& file : directory.meta) {
      Transfer write;
      write.write = true;
      write.file = file.id();
      write.offset_bytes = record.sequence % 2 * kRecordBytes;
      write.buffer = page.value().data();
      write.bytes = kRecordBytes;
      writes.push_back(write);
    }
  }
  const BatchOutcome outcome = transfer_all(disk_, writes, options_.timeout_ms);
  if (outcome.stuck) page.value().leak();
  if (Status status = outcome.first_error(); !status.ok()) {
    return poison("writing the commit record", status);
  }
  for (const Directory& directory : directories_) {
    for (const OpenFile& file : directory.meta) {
      if (Status status = disk_.sync(file.id()); !status.ok()) {
        return poison("sync of the commit record", status);
      }
    }
  }
  record_ = record;
  return {};
}

// ---- Several ranks ------------------------------------------------------------------------------

void Store::peers_committed(uint64_t epoch) { released_epoch_ = std::max(released_epoch_, epoch); }

}  // namespace weir::offload
