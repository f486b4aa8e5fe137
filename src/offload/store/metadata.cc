// SPDX-License-Identifier: Apache-2.0
#include "offload/store/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "offload/store/aligned_buffer.h"
#include "offload/store/chunk_trailer.h"
#include "offload/store/file_names.h"
#include "offload/store/open_file.h"
#include "offload/store/transfer_all.h"

namespace weir::offload {

namespace {

// The contents of one metadata file, as far as they can be read.
struct Copy {
  std::string path;
  bool exists = false;
  bool blocked = false;       // something else than a file has the name
  bool out_of_reach = false;  // its name cannot even be looked up
  Status unreadable;          // of the file as a whole
  Status header_status;
  std::optional<Header> header;
  bool foreign = false;  // of another store or directory
  AlignedBuffer bytes;
  std::array<std::optional<CommitRecord>, 2> records;
  std::array<Status, 2> record_status;
};

Result<AlignedBuffer> read_file(Disk& disk, const OpenFile& file, const std::string& path,
                                uint64_t timeout_ms) {
  const Result<uint64_t> size = disk.size(file.id());
  if (!size.ok()) return size.status();
  const uint64_t bytes = size.value() / kDiskAlignment * kDiskAlignment;
  if (bytes <= kHeaderOffset || bytes > kHeaderOffset + kHeaderBytesMax) {
    return Status(Code::kRefused,
                  fmt::format("'{}' has {} bytes, expected {} to {}", path, size.value(),
                              kHeaderOffset + kDiskAlignment, kHeaderOffset + kHeaderBytesMax));
  }
  Result<AlignedBuffer> buffer = AlignedBuffer::make(bytes);
  if (!buffer.ok()) return buffer.status();
  Transfer read;
  read.file = file.id();
  read.buffer = buffer.value().data();
  read.bytes = bytes;
  const BatchOutcome outcome = transfer_all(disk, {&read, 1}, timeout_ms);
  if (outcome.stuck) buffer.value().leak();
  if (Status status = outcome.first_error(); !status.ok()) {
    return status.with_context("cannot read '" + path + "'");
  }
  return buffer;
}

Result<Copy> read_copy(Disk& disk, const std::string& path, uint64_t timeout_ms) {
  Copy copy;
  copy.path = path;
  const Result<bool> exists = disk.exists(path);
  copy.exists = !exists.ok() || exists.value();
  if (!copy.exists) {
    copy.unreadable = Status(Code::kRefused, "'" + path + "' does not exist");
    return copy;
  }
  const Result<OpenFile> file =
      exists.ok() ? OpenFile::open(disk, path, OpenMode::kReadOnly) : exists.status();
  if (!file.ok()) {
    copy.unreadable = file.status();
    copy.blocked = file.status().code() == Code::kRefused;
    copy.out_of_reach = !exists.ok() && !copy.blocked;
    return copy;
  }
  Result<AlignedBuffer> bytes = read_file(disk, file.value(), path, timeout_ms);
  if (!bytes.ok()) {
    // A disk that no longer responds does not mean a damaged copy.
    if (bytes.status().code() == Code::kTimeout) return bytes.status();
    copy.unreadable = bytes.status();
    return copy;
  }
  copy.bytes = bytes.take();
  Result<Header> header = decode_header(copy.bytes.span().subspan(kHeaderOffset));
  copy.header_status = header.status();
  if (header.ok()) copy.header = header.take();
  return copy;
}

// The header with the number of its directory removed.
Header without_place(Header header) {
  header.directory_index = 0;
  return header;
}

// Whether copy number `c` is one of this store, and of the directory that it lies in.
bool is_own(const std::vector<Copy>& copies, size_t c, const Header& store) {
  return copies[c].header && copies[c].header->directory_index == c / kMetaCopies &&
         without_place(*copies[c].header) == store;
}

// The stores of which every directory has its own copy, as far as its copies can be read.
std::vector<Header> possible_stores(const std::vector<Copy>& copies, size_t directory_count) {
  std::vector<Header> possible;
  for (size_t c = 0; c < copies.size(); ++c) {
    if (!copies[c].header || copies[c].header->directory_count != directory_count) continue;
    const Header store = without_place(*copies[c].header);
    if (std::count(possible.begin(), possible.end(), store) > 0) continue;
    bool everywhere = true;
    for (size_t first = 0; first < copies.size(); first += kMetaCopies) {
      bool readable = false;
      bool own = false;
      for (size_t copy = first; copy < first + kMetaCopies; ++copy) {
        readable |= copies[copy].header.has_value();
        own |= is_own(copies, copy, store);
      }
      everywhere &= own || !readable;
    }
    if (everywhere) possible.push_back(store);
  }
  return possible;
}

// Whether the first chunk of any slot file is one of this store.
Result<bool> has_chunks_of(Disk& disk, const std::vector<std::string>& directories,
                           const Header& store, uint64_t timeout_ms) {
  const uint64_t chunk_bytes = store.description.chunk_bytes;
  Result<AlignedBuffer> buffer = AlignedBuffer::make(chunk_bytes);
  if (!buffer.ok()) return buffer.status();
  for (size_t at = 0; at < 2 * directories.size(); ++at) {
    const std::string path = slot_path(directories[at / 2], at % 2);
    Result<OpenFile> file = OpenFile::open(disk, path, OpenMode::kReadOnly);
    if (!file.ok()) continue;
    Transfer read;
    read.file = file.value().id();
    read.buffer = buffer.value().data();
    read.bytes = chunk_bytes;
    const BatchOutcome outcome = transfer_all(disk, {&read, 1}, timeout_ms);
    if (outcome.stuck) buffer.value().leak();
    if (outcome.status.code() == Code::kTimeout) return outcome.status;
    if (!outcome.first_error().ok()) continue;
    const Result<ChunkTrailer> trailer = read_trailer(buffer.value().data(), chunk_bytes);
    if (trailer.ok() && trailer.value().id == store.id) return true;
  }
  return false;
}

// Says why the headers do not agree on one store.
Status disagreement(const std::vector<Copy>& copies, const std::vector<std::string>& directories) {
  const Copy* first = nullptr;
  for (size_t c = 0; c < copies.size(); ++c) {
    if (!copies[c].header) continue;
    const Header& header = *copies[c].header;
    const size_t directory = c / kMetaCopies;
    if (header.directory_count != directories.size()) {
      return Status(
          Code::kMismatch,
          fmt::format("expected a store over {} directories, found '{}' to be one of {}",
                      directories.size(), directories[directory], header.directory_count));
    }
    if (first != nullptr && header.id != first->header->id) {
      return Status(
          Code::kMismatch,
          fmt::format("expected directories of one store, found '{}' of store {} and "
                      "'{}' of store {}",
                      first->path, first->header->id.text(), copies[c].path, header.id.text()));
    }
    if (header.directory_index != directory) {
      return Status(Code::kMismatch,
                    fmt::format("expected '{}' to be directory {} of the store, found number {}; "
                                "give the directories in their old order",
                                directories[directory], directory, header.directory_index));
    }
    if (first != nullptr && !(without_place(header) == without_place(*first->header))) {
      return Status(Code::kRefused, fmt::format("'{}' and '{}' describe one store differently",
                                                first->path, copies[c].path));
    }
    if (first == nullptr) first = &copies[c];
  }
  std::string reasons;
  bool any = false;
  bool out_of_reach = false;
  for (const Copy& copy : copies) {
    if (copy.header_status.code() == Code::kUnsupported) {
      return copy.header_status.with_context("'" + copy.path + "'");
    }
    any |= copy.exists;
    out_of_reach |= copy.out_of_reach;
    if (!reasons.empty()) reasons += "; ";
    reasons += copy.unreadable.ok() ? "'" + copy.path + "': " + copy.header_status.text()
                                    : copy.unreadable.text();
  }
  if (!any) {
    return Status(Code::kRefused,
                  fmt::format("no store in '{}' (no {} and no {})", directories[0],
                              meta_path(directories[0], 0), meta_path(directories[0], 1)));
  }
  return Status(out_of_reach ? Code::kSystem : Code::kRefused,
                "no copy of the header can be read: " + reasons);
}

// Finds the one store to which the copies belong. A copy of another store, or of another directory,
// beside a copy of the right one counts as damaged: it loses its header. Where two stores are
// possible, the chunks decide.
Result<Header> agree_on_header(Disk& disk, const std::vector<std::string>& directories,
                               uint64_t timeout_ms, std::vector<Copy>* copies) {
  std::vector<Header> possible = possible_stores(*copies, directories.size());
  if (possible.size() > 1) {
    std::vector<Header> with_chunks;
    for (const Header& store : possible) {
      const Result<bool> has = has_chunks_of(disk, directories, store, timeout_ms);
      if (!has.ok()) return has.status();
      if (has.value()) with_chunks.push_back(store);
    }
    possible = with_chunks;
  }
  if (possible.size() != 1) return disagreement(*copies, directories);
  // A directory whose chunks belong to the other store is a directory of that store.
  for (size_t c = 0; c < copies->size(); ++c) {
    const Copy& copy = (*copies)[c];
    if (!copy.header || copy.header->id == possible[0].id) continue;
    const Result<bool> has =
        has_chunks_of(disk, {directories[c / kMetaCopies]}, *copy.header, timeout_ms);
    if (!has.ok()) return has.status();
    if (has.value()) return disagreement(*copies, directories);
  }
  for (size_t c = 0; c < copies->size(); ++c) {
    Copy& copy = (*copies)[c];
    if (!copy.header || is_own(*copies, c, possible[0])) continue;
    copy.header_status =
        Status(Code::kRefused,
               copy.header->id == possible[0].id
                   ? fmt::format("header of directory {} of {}, not of {} of {}",
                                 copy.header->directory_index, copy.header->directory_count,
                                 c / kMetaCopies, directories.size())
                   : fmt::format("header of store {}, not of {}: a copy of another store's file",
                                 copy.header->id.text(), possible[0].id.text()));
    copy.header.reset();
    copy.foreign = true;
  }
  return possible[0];
}

void decode_records(std::vector<Copy>* copies, const StoreId& id) {
  for (Copy& copy : *copies) {
    if (copy.bytes.bytes() == 0 || copy.foreign) continue;
    for (size_t page = 0; page < 2; ++page) {
      Result<CommitRecord> record =
          decode_record(copy.bytes.span().subspan(page * kRecordBytes, kRecordBytes), id);
      copy.record_status[page] = record.status();
      if (!record.ok()) continue;
      if (record.value().sequence % 2 == page) {
        copy.records[page] = record.take();
      } else {
        copy.record_status[page] =
            Status(Code::kRefused, "commit record lies in the page of another (misdirected write)");
      }
    }
  }
}

Result<CommitRecord> newest_record(const std::vector<Copy>& copies) {
  const CommitRecord* newest = nullptr;
  std::string path;
  for (const Copy& copy : copies) {
    for (const std::optional<CommitRecord>& record : copy.records) {
      if (!record) continue;
      if (newest != nullptr && record->sequence == newest->sequence && !(*record == *newest)) {
        return Status(Code::kRefused,
                      fmt::format("'{}' and '{}' contradict each other on commit record {}", path,
                                  copy.path, newest->sequence));
      }
      if (newest == nullptr || record->sequence > newest->sequence) {
        newest = &*record;
        path = copy.path;
      }
    }
  }
  if (newest != nullptr) return *newest;
  return Status(Code::kRefused, "no copy of any commit record can be read; restore a checkpoint");
}

// The older record for repaired copies: all of them must get the same one.
CommitRecord older_record(const std::vector<Copy>& copies, const CommitRecord& newest) {
  const size_t page = 1 - newest.sequence % 2;
  const CommitRecord* older = nullptr;
  for (const Copy& copy : copies) {
    const std::optional<CommitRecord>& record = copy.records[page];
    if (record && (older == nullptr || record->sequence > older->sequence)) older = &*record;
  }
  if (older != nullptr) return *older;
  CommitRecord made_up = newest;
  if (newest.sequence > 0) --made_up.sequence;
  return made_up;
}

bool is_zero(std::span<const unsigned char> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == 0; });
}

