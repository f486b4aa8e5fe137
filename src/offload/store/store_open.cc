// SPDX-License-Identifier: Apache-2.0
// How a Store comes to be: create, open, remove.
#include <fmt/format.h>
#include <sys/random.h>

#include <cstring>

#include "core/base/log.h"
#include "offload/store/file_names.h"
#include "offload/store/store.h"

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

std::vector<std::string> file_names(const std::string& directory) {
  std::vector<std::string> names;
  for (uint32_t i = 0; i < 2; ++i) {
    names.push_back(meta_path(directory, i));
    names.push_back(meta_path(directory, i) + ".new");
    names.push_back(next_slot_path(directory, i));
    names.push_back(slot_path(directory, i));
  }
  return names;
}

// Removes what it can; for clean-up after an error, which is the one to report.
void remove_files(Disk& disk, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const Result<bool> exists = disk.exists(path);
    if (exists.ok() && exists.value()) static_cast<void>(disk.remove(path));
  }
}

Status check_nothing_there(Disk& disk, const std::string& directory) {
  std::vector<std::string> names = file_names(directory);
  names.push_back(lock_path(directory));
  for (const std::string& path : names) {
    const Result<bool> exists = disk.exists(path);
    if (!exists.ok()) return exists.status();
    if (exists.value()) {
      return Status(
          Code::kRefused,
          fmt::format("expected no store in '{}', found '{}': open it, or remove it first",
                      directory, path));
    }
  }
  return {};
}

Status check_space(Disk& disk, const std::string& directory, uint64_t bytes) {
  const Result<uint64_t> available = disk.free_bytes(directory);
  if (!available.ok()) return available.status();
  if (available.value() >= bytes) return {};
  return Status(Code::kSystem, fmt::format("'{}' needs {} bytes for two slots, {} are free",
                                           directory, bytes, available.value()));
}

}  // namespace

