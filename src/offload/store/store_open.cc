// SPDX-License-Identifier: Apache-2.0
// Store: create, open, remove.
#include <fmt/format.h>
#include <sys/random.h>

#include <cstring>

#include "core/base/log.h"
#include "offload/store/file_names.h"
#include "offload/store/store.h"
#include "offload/store/store_files.h"

namespace weir::offload {

namespace {

Result<uint64_t> system_random() {
  uint64_t value = 0;
  if (getrandom(&value, sizeof value, 0) != sizeof value) return system_error("getrandom");
  return value;
}

Result<uint64_t> draw(const StoreOptions& options) {
  if (options.random) return options.random();
  return system_random();
}

// Whether to make a lock file where there is none: not in an empty directory, nor in a checkpoint.
// A checkpoint has one slot, but so may a store that has lost the other.
Result<bool> may_be_a_store(Disk& disk, const std::vector<std::string>& directories,
                            const std::string& directory, uint64_t timeout_ms) {
  Result<bool> locked = disk.exists(lock_path(directory));
  if (!locked.ok() || locked.value()) return locked;
  uint32_t slots = 0;
  for (uint32_t slot = 0; slot < 2; ++slot) {
    Result<bool> exists = disk.exists(slot_path(directory, slot));
    if (!exists.ok()) return exists;
    slots += exists.value() ? 1 : 0;
  }
  if (slots != 1) return slots == 2;
  const Result<Metadata> metadata = read_metadata(disk, directories, timeout_ms);
  return metadata.ok() && metadata.value().header.kind == StoreKind::kStore;
}

Status check_space(Disk& disk, const std::string& directory, uint64_t bytes) {
  const Result<uint64_t> available = disk.free_bytes(directory);
  if (!available.ok()) return available.status();
  if (available.value() >= bytes) return {};
  return Status(Code::kSystem, fmt::format("'{}' needs {} bytes for two slots, {} are free",
                                           directory, bytes, available.value()));
}

}  // namespace

// In an order that every cut leaves recognizable (store_files.h): locks, metadata of all
// directories, slots. The caller holds the locks.
Status Store::create_files(Disk& disk, const std::vector<std::string>& directories,
                           const Header& header, const StoreOptions& options) {
  const uint64_t chunk_count = header.description.chunk_count();
  const auto count = static_cast<uint32_t>(directories.size());
  const auto bytes_of = [&](uint32_t d) {
    return slot_bytes(chunk_count, header.description.chunk_bytes, d, count);
  };
  for (uint32_t d = 0; d < count; ++d) {
    WEIR_RETURN_IF_ERROR(check_space(disk, directories[d], 2 * bytes_of(d)));
  }
  CommitRecord record;
  record.id = header.id;
  for (uint32_t d = 0; d < count; ++d) {
    Header own = header;
    own.directory_index = d;
    for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
      WEIR_RETURN_IF_ERROR(write_metadata_file(disk, directories[d], copy, own, record, nullptr,
                                               options.timeout_ms));
    }
  }
  for (uint32_t d = 0; d < count; ++d) {
    for (uint32_t slot = 0; slot < 2; ++slot) {
      Result<OpenFile> file =
          OpenFile::open(disk, slot_path(directories[d], slot), OpenMode::kCreate, bytes_of(d));
      if (!file.ok()) return file.status();
      WEIR_RETURN_IF_ERROR(disk.sync(file.value().id()));
      WEIR_RETURN_IF_ERROR(file.value().close());
    }
    WEIR_RETURN_IF_ERROR(disk.sync_directory(directories[d]));
  }
  return {};
}

Result<std::unique_ptr<Store>> Store::create(Disk& disk,
                                             const std::vector<std::string>& directories,
                                             const StoreDescription& description,
                                             StoreOptions options) {
  WEIR_RETURN_IF_ERROR(validate(description));
  if (directories.empty()) return invalid_argument("a store needs at least one directory");
  if (options.read_only) return invalid_argument("a store cannot be created read only");
  if (disk.in_flight() > 0) {
    return Status(Code::kInvalidUsage, "transfers are in flight; reap them first");
  }
  Header header;
  header.directory_count = static_cast<uint32_t>(directories.size());
  header.description = description;
  for (size_t half = 0; half < 2; ++half) {
    const Result<uint64_t> random = draw(options);
    if (!random.ok()) return random.status();
    std::memcpy(header.id.bytes.data() + 8 * half, &random.value(), 8);
  }
  const std::string failed = fmt::format("cannot create the store in '{}'", directories[0]);
  Result<Claim> claimed =
      claim_directories(disk, directories, options.timeout_ms, options.lock_wait_ms);
  if (!claimed.ok()) return claimed.status().with_context(failed);
  Claim claim = claimed.take();
  const auto make = [&]() -> Result<std::unique_ptr<Store>> {
    WEIR_RETURN_IF_ERROR(create_files(disk, directories, header, options));
    return open_locked(disk, directories, &description, options,
                       std::vector<OpenFile>(directories.size()));
  };
  Result<std::unique_ptr<Store>> store = make();
  if (!store.ok()) {
    give_back(disk, directories, std::move(claim));
    return store.status().with_context(failed);
  }
  for (size_t d = 0; d < directories.size(); ++d) {
    store.value()->directories_[d].lock = std::move(claim.locks[d]);
  }
  return store;
}