// Whether no copy has a readable record on the other page although something was written there: a
// newer record that was cut short or is damaged everywhere, or the one before, damaged everywhere.
bool newer_unreadable(const std::vector<Copy>& copies, const CommitRecord& newest) {
  const size_t other = 1 - newest.sequence % 2;
  bool written = false;
  for (const Copy& copy : copies) {
    if (copy.records[other]) return false;
    if (copy.bytes.bytes() == 0 || copy.foreign) continue;
    written |= !is_zero(copy.bytes.span().subspan(other * kRecordBytes, kRecordBytes));
  }
  return written;
}

void judge(const std::vector<Copy>& copies, Metadata* metadata) {
  const uint64_t sequence = metadata->newest.sequence;
  const size_t page = sequence % 2;
  const size_t other = 1 - page;
  for (const Copy& copy : copies) {
    MetadataCopy verdict{copy.path, true, copy.blocked};
    const auto problem = [&](const std::string& text) {
      metadata->problems.push_back("'" + copy.path + "': " + text);
      verdict.good = false;
    };
    if (!copy.unreadable.ok()) {
      problem(copy.unreadable.text());
    } else if (copy.foreign) {
      problem(copy.header_status.text());  // this text covers the whole copy
    } else {
      if (!copy.header) problem(copy.header_status.text());
      const std::optional<CommitRecord>& record = copy.records[page];
      if (!record) {
        problem(copy.record_status[page].text());
      } else if (record->sequence != sequence) {
        problem(fmt::format("holds commit record {}, not {}", record->sequence, sequence));
      }
      // An interrupted commit looks like this, and so does damage: always report it. A page that
      // was never written is zero.
      if (!copy.records[other] && !(sequence == 0 && is_zero(copy.bytes.span().subspan(
                                                         other * kRecordBytes, kRecordBytes)))) {
        problem(
            fmt::format("{} (page {}): a commit was cut short, or the page is damaged; commit "
                        "record {} is used",
                        copy.record_status[other].text(), other, sequence));
      }
    }
    metadata->copies.push_back(std::move(verdict));
  }
}

}  // namespace

