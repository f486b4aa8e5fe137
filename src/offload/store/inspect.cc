// SPDX-License-Identifier: Apache-2.0
#include "offload/store/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "offload/store/chunk_trailer.h"
#include "offload/store/file_names.h"
#include "offload/store/open_file.h"
#include "offload/store/scan.h"
#include "offload/store/store_files.h"

namespace weir::offload {

namespace {

constexpr size_t kBadChunksKept = 16;

// The files of one slot; a text when one is missing or has another size.
std::string open_slot(Disk& disk, const std::vector<std::string>& directories,
                      InspectReport* report, uint32_t slot, std::vector<OpenFile>* files) {
  const auto count = static_cast<uint32_t>(directories.size());
  for (uint32_t d = 0; d < count; ++d) {
    const std::string path = slot_path(directories[d], slot);
    Result<OpenFile> file = OpenFile::open(disk, path, OpenMode::kReadOnly);
    if (!file.ok()) {
      const Result<bool> exists = disk.exists(path);
      report->slots[slot].blocked = !exists.ok() || exists.value();
      return exists.ok() ? file.status().text() : exists.status().text();
    }
    const Result<uint64_t> size = disk.size(file.value().id());
    if (!size.ok()) return size.status().text();
    const uint64_t expected =
        slot_bytes(report->chunk_count, report->metadata.header.description.chunk_bytes, d, count);
    std::string text =
        fmt::format("expected '{}' to have {} bytes, found {}", path, expected, size.value());
    if (size.value() < expected) return text;
    if (size.value() > expected) report->slots[slot].grown = text;
    files->push_back(file.take());
  }
  return "";
}

bool is_zero(const unsigned char* bytes, uint64_t count) {
  return std::all_of(bytes, bytes + count, [](unsigned char byte) { return byte == 0; });
}

Status inspect_slot(Disk& disk, const std::vector<std::string>& directories, uint64_t timeout_ms,
                    uint32_t slot, InspectReport* report, const std::function<void()>& step) {
  SlotReport& out = report->slots[slot];
  const Metadata& metadata = report->metadata;
  std::vector<OpenFile> files;
  out.missing = open_slot(disk, directories, report, slot, &files);
  if (!out.missing.empty()) return {};
  ScanRange range;
  for (const OpenFile& file : files) range.files.push_back(file.id());
  std::vector<uint64_t> all(report->chunk_count);
  std::iota(all.begin(), all.end(), uint64_t{0});
  range.chunks = all;
  range.chunk_bytes = metadata.header.description.chunk_bytes;
  range.timeout_ms = timeout_ms;
  const SlotState& state = metadata.newest.slots[slot];
  const auto bad = [&](uint64_t chunk, const std::string& why) {
    ++out.bad_chunks;
    if (out.first_bad.size() < kBadChunksKept) out.first_bad.push_back({chunk, why});
  };
  std::vector<bool> holds_state(files.size());  // by directory
  std::vector<uint64_t> zero;
  Status scanned = scan_chunks(
      disk, range, [&](uint64_t chunk, const Status& status, const unsigned char* bytes) {
        step();
        if (!status.ok()) {
          bad(chunk, status.text());
          return Status();
        }
        const Result<ChunkTrailer> trailer = read_trailer(bytes, range.chunk_bytes);
        if (!trailer.ok()) {
          if (is_zero(bytes, range.chunk_bytes)) {
            zero.push_back(chunk);
          } else {
            bad(chunk, trailer.status().text());
          }
          return Status();
        }
        ChunkTrailer expected{metadata.header.id, chunk, trailer.value().epoch,
                              trailer.value().writing};
        if (!(trailer.value() == expected)) {
          bad(chunk, check_chunk(expected, bytes, range.chunk_bytes).text());
          return Status();
        }
        expected.epoch = state.epoch;
        expected.writing = state.writing;
        if (state.committed && trailer.value() == expected) {
          ++out.state_chunks;
          holds_state[chunk % files.size()] = true;
        } else {
          ++out.other_chunks;
        }
        return Status();
      });
  // A commit writes every chunk. A file of the slot that does not count may have been recreated
  // since: then it holds no chunk of the commit.
  std::sort(zero.begin(), zero.end());
  for (const uint64_t chunk : zero) {
    if (state.committed && (slot == metadata.newest.current || holds_state[chunk % files.size()])) {
      bad(chunk, fmt::format("zero, and epoch {} was written there", state.epoch));
    } else {
      ++out.empty_chunks;
    }
  }
  return scanned;
}

}  // namespace

bool InspectReport::whole(uint32_t slot) const {
  return slot < 2 && metadata.newest.slots[slot].committed && slots[slot].present &&
         slots[slot].missing.empty() && slots[slot].state_chunks == chunk_count;
}

bool InspectReport::other_slot_is_suspicious() const {
  if (metadata.newest.current == kNoSlot) return false;
  const uint32_t other = 1 - metadata.newest.current;
  const SlotReport& slot = slots[other];
  if (!slot.present) return false;
  return !slot.missing.empty() || (metadata.newest.slots[other].committed && slot.bad_chunks > 0 &&
                                   slot.other_chunks == 0 && slot.empty_chunks == 0);
}

Verdict InspectReport::verdict() const {
  const uint32_t current = metadata.newest.current;
  const bool clean = metadata.problems.empty() && !other_slot_is_suspicious() &&
                     slots[0].grown.empty() && slots[1].grown.empty();
  if (current == kNoSlot && metadata.header.kind == StoreKind::kCheckpoint) return Verdict::kLost;
  if (current == kNoSlot || whole(current)) return clean ? Verdict::kGood : Verdict::kRecoverable;
  return whole(1 - current) ? Verdict::kRecoverable : Verdict::kLost;
}

std::string InspectReport::summary() const {
  const uint32_t current = metadata.newest.current;
  if (current == kNoSlot && metadata.header.kind == StoreKind::kCheckpoint) {
    return "the checkpoint was cut short and holds nothing: the next one into these directories "
           "replaces it";
  }
  if (current == kNoSlot) {
    return "nothing was committed yet: opening is refused, and creating replaces it";
  }
  const SlotState& state = metadata.newest.slots[current];
  const std::string name = fmt::format("epoch {} (step {})", state.epoch, state.step);
  if (whole(current)) {
    std::string text = name + " is whole";
    if (!metadata.problems.empty()) {
      text += "; copies of the metadata are damaged, and ";
      if (const MetadataCopy* blocked = metadata.blocked(); blocked != nullptr) {
        text +=
            fmt::format("opening the store for writing is refused until '{}' is moved elsewhere",
                        blocked->path);
      } else if (metadata.header.kind == StoreKind::kCheckpoint) {
        text += "nothing repairs those of a checkpoint: it can be read; take another one";
      } else {
        text += "opening the store for writing repairs them";
      }
    }
    const std::string& missing = slots[1 - current].missing;
    if (!missing.empty()) {
      text += "; the epoch before it cannot be read (" + missing + "), and opening the store for " +
              (slots[1 - current].blocked ? "writing is refused until that is moved elsewhere"
                                          : "writing creates its file again");
    } else if (other_slot_is_suspicious()) {
      text += "; the epoch before it is damaged";
    }
    for (const SlotReport& slot : slots) {
      if (!slot.grown.empty()) {
        text +=
            "; " + slot.grown +
            ": the bytes beyond them are not used, and opening a store for writing cuts them off";
      }
    }
    return text;
  }
  const std::string damage =
      slots[current].missing.empty()
          ? fmt::format("{} of {} chunks of {} are bad", chunk_count - slots[current].state_chunks,
                        chunk_count, name)
          : fmt::format("{} cannot be read: {}", name, slots[current].missing);
  if (!whole(1 - current)) return damage + ", and no other epoch is whole: restore a checkpoint";
  const SlotState& before = metadata.newest.slots[1 - current];
  if (slots[current].blocked) {
    return fmt::format(
        "{}; epoch {} (step {}) is whole: opening the store is refused until the entry that blocks "
        "the other epoch is moved elsewhere",
        damage, before.epoch, before.step);
  }
  return fmt::format(
      "{}; epoch {} (step {}) is whole: opening the store for writing, or the first step after it, "
      "goes back to it",
      damage, before.epoch, before.step);
}

Result<InspectReport> inspect(Disk& disk, const std::vector<std::string>& directories,
                              uint64_t timeout_ms, const InspectProgress& progress, bool* lost,
                              uint64_t lock_wait_ms) {
  *lost = false;
  WEIR_RETURN_IF_ERROR(check_directories(disk, directories));
  const Result<std::vector<OpenFile>> locks = hold_existing_locks(disk, directories, lock_wait_ms);
  if (!locks.ok()) return locks.status();
  Result<Metadata> metadata = read_metadata(disk, directories, timeout_ms);
  if (!metadata.ok()) {
    if (metadata.status().code() != Code::kRefused) return metadata.status();
    // Any store leaves more files than its lock.
    const Result<std::vector<std::string>> files = existing_files(disk, directories);
    if (!files.ok()) return files.status();
    *lost = std::any_of(files.value().begin(), files.value().end(), [&](const std::string& path) {
      return !path.ends_with("/lock") && !path.ends_with(".new");
    });
    if (!*lost) return metadata.status();
    return Status(metadata.status().code(), metadata.status().text() + "; " + kMayBeOneOfSeveral);
  }
  InspectReport report;
  report.metadata = metadata.take();
  report.chunk_count = report.metadata.header.description.chunk_count();
  const bool is_store = report.metadata.header.kind == StoreKind::kStore;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    report.slots[slot].present = is_store || slot == report.metadata.newest.current;
  }
  const uint64_t total = report.chunk_count * (is_store ? 2 : 1);
  uint64_t done = 0;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    if (!report.slots[slot].present) continue;
    WEIR_RETURN_IF_ERROR(inspect_slot(disk, directories, timeout_ms, slot, &report, [&] {
      ++done;
      if (progress) progress(done, total);
    }));
  }
  return report;
}

}  // namespace weir::offload