Result<std::unique_ptr<Store>> Store::open(Disk& disk, const std::vector<std::string>& directories,
                                           const StoreDescription* expected, StoreOptions options) {
  if (disk.in_flight() > 0) {
    return Status(Code::kInvalidUsage, "transfers are in flight; reap them first");
  }
  WEIR_RETURN_IF_ERROR(check_directories(disk, directories));
  std::vector<OpenFile> locks(directories.size());
  for (size_t d = 0; d < directories.size() && !options.read_only; ++d) {
    const Result<bool> is_store =
        may_be_a_store(disk, directories, directories[d], options.timeout_ms);
    if (!is_store.ok()) return is_store.status();
    if (!is_store.value()) continue;  // the missing files are reported later
    Result<OpenFile> lock = hold_lock(disk, directories[d], options.lock_wait_ms);
    if (!lock.ok()) return lock.status();
    locks[d] = lock.take();
  }
  return open_locked(disk, directories, expected, std::move(options), std::move(locks));
}

Result<std::unique_ptr<Store>> Store::open_locked(Disk& disk,
                                                  const std::vector<std::string>& directories,
                                                  const StoreDescription* expected,
                                                  StoreOptions options,
                                                  std::vector<OpenFile> locks) {
  std::unique_ptr<Store> store(new Store(disk, std::move(options)));
  for (size_t d = 0; d < directories.size(); ++d) {
    Directory directory;
    directory.path = directories[d];
    directory.lock = std::move(locks[d]);
    store->directories_.push_back(std::move(directory));
  }
  const bool writes = !store->options_.read_only;
  Result<Metadata> read = read_metadata(disk, directories, store->options_.timeout_ms);
  if (!read.ok()) return read.status();
  const Metadata& metadata = read.value();
  store->header_ = metadata.header;
  store->record_ = metadata.newest;
  store->problems_ = metadata.problems;
  store->chunk_count_ = metadata.header.description.chunk_count();
  const std::string where = "store in '" + directories[0] + "'";
  if (expected != nullptr) {
    WEIR_RETURN_IF_ERROR(compare(*expected, metadata.header.description).with_context(where));
  }
  if (metadata.header.kind == StoreKind::kCheckpoint && metadata.newest.current == kNoSlot) {
    return Status(
        Code::kRefused,
        fmt::format("the checkpoint in '{}' was cut short and holds nothing; the next one "
                    "into these directories replaces it",
                    directories[0]));
  }
  if (writes && metadata.header.kind == StoreKind::kCheckpoint) {
    return Status(
        Code::kInvalidUsage,
        fmt::format("expected a store in '{}', found a checkpoint: open it read only, and "
                    "restore it into a new store",
                    directories[0]));
  }
  std::vector<HurtFile> hurt;
  WEIR_RETURN_IF_ERROR(store->open_slots(&hurt));
  const ChunkDamage lost = store->lost_with(hurt);
  if (lost.bad_count > 0) WEIR_RETURN_IF_ERROR(store->check_way_back(lost));
  for (const HurtFile& file : hurt) {
    if (!writes) store->problems_.push_back(file.why);
  }
  for (const std::string& problem : store->problems_)
    log_warn(fmt::format("{}: {}", where, problem));
  store->intact_.assign(store->chunk_count_, 0);
  if (metadata.newer_unreadable) WEIR_RETURN_IF_ERROR(store->note_unreadable_record());
  if (writes) {
    const Result<uint64_t> random = draw(store->options_);
    if (!random.ok()) return random.status();
    store->writing_ = random.value();
    store->writing_of_.assign(store->chunk_count_, 0);
    WEIR_RETURN_IF_ERROR(repair_metadata(disk, directories, metadata, store->options_.timeout_ms));
    WEIR_RETURN_IF_ERROR(store->open_metadata_files());
    if (store->record_.current == kNoSlot) WEIR_RETURN_IF_ERROR(store->sync_slots());
    if (lost.bad_count > 0) WEIR_RETURN_IF_ERROR(store->give_up(lost));
    WEIR_RETURN_IF_ERROR(store->mend_slots(hurt));
  }
  if (store->options_.verify_all && store->record_.current != kNoSlot) {
    WEIR_RETURN_IF_ERROR(store->verify());
  }
  return store;
}

// Makes durable a record that a killed process had written but not synced: the next step builds on
// it.
Status Store::open_metadata_files() {
  for (Directory& directory : directories_) {
    for (uint32_t copy = 0; copy < kMetaCopies; ++copy) {
      Result<OpenFile> file =
          OpenFile::open(disk_, meta_path(directory.path, copy), OpenMode::kReadWrite);
      if (!file.ok()) return file.status();
      WEIR_RETURN_IF_ERROR(disk_.sync(file.value().id()));
      directory.meta[copy] = file.take();
    }
  }
  return {};
}

Status Store::remove(Disk& disk, const std::vector<std::string>& directories,
                     uint64_t lock_wait_ms) {
  const Result<std::vector<OpenFile>> locks = hold_existing_locks(disk, directories, lock_wait_ms);
  if (!locks.ok()) return locks.status();
  return remove_files(disk, directories, true);
}

}  // namespace weir::offload