Status check_distinct(const std::vector<std::string>& directories) {
  std::set<std::string> seen;
  for (const std::string& directory : directories) {
    const std::string plain = (std::filesystem::path(directory) / "").lexically_normal().string();
    if (!seen.insert(plain).second) {
      return invalid_argument("directory '" + directory + "' is given twice");
    }
  }
  return {};
}

Status check_directories(Disk& disk, const std::vector<std::string>& directories) {
  if (directories.empty()) return invalid_argument("a store needs at least one directory");
  WEIR_RETURN_IF_ERROR(check_distinct(directories));
  for (size_t d = 0; d < directories.size(); ++d) {
    const Result<bool> exists = disk.exists(directories[d]);
    if (!exists.ok()) return exists.status();
    if (!exists.value()) {
      return Status(Code::kRefused,
                    fmt::format("expected directory '{}' ({} of {}), found nothing; is its drive "
                                "mounted?",
                                directories[d], d + 1, directories.size()));
    }
  }
  return {};
}

bool Metadata::needs_repair() const {
  return std::any_of(copies.begin(), copies.end(),
                     [](const MetadataCopy& copy) { return !copy.good; });
}

const MetadataCopy* Metadata::blocked() const {
  const auto found = std::find_if(copies.begin(), copies.end(),
                                  [](const MetadataCopy& copy) { return copy.blocked; });
  return found == copies.end() ? nullptr : &*found;
}