Status Store::create_files(Disk& disk, const std::vector<std::string>& directories,
                           const Header& header, const StoreOptions& options) {
  const uint64_t chunk_count = header.description.chunk_count();
  const auto count = static_cast<uint32_t>(directories.size());
  std::vector<std::string> made;
  const auto make_all = [&]() -> Status {
    for (uint32_t d = 0; d < count; ++d) {
      const std::string& directory = directories[d];
      WEIR_RETURN_IF_ERROR(disk.make_directory(directory));
      WEIR_RETURN_IF_ERROR(check_nothing_there(disk, directory));
      const uint64_t bytes = slot_bytes(chunk_count, header.description.chunk_bytes, d, count);
      WEIR_RETURN_IF_ERROR(check_space(disk, directory, 2 * bytes));
      // The lock's file comes first: of two processes that create a store here, one fails.
      Result<OpenFile> lock = OpenFile::open(disk, lock_path(directory), OpenMode::kCreate, 0);
      if (!lock.ok()) return lock.status();
      made.push_back(lock_path(directory));
      for (const std::string& name : file_names(directory)) made.push_back(name);
      for (uint32_t slot = 0; slot < 2; ++slot) {
        Result<OpenFile> file =
            OpenFile::open(disk, slot_path(directory, slot), OpenMode::kCreate, bytes);
        if (!file.ok()) return file.status();
        WEIR_RETURN_IF_ERROR(disk.sync(file.value().id()));
        WEIR_RETURN_IF_ERROR(file.value().close());
      }
      WEIR_RETURN_IF_ERROR(disk.sync_directory(directory));
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
    return {};
  };
  const Status status = make_all();
  if (!status.ok()) remove_files(disk, made);
  return status;
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
  WEIR_RETURN_IF_ERROR(
      create_files(disk, directories, header, options)
          .with_context(fmt::format("cannot create the store in '{}'", directories[0])));
  return open(disk, directories, &description, std::move(options));
}

Result<std::unique_ptr<Store>> Store::open(Disk& disk, const std::vector<std::string>& directories,
                                           const StoreDescription* expected, StoreOptions options) {
  if (disk.in_flight() > 0) {
    return Status(Code::kInvalidUsage, "transfers are in flight; reap them first");
  }
  WEIR_RETURN_IF_ERROR(check_directories(disk, directories));
  std::unique_ptr<Store> store(new Store(disk, std::move(options)));
  for (const std::string& path : directories) {
    Directory directory;
    directory.path = path;
    store->directories_.push_back(std::move(directory));
  }
  const bool writes = !store->options_.read_only;
  if (writes) WEIR_RETURN_IF_ERROR(store->lock(directories));
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
  if (writes && metadata.header.kind == StoreKind::kCheckpoint) {
    return Status(
        Code::kInvalidUsage,
        fmt::format("expected a store in '{}', found a checkpoint: open it read only, and "
                    "restore it into a new store",
                    directories[0]));
  }
  WEIR_RETURN_IF_ERROR(store->open_slots(directories));
  for (const std::string& problem : store->problems_) log_warn(where + ": " + problem);
  if (writes) {
    const Result<uint64_t> random = draw(store->options_);
    if (!random.ok()) return random.status();
    store->writing_ = random.value();
    store->writing_of_.assign(store->chunk_count_, 0);
    WEIR_RETURN_IF_ERROR(repair_metadata(disk, directories, metadata, store->options_.timeout_ms));
    WEIR_RETURN_IF_ERROR(store->open_metadata_files());
  }
  if (store->options_.verify_all && store->record_.current != kNoSlot) {
    WEIR_RETURN_IF_ERROR(store->verify());
  }
  return store;
}

Status Store::lock(const std::vector<std::string>& directories) {
  for (size_t d = 0; d < directories.size(); ++d) {
    const std::string path = lock_path(directories[d]);
    const Result<bool> exists = disk_.exists(path);
    if (!exists.ok()) return exists.status();
    OpenMode mode = OpenMode::kReadOnly;
    if (!exists.value()) {
      // Without one of its files it is no store, and what is missing will be said later.
      bool is_store = true;
      for (uint32_t slot = 0; slot < 2; ++slot) {
        const Result<bool> there = disk_.exists(slot_path(directories[d], slot));
        if (!there.ok()) return there.status();
        is_store &= there.value();
      }
      if (!is_store) continue;
      mode = OpenMode::kCreate;
    }
    Result<OpenFile> file = OpenFile::open(disk_, path, mode, 0);
    if (!file.ok()) return file.status();
    if (Status status = disk_.lock(file.value().id()); !status.ok()) {
      if (status.code() != Code::kRefused) return status;
      return Status(Code::kRefused,
                    fmt::format("expected the store in '{}' to be free, found it open in another "
                                "process or elsewhere in this one ({}); end that first",
                                directories[d], status.text()));
    }
    directories_[d].lock = file.take();
  }
  return {};
}

Status Store::open_slots(const std::vector<std::string>& directories) {
  const auto count = static_cast<uint32_t>(directories.size());
  for (uint32_t d = 0; d < count; ++d) {
    for (uint32_t slot = 0; slot < 2; ++slot) {
      if (options_.read_only && slot != record_.current) continue;
      const std::string path = slot_path(directories[d], slot);
      const Result<bool> exists = disk_.exists(path);
      if (!exists.ok()) return exists.status();
      if (!exists.value()) {
        return Status(Code::kRefused, fmt::format("expected file '{}', found none; is the drive of "
                                                  "'{}' mounted?",
                                                  path, directories[d]));
      }
      Result<OpenFile> file = OpenFile::open(
          disk_, path, options_.read_only ? OpenMode::kReadOnly : OpenMode::kReadWrite);
      if (!file.ok()) return file.status();
      const Result<uint64_t> size = disk_.size(file.value().id());
      if (!size.ok()) return size.status();
      const uint64_t expected = slot_bytes(chunk_count_, header_.description.chunk_bytes, d, count);
      if (size.value() != expected) {
        return Status(Code::kRefused,
                      fmt::format("expected '{}' to have {} bytes, found {}: {}", path, expected,
                                  size.value(),
                                  size.value() < expected ? "it was truncated" : "it has grown"));
      }
      directories_[d].slot[slot] = file.take();
    }
  }
  return {};
}

// The sync makes a record durable that a killed process had written and not yet synced: the next
// step builds on it.
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

Status Store::remove(Disk& disk, const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    const std::string path = lock_path(directory);
    Result<bool> exists = disk.exists(path);
    if (!exists.ok()) return exists.status();
    OpenFile lock;
    if (exists.value()) {
      Result<OpenFile> file = OpenFile::open(disk, path, OpenMode::kReadOnly);
      if (!file.ok()) return file.status();
      lock = file.take();
      WEIR_RETURN_IF_ERROR(
          disk.lock(lock.id()).with_context("the store in '" + directory + "' is open"));
    }
    std::vector<std::string> names = file_names(directory);
    names.push_back(path);
    for (const std::string& name : names) {
      exists = disk.exists(name);
      if (!exists.ok()) return exists.status();
      if (exists.value()) WEIR_RETURN_IF_ERROR(disk.remove(name));
    }
    exists = disk.exists(directory);
    if (!exists.ok()) return exists.status();
    if (exists.value()) WEIR_RETURN_IF_ERROR(disk.sync_directory(directory));
  }
  return {};
}

}  // namespace weir::offload
