// SPDX-License-Identifier: Apache-2.0
// Damage of a committed state: finding it, and going back to the epoch before.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "core/base/log.h"
#include "offload/store/aligned_buffer.h"
#include "offload/store/chunk_trailer.h"
#include "offload/store/file_names.h"
#include "offload/store/scan.h"
#include "offload/store/store.h"
#include "offload/store/transfer_all.h"

namespace weir::offload {

namespace {

Status usage(std::string text) { return Status(Code::kInvalidUsage, std::move(text)); }

Status refused(std::string text) { return Status(Code::kRefused, std::move(text)); }

}  // namespace

void ChunkDamage::add(uint64_t chunk, const std::string& in_file, uint64_t at_bytes,
                      const std::string& found) {
  if (chunks.empty() || chunk < chunks[0]) {
    file = in_file;
    offset_bytes = at_bytes;
    why = found;
  }
  ++bad_count;
  chunks.insert(std::upper_bound(chunks.begin(), chunks.end(), chunk), chunk);
  if (chunks.size() > kBadChunksNamed) chunks.pop_back();
}

std::string ChunkDamage::text() const {
  return fmt::format(
      "{} of {} chunks of epoch {} (step {}) are bad ({}{}); chunk {} in '{}' at {}: "
      "{}",
      bad_count, chunk_count, epoch, step, fmt::join(chunks, ", "),
      bad_count > chunks.size() ? ", …" : "", chunks.empty() ? 0 : chunks[0], file, offset_bytes,
      why);
}

std::string Fallback::text() const {
  if (cause == Cause::kUnreadableRecord) {
    return fmt::format(
        "no copy of the commit record of epoch {} can be read, though data of that epoch exists: "
        "its commit was cut short, or a committed step is lost; epoch {} (step {}) is used",
        lost_epoch, epoch, step);
  }
  return fmt::format(
      "{}; epoch {} (step {}) was discarded, and epoch {} (step {}), which is whole, is used again",
      damage.text(), lost_epoch, lost_step, epoch, step);
}

void Store::mark_intact(uint64_t chunk) const {
  if (intact_.empty()) return;
  std::atomic_ref<uint8_t>(intact_[chunk]).store(kWhole, std::memory_order_relaxed);
}

void Store::mark_bad(uint64_t chunk, const std::string& why) const {
  if (intact_.empty()) return;
  const std::lock_guard lock(damage_mutex_);
  if (std::atomic_ref<uint8_t>(intact_[chunk]).exchange(kBad) == kBad) return;
  add_bad(chunk, record_.current, why, &damage_);
}

// Any state committed from here on was written by this object, or read as a whole.
void Store::mark_all_intact() {
  std::fill(intact_.begin(), intact_.end(), kWhole);
  damage_ = {};
}

void Store::add_bad(uint64_t chunk, uint32_t slot, const std::string& why,
                    ChunkDamage* damage) const {
  damage->chunk_count = chunk_count_;
  damage->epoch = record_.slots[slot].epoch;
  damage->step = record_.slots[slot].step;
  damage->add(chunk, slot_path(directories_[chunk % directories_.size()].path, slot),
              transfer_of(chunk, slot, nullptr).offset_bytes, why);
}

std::vector<uint64_t> Store::chunks_where(bool (*wanted)(uint8_t mark)) const {
  std::vector<uint64_t> chunks;
  for (uint64_t chunk = 0; chunk < intact_.size() && record_.current != kNoSlot; ++chunk) {
    if (wanted(intact_[chunk])) chunks.push_back(chunk);
  }
  return chunks;
}

std::vector<uint64_t> Store::unverified_chunks() const {
  return chunks_where([](uint8_t mark) { return mark != kWhole; });
}

std::vector<uint64_t> Store::bad_chunks() const {
  return chunks_where([](uint8_t mark) { return mark == kBad; });
}

ChunkDamage Store::known_damage() const {
  const std::lock_guard lock(damage_mutex_);
  return bad_chunks().empty() ? ChunkDamage() : damage_;
}

void Store::doubt(uint64_t chunk) { intact_.at(chunk) = kBad; }

// It may have been whole before it was found bad.
void Store::trust(uint64_t chunk) {
  if (intact_.at(chunk) != kBad) intact_[chunk] = kWhole;
}

bool Store::guards_previous() const {
  return record_.current != kNoSlot && !uncommitted_ && record_.slots[target_slot()].committed &&
         !unverified_chunks().empty();
}

ScrubTarget Store::scrub_target() const {
  ScrubTarget target;
  if (record_.current == kNoSlot) return target;
  const SlotState& state = record_.slots[record_.current];
  target.id = header_.id;
  target.epoch = state.epoch;
  target.step = state.step;
  target.writing = state.writing;
  target.chunk_count = chunk_count_;
  target.chunk_bytes = header_.description.chunk_bytes;
  for (const Directory& directory : directories_) {
    target.files.push_back(slot_path(directory.path, record_.current));
  }
  return target;
}

// An error when the reading as a whole fails; a chunk that cannot be read is a bad one.
Result<ChunkDamage> Store::read_slot(uint32_t slot, std::span<const uint64_t> chunks,
                                     const ScanProgress& progress) {
  ScanRange range;
  for (const Directory& directory : directories_) range.files.push_back(directory.slot[slot].id());
  range.chunks = chunks;
  range.chunk_bytes = header_.description.chunk_bytes;
  range.timeout_ms = options_.timeout_ms;
  const SlotState& state = record_.slots[slot];
  ChunkDamage damage;
  uint64_t done = 0;
  WEIR_RETURN_IF_ERROR(scan_chunks(
      disk_, range, [&](uint64_t chunk, const Status& status, const unsigned char* bytes) {
        const ChunkTrailer expected{header_.id, chunk, state.epoch, state.writing};
        const Status found = status.ok() ? check_chunk(expected, bytes, range.chunk_bytes) : status;
        if (progress) progress(++done, chunks.size());
        if (found.ok()) {
          if (slot == record_.current) mark_intact(chunk);
          return Status();
        }
        add_bad(chunk, slot, found.text(), &damage);
        if (slot == record_.current) mark_bad(chunk, found.text());
        return Status();
      }));
  return damage;
}

Result<ChunkDamage> Store::find_damage(const ScanProgress& progress) {
  return read_slot(record_.current, unverified_chunks(), progress);
}

Status Store::verify(const ScanProgress& progress) {
  WEIR_RETURN_IF_ERROR(check_usable(true));
  if (record_.current == kNoSlot) return usage("nothing was committed yet");
  std::vector<uint64_t> all(chunk_count_);
  std::iota(all.begin(), all.end(), uint64_t{0});
  const Result<ChunkDamage> damage = read_slot(record_.current, all, progress);
  if (!damage.ok()) return damage.status();
  return damage.value().bad_count == 0 ? Status() : refused(damage.value().text());
}

Status Store::check_bad_chunks() {
  WEIR_RETURN_IF_ERROR(check_usable(true));
  if (record_.current == kNoSlot) return {};
  const Result<ChunkDamage> damage = read_slot(record_.current, bad_chunks(), {});
  if (!damage.ok()) return damage.status();
  if (damage.value().bad_count == 0) return {};
  return refused("'" + directories_[0].path + "': " + damage.value().text());
}

Status Store::ensure_whole(const ScanProgress& progress) {
  WEIR_RETURN_IF_ERROR(check_usable(true));
  if (in_step_ || uncommitted_) return usage("a step is under way; commit or abandon it first");
  if (record_.current == kNoSlot) return {};
  const Result<ChunkDamage> read = find_damage(progress);
  if (!read.ok()) return read.status();
  return read.value().bad_count == 0 ? Status() : give_up(read.value());
}

// Whether the previous epoch may replace the damaged one.
Status Store::check_way_back(const ChunkDamage& damage) const {
  const SlotState& before = record_.slots[target_slot()];
  const std::string found = "'" + directories_[0].path + "': " + damage.text();
  if (header_.kind == StoreKind::kCheckpoint) {
    return refused(found + "; a checkpoint holds no other epoch: take another checkpoint");
  }
  if (options_.read_only) {
    return refused(found +
                   "; the store is open read only and nothing was changed: opening it for writing "
                   "goes back to the previous epoch, if that is whole");
  }
  if (!before.committed) {
    return refused(found +
                   "; there is no other epoch that is whole, and nothing was written: restore a "
                   "checkpoint");
  }
  if (header_.description.rank_count > 1 && released_epoch_ >= damage.epoch) {
    return refused(
        fmt::format("{}; nothing was written: all {} ranks must go back together, to epoch {} "
                    "(step {}), which is possible until one of them begins a later step",
                    found, header_.description.rank_count, before.epoch, before.step));
  }
  return {};
}

Status Store::give_up(const ChunkDamage& damage) {
  WEIR_RETURN_IF_ERROR(check_way_back(damage));
  const uint32_t slot = target_slot();
  const SlotState before = record_.slots[slot];
  Fallback fallback;
  fallback.damage = damage;
  fallback.lost_epoch = damage.epoch;
  fallback.lost_step = damage.step;
  fallback.epoch = before.epoch;
  fallback.step = before.step;
  if (Status status = go_back(slot); !status.ok()) {
    if (!poison_.ok() || status.code() != Code::kRefused) return status;
    return refused(fmt::format("'{}': {}; and {}; nothing was written: restore a checkpoint",
                               directories_[0].path, damage.text(), status.text()));
  }
  fallback_ = fallback;
  log_warn("offload: '" + directories_[0].path + "': " + fallback.text());
  return {};
}

Status Store::roll_back(uint64_t epoch) {
  WEIR_RETURN_IF_ERROR(check_usable(true));
  if (options_.read_only) return usage("the store is open read only");
  if (in_step_ || uncommitted_) return usage("a step is under way; commit or abandon it first");
  if (committed() != nullptr && committed()->epoch == epoch) return {};
  const uint32_t slot = target_slot();
  if (record_.current == kNoSlot || !record_.slots[slot].committed ||
      record_.slots[slot].epoch != epoch) {
    return refused(fmt::format(
        "expected epoch {} in '{}', found {} and {}", epoch, directories_[0].path,
        committed_epoch(),
        record_.slots[slot].committed ? fmt::format("{}", record_.slots[slot].epoch) : "no other"));
  }
  return go_back(slot);
}

// The other slot's epoch becomes the committed one, if it is whole.
Status Store::go_back(uint32_t slot) {
  std::vector<uint64_t> all(chunk_count_);
  std::iota(all.begin(), all.end(), uint64_t{0});
  const Result<ChunkDamage> damage = read_slot(slot, all, {});
  if (!damage.ok()) return damage.status();
  if (damage.value().bad_count > 0) {
    return refused(fmt::format("epoch {} is no longer whole: {}", record_.slots[slot].epoch,
                               damage.value().text()));
  }
  CommitRecord record = record_;
  ++record.sequence;
  record.slots[record.current].committed = false;
  record.current = slot;
  WEIR_RETURN_IF_ERROR(write_record(record));
  mark_all_intact();
  dirty_ = true;
  // From here on, commits of the ranks must be reported again.
  released_epoch_ = std::min(released_epoch_, committed_epoch());
  return {};
}

// The record on the other page cannot be read. It was a later commit only if the other slot holds
// data of the next epoch, from its first chunk to its last.
Status Store::note_unreadable_record() {
  const uint32_t slot = target_slot();
  const uint64_t count = directories_.size();
  Result<AlignedBuffer> buffer = AlignedBuffer::make(header_.description.chunk_bytes);
  if (!buffer.ok()) return buffer.status();
  for (const uint64_t chunk : {uint64_t{0}, chunk_count_ - 1}) {
    Result<OpenFile> file = OpenFile::open(disk_, slot_path(directories_[chunk % count].path, slot),
                                           OpenMode::kReadOnly);
    if (!file.ok()) return {};  // a checkpoint has one slot
    Transfer read = transfer_of(chunk, slot, buffer.value().data());
    read.file = file.value().id();
    const BatchOutcome outcome = transfer_all(disk_, {&read, 1}, options_.timeout_ms);
    if (outcome.stuck) buffer.value().leak();
    WEIR_RETURN_IF_ERROR(outcome.status);
    if (!outcome.first_error().ok()) return {};
    const Result<ChunkTrailer> trailer =
        read_trailer(buffer.value().data(), header_.description.chunk_bytes);
    if (!trailer.ok() || trailer.value().id != header_.id ||
        trailer.value().epoch != committed_epoch() + 1) {
      return {};
    }
  }
  Fallback fallback;
  fallback.cause = Fallback::Cause::kUnreadableRecord;
  fallback.lost_epoch = committed_epoch() + 1;
  fallback.epoch = committed_epoch();
  fallback.step = committed() != nullptr ? committed()->step : 0;
  fallback_ = fallback;
  log_warn("offload: '" + directories_[0].path + "': " + fallback.text());
  return {};
}

}  // namespace weir::offload