Result<Metadata> read_metadata(Disk& disk, const std::vector<std::string>& directories,
                               uint64_t timeout_ms) {
  WEIR_RETURN_IF_ERROR(check_directories(disk, directories));
  std::vector<Copy> copies;
  for (const std::string& directory : directories) {
    for (uint32_t c = 0; c < kMetaCopies; ++c) {
      Result<Copy> copy = read_copy(disk, meta_path(directory, c), timeout_ms);
      if (!copy.ok()) return copy.status();
      copies.push_back(copy.take());
    }
  }
  Result<Header> header = agree_on_header(disk, directories, timeout_ms, &copies);
  if (!header.ok()) return header.status();
  Metadata metadata;
  metadata.header = header.take();
  decode_records(&copies, metadata.header.id);
  Result<CommitRecord> newest = newest_record(copies);
  if (!newest.ok()) return newest.status().with_context("store in '" + directories[0] + "'");
  metadata.newest = newest.take();
  metadata.older = older_record(copies, metadata.newest);
  metadata.newer_unreadable = newer_unreadable(copies, metadata.newest);
  judge(copies, &metadata);
  return metadata;
}

Result<std::optional<CommitRecord>> any_commit(Disk& disk,
                                               const std::vector<std::string>& directories,
                                               uint64_t timeout_ms) {
  std::optional<CommitRecord> newest;
  for (const std::string& directory : directories) {
    for (uint32_t c = 0; c < kMetaCopies; ++c) {
      const Result<Copy> copy = read_copy(disk, meta_path(directory, c), timeout_ms);
      if (!copy.ok()) return copy.status();
      if (copy.value().bytes.bytes() == 0) continue;
      for (size_t page = 0; page < 2; ++page) {
        const auto bytes = copy.value().bytes.span().subspan(page * kRecordBytes, kRecordBytes);
        const Result<CommitRecord> record = decode_record(bytes, record_id(bytes));
        if (!record.ok() || record.value().current == kNoSlot) continue;
        if (!newest || record.value().sequence > newest->sequence) newest = record.value();
      }
    }
  }
  return newest;
}

Status write_metadata_file(Disk& disk, const std::string& directory, uint32_t copy,
                           const Header& header, const CommitRecord& newest,
                           const CommitRecord* older, uint64_t timeout_ms) {
  const std::vector<unsigned char> header_bytes = encode(header);
  Result<AlignedBuffer> buffer = AlignedBuffer::make(kHeaderOffset + header_bytes.size());
  if (!buffer.ok()) return buffer.status();
  unsigned char* bytes = buffer.value().data();
  encode(newest, bytes + newest.sequence % 2 * kRecordBytes);
  if (older != nullptr) encode(*older, bytes + older->sequence % 2 * kRecordBytes);
  std::memcpy(bytes + kHeaderOffset, header_bytes.data(), header_bytes.size());
  const std::string path = meta_path(directory, copy);
  const std::string fresh = path + ".new";
  const Result<bool> left_over = disk.exists(fresh);
  if (!left_over.ok()) return left_over.status();
  if (left_over.value()) WEIR_RETURN_IF_ERROR(disk.remove(fresh));
  Result<OpenFile> file = OpenFile::open(disk, fresh, OpenMode::kCreate, buffer.value().bytes());
  if (!file.ok()) return file.status();
  Transfer write;
  write.write = true;
  write.file = file.value().id();
  write.buffer = bytes;
  write.bytes = buffer.value().bytes();
  const BatchOutcome outcome = transfer_all(disk, {&write, 1}, timeout_ms);
  if (outcome.stuck) buffer.value().leak();
  WEIR_RETURN_IF_ERROR(outcome.first_error().with_context("cannot write '" + fresh + "'"));
  WEIR_RETURN_IF_ERROR(disk.sync(file.value().id()).with_context("cannot sync '" + fresh + "'"));
  WEIR_RETURN_IF_ERROR(file.value().close());
  WEIR_RETURN_IF_ERROR(disk.rename(fresh, path));
  return disk.sync_directory(directory);
}

Status repair_metadata(Disk& disk, const std::vector<std::string>& directories,
                       const Metadata& metadata, uint64_t timeout_ms) {
  if (const MetadataCopy* blocked = metadata.blocked(); blocked != nullptr) {
    return Status(Code::kRefused,
                  fmt::format("something other than a file has the name '{}': move it elsewhere, "
                              "and the copy of the metadata is created again",
                              blocked->path));
  }
  for (size_t c = 0; c < metadata.copies.size(); ++c) {
    if (metadata.copies[c].good) continue;
    Header header = metadata.header;
    header.directory_index = static_cast<uint32_t>(c / kMetaCopies);
    WEIR_RETURN_IF_ERROR(
        write_metadata_file(disk, directories[c / kMetaCopies], c % kMetaCopies, header,
                            metadata.newest,
                            metadata.newest.sequence > 0 ? &metadata.older : nullptr, timeout_ms)
            .with_context("repair of the metadata"));
  }
  return {};
}

}  // namespace weir::offload
