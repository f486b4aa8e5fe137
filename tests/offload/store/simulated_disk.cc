// SPDX-License-Identifier: Apache-2.0
#include "offload/store/simulated_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace weir::offload {

namespace {

constexpr uint64_t kSectorBytes = 512;

std::string directory_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

// ---- SimulatedDrive -----------------------------------------------------------------------------

Status SimulatedDrive::event() {
  if (crashed_) return Status(Code::kAborted, "simulated crash");
  if (crash_at_event && events_ == *crash_at_event) {
    crashed_ = true;
    return Status(Code::kAborted, "simulated crash");
  }
  ++events_;
  return {};
}

Status SimulatedDrive::request(bool* bad) {
  if (crashed_) return Status(Code::kAborted, "simulated crash");
  *bad = fail_at_request && requests_ == *fail_at_request;
  fault_happened_ |= *bad;
  ++requests_;
  return {};
}

Status SimulatedDrive::fault_status(const std::string& what) const {
  switch (fault) {
    case FaultKind::kEio:
      return system_error(what, EIO);
    case FaultKind::kNoSpace:
      return system_error(what, ENOSPC);
    case FaultKind::kShort:
      return Status(Code::kRefused, what + ": short transfer");
  }
  return {};
}

void SimulatedDrive::apply_names(const NameChange& change,
                                 std::map<std::string, uint64_t>* names) const {
  for (const std::string& path : change.erased) names->erase(path);
  for (const auto& [path, inode] : change.set) (*names)[path] = inode;
}

void SimulatedDrive::change_names(NameChange change) {
  apply_names(change, &names_);
  name_log_.push_back(std::move(change));
}

uint64_t SimulatedDrive::used_bytes() const {
  std::set<uint64_t> named;
  for (const auto& [path, inode] : names_) named.insert(inode);
  uint64_t bytes = 0;
  for (const uint64_t inode : named) bytes += inodes_.at(inode).cached.size();
  return bytes;
}

void SimulatedDrive::store(std::vector<unsigned char>* content, uint64_t offset,
                           const std::vector<unsigned char>& data) {
  if (offset >= content->size()) return;
  const uint64_t bytes = std::min<uint64_t>(data.size(), content->size() - offset);
  std::memcpy(content->data() + offset, data.data(), bytes);
}

void SimulatedDrive::store_sectors(std::vector<unsigned char>* content, const Write& write) {
  for (uint64_t at = 0; at < write.data.size(); at += kSectorBytes) {
    if (draw(2) == 0) continue;
    const auto from = write.data.begin() + static_cast<ptrdiff_t>(at);
    store(content, write.offset + at, std::vector<unsigned char>(from, from + kSectorBytes));
  }
}

void SimulatedDrive::misdirect(const Write& write) {
  auto file = std::next(inodes_.begin(), static_cast<ptrdiff_t>(draw(inodes_.size())));
  Inode& inode = file->second;
  if (inode.durable.size() < kDiskAlignment) return;
  const uint64_t offset = draw(inode.durable.size() / kDiskAlignment) * kDiskAlignment;
  store(&inode.durable, offset, write.data);
  store(&inode.cached, offset, write.data);
}

void SimulatedDrive::power_cycle(CrashMode mode) {
  std::vector<const Write*> astray;
  std::vector<Write> all;
  for (auto& [id, inode] : inodes_) {
    std::vector<Write> writes = std::move(inode.unsynced);
    inode.unsynced.clear();
    if (mode == CrashMode::kReordered) std::shuffle(writes.begin(), writes.end(), random_);
    for (const Write& write : writes) {
      if (mode == CrashMode::kTorn) store_sectors(&inode.durable, write);
      if (mode == CrashMode::kReordered && draw(2) == 0) {
        store(&inode.durable, write.offset, write.data);
      }
      if (mode == CrashMode::kMisdirected) {
        if (draw(2) == 0) store(&inode.durable, write.offset, write.data);
        all.push_back(write);
      }
    }
    inode.cached = inode.durable;
  }
  if (!all.empty()) misdirect(all[draw(all.size())]);
  const uint64_t kept = mode == CrashMode::kDropped ? 0 : draw(name_log_.size() + 1);
  for (uint64_t i = 0; i < kept; ++i) apply_names(name_log_[i], &durable_names_);
  name_log_.clear();
  names_ = durable_names_;
  for (auto& [id, inode] : inodes_) inode.holder = 0;
  crashed_ = false;
  crash_at_event.reset();
  ++generation_;
}

void SimulatedDrive::kill_processes() {
  for (auto& [id, inode] : inodes_) {
    std::erase_if(inode.unsynced, [&](Write& write) {
      if (write.completed) return false;
      if (draw(2) == 0) return true;
      store(&inode.cached, write.offset, write.data);
      write.completed = true;
      return false;
    });
    inode.holder = 0;
  }
  crashed_ = false;
  crash_at_event.reset();
  ++generation_;
}

void SimulatedDrive::settle() {
  for (auto& [id, inode] : inodes_) {
    for (const Write& write : inode.unsynced) {
      if (write.completed) store(&inode.durable, write.offset, write.data);
    }
    std::erase_if(inode.unsynced, [](const Write& write) { return write.completed; });
  }
}

std::vector<unsigned char>* SimulatedDrive::content(const std::string& path) {
  const auto name = names_.find(path);
  return name == names_.end() ? nullptr : &inodes_[name->second].durable;
}

void SimulatedDrive::commit_edit(const std::string& path) {
  Inode& inode = inodes_[names_.at(path)];
  inode.cached = inode.durable;
}

void SimulatedDrive::erase(const std::string& path) {
  names_.erase(path);
  durable_names_.erase(path);
}

void SimulatedDrive::erase_directory(const std::string& path) {
  directories_.erase(path);
  for (const std::string& name : paths()) {
    if (directory_of(name) == path) erase(name);
  }
}

std::vector<std::string> SimulatedDrive::paths() const {
  std::vector<std::string> all;
  for (const auto& [path, inode] : names_) all.push_back(path);
  return all;
}

uint64_t SimulatedDrive::link_count(const std::string& path) const {
  const auto name = names_.find(path);
  if (name == names_.end()) return 0;
  return static_cast<uint64_t>(std::count_if(
      names_.begin(), names_.end(), [&](const auto& one) { return one.second == name->second; }));
}

std::unique_ptr<SimulatedDrive> SimulatedDrive::copy(uint64_t seed) const {
  auto other = std::make_unique<SimulatedDrive>(*this);
  other->random_.seed(seed);
  return other;
}

// ---- SimulatedDisk ------------------------------------------------------------------------------

SimulatedDisk::SimulatedDisk(SimulatedDrive& drive, uint32_t depth)
    : drive_(drive),
      depth_(depth),
      process_(drive.next_process_++),
      generation_(drive.generation_) {}

SimulatedDisk::~SimulatedDisk() = default;

uint32_t SimulatedDisk::open_files() const {
  return static_cast<uint32_t>(
      std::count_if(files_.begin(), files_.end(), [](const Open& file) { return file.used; }));
}

Status SimulatedDisk::alive() const {
  if (generation_ == drive_.generation_) return {};
  return Status(Code::kAborted, "this process is dead");
}

Status SimulatedDisk::ask(const std::string& what) {
  WEIR_RETURN_IF_ERROR(alive());
  bool bad = false;
  WEIR_RETURN_IF_ERROR(drive_.request(&bad));
  return bad ? drive_.fault_status(what) : Status();
}

Result<FileId> SimulatedDisk::open(const std::string& path, OpenMode mode, uint64_t bytes) {
  WEIR_RETURN_IF_ERROR(ask("open '" + path + "'"));
  if (drive_.forbidden.contains(path)) return system_error("cannot open '" + path + "'", EACCES);
  if (mode == OpenMode::kCreate) {
    if (!drive_.directories_.contains(directory_of(path))) {
      return system_error("cannot create '" + path + "'", ENOENT);
    }
    if (drive_.forbidden.contains(directory_of(path))) {
      return system_error("cannot create '" + path + "'", EACCES);
    }
    if (drive_.names_.contains(path)) return system_error("cannot create '" + path + "'", EEXIST);
    if (drive_.used_bytes() + bytes > drive_.capacity_bytes) {
      return system_error("cannot allocate '" + path + "'", ENOSPC);
    }
    WEIR_RETURN_IF_ERROR(drive_.event());
    const uint64_t id = drive_.next_inode_++;
    SimulatedDrive::Inode& inode = drive_.inodes_[id];
    inode.durable.assign(bytes, 0);
    inode.cached = inode.durable;
    drive_.change_names({{{path, id}}, {}});
  }
  const auto name = drive_.names_.find(path);
  if (name == drive_.names_.end()) return system_error("cannot open '" + path + "'", ENOENT);
  const Open file{name->second, mode != OpenMode::kReadOnly, true};
  for (FileId id = 0; id < files_.size(); ++id) {
    if (files_[id].used) continue;
    files_[id] = file;
    return id;
  }
  files_.push_back(file);
  return static_cast<FileId>(files_.size() - 1);
}

Status SimulatedDisk::close(FileId file) {
  WEIR_CHECK(file < files_.size() && files_[file].used, "a file is closed twice");
  for (const Queued& queued : queue_) {
    if (queued.transfer.file == file) return Status(Code::kInvalidUsage, "transfers are under way");
  }
  files_[file].used = false;
  WEIR_RETURN_IF_ERROR(alive());
  SimulatedDrive::Inode& inode = drive_.inodes_[files_[file].inode];
  if (inode.holder == (process_ << 32 | (file + 1))) inode.holder = 0;
  return {};
}

Result<uint64_t> SimulatedDisk::size(FileId file) {
  WEIR_RETURN_IF_ERROR(ask("size"));
  return uint64_t{drive_.inodes_[files_[file].inode].cached.size()};
}

Status SimulatedDisk::truncate(FileId file, uint64_t bytes) {
  WEIR_RETURN_IF_ERROR(ask("truncate"));
  WEIR_RETURN_IF_ERROR(drive_.event());
  SimulatedDrive::Inode& inode = drive_.inodes_[files_[file].inode];
  for (std::vector<unsigned char>* content : {&inode.durable, &inode.cached}) {
    content->resize(std::min<uint64_t>(bytes, content->size()));
  }
  return {};
}

Result<bool> SimulatedDisk::is_name_of(const std::string& path, FileId file) {
  WEIR_RETURN_IF_ERROR(ask("is name '" + path + "'"));
  const auto name = drive_.names_.find(path);
  return name != drive_.names_.end() && name->second == files_[file].inode;
}

Status SimulatedDisk::lock(FileId file) {
  WEIR_RETURN_IF_ERROR(ask("lock"));
  SimulatedDrive::Inode& inode = drive_.inodes_[files_[file].inode];
  if (inode.holder != 0) return Status(Code::kRefused, "locked by another");
  inode.holder = process_ << 32 | (file + 1);
  return {};
}

Status SimulatedDisk::make_directory(const std::string& path) {
  WEIR_RETURN_IF_ERROR(ask("make directory"));
  if (drive_.forbidden.contains(directory_of(path))) {
    return system_error("cannot make directory '" + path + "'", EACCES);
  }
  drive_.directories_.insert(path);
  return {};
}

Result<std::vector<std::string>> SimulatedDisk::list(const std::string& directory) {
  WEIR_RETURN_IF_ERROR(ask("list"));
  std::vector<std::string> names;
  for (const auto& [path, inode] : drive_.names_) {
    if (directory_of(path) == directory) names.push_back(path.substr(directory.size() + 1));
  }
  return names;
}

Result<bool> SimulatedDisk::exists(const std::string& path) {
  WEIR_RETURN_IF_ERROR(ask("exists '" + path + "'"));
  return drive_.names_.contains(path) || drive_.directories_.contains(path);
}

Status SimulatedDisk::rename(const std::string& from, const std::string& to) {
  WEIR_RETURN_IF_ERROR(ask("rename '" + from + "'"));
  if (!drive_.names_.contains(from)) return system_error("rename '" + from + "'", ENOENT);
  WEIR_RETURN_IF_ERROR(drive_.event());
  drive_.change_names({{{to, drive_.names_[from]}}, {from}});
  return {};
}

Status SimulatedDisk::remove(const std::string& path) {
  WEIR_RETURN_IF_ERROR(ask("remove '" + path + "'"));
  if (drive_.directories_.contains(path)) {
    for (const auto& [name, inode] : drive_.names_) {
      if (directory_of(name) == path) return system_error("remove '" + path + "'", ENOTEMPTY);
    }
    WEIR_RETURN_IF_ERROR(drive_.event());
    drive_.directories_.erase(path);
    return {};
  }
  if (!drive_.names_.contains(path)) return system_error("remove '" + path + "'", ENOENT);
  WEIR_RETURN_IF_ERROR(drive_.event());
  drive_.change_names({{}, {path}});
  return {};
}

Status SimulatedDisk::link(const std::string& from, const std::string& to) {
  WEIR_RETURN_IF_ERROR(ask("link '" + from + "'"));
  if (!drive_.links) return Status(Code::kUnsupported, "no links here");
  if (!drive_.names_.contains(from)) return system_error("link '" + from + "'", ENOENT);
  WEIR_RETURN_IF_ERROR(drive_.event());
  drive_.change_names({{{to, drive_.names_[from]}}, {}});
  return {};
}

Status SimulatedDisk::clone(const std::string& from, const std::string& to) {
  WEIR_RETURN_IF_ERROR(ask("clone '" + from + "'"));
  if (!drive_.clones) return Status(Code::kUnsupported, "no reflinks here");
  if (!drive_.names_.contains(from)) return system_error("clone '" + from + "'", ENOENT);
  WEIR_RETURN_IF_ERROR(drive_.event());
  const uint64_t id = drive_.next_inode_++;
  SimulatedDrive::Inode& copy = drive_.inodes_[id];
  copy.cached = drive_.inodes_[drive_.names_[from]].cached;
  copy.durable.assign(copy.cached.size(), 0);
  copy.unsynced.push_back({drive_.next_write_++, 0, copy.cached, true});
  drive_.change_names({{{to, id}}, {}});
  return {};
}

Result<uint64_t> SimulatedDisk::free_bytes(const std::string&) {
  WEIR_RETURN_IF_ERROR(ask("free bytes"));
  return drive_.capacity_bytes - std::min(drive_.capacity_bytes, drive_.used_bytes());
}

Status SimulatedDisk::sync_directory(const std::string& directory) {
  WEIR_RETURN_IF_ERROR(ask("sync '" + directory + "'"));
  WEIR_RETURN_IF_ERROR(drive_.event());
  // A journal: what came before in the log goes with it.
  size_t last = 0;
  for (size_t i = 0; i < drive_.name_log_.size(); ++i) {
    const SimulatedDrive::NameChange& change = drive_.name_log_[i];
    bool touched = false;
    for (const auto& [path, inode] : change.set) touched |= directory_of(path) == directory;
    for (const std::string& path : change.erased) touched |= directory_of(path) == directory;
    if (touched) last = i + 1;
  }
  for (size_t i = 0; i < last; ++i) {
    drive_.apply_names(drive_.name_log_[i], &drive_.durable_names_);
  }
  drive_.name_log_.erase(drive_.name_log_.begin(),
                         drive_.name_log_.begin() + static_cast<ptrdiff_t>(last));
  return {};
}

Result<uint32_t> SimulatedDisk::submit(std::span<const Transfer> transfers) {
  WEIR_RETURN_IF_ERROR(alive());
  uint32_t taken = 0;
  for (const Transfer& transfer : transfers) {
    if (queue_.size() == depth_) break;
    WEIR_CHECK(transfer.file < files_.size() && files_[transfer.file].used, "file is not open");
    WEIR_CHECK(transfer.offset_bytes % kDiskAlignment == 0 &&
                   transfer.bytes % kDiskAlignment == 0 && transfer.bytes > 0 &&
                   reinterpret_cast<uintptr_t>(transfer.buffer) % kDiskAlignment == 0,
               "a transfer is not aligned");
    WEIR_CHECK(!transfer.write || files_[transfer.file].writable, "write to a read-only file");
    Queued queued{transfer, files_[transfer.file].inode, 0, false};
    if (Status status = drive_.request(&queued.bad); !status.ok()) {
      if (taken > 0) break;
      return status;
    }
    if (transfer.write) {
      if (Status status = drive_.event(); !status.ok()) {
        if (taken > 0) break;
        return status;
      }
      SimulatedDrive::Write write;
      write.id = queued.write = drive_.next_write_++;
      write.offset = transfer.offset_bytes;
      write.data.assign(transfer.buffer, transfer.buffer + transfer.bytes);
      if (queued.bad) {
        if (drive_.fault == FaultKind::kNoSpace) write.data.clear();
        if (drive_.fault != FaultKind::kNoSpace) {
          write.data.resize(drive_.draw(write.data.size() / kSectorBytes) * kSectorBytes);
        }
      }
      if (drive_.misdirect_at_write && drive_.writes_ == *drive_.misdirect_at_write) {
        drive_.misdirect(write);
        write.data.clear();
      }
      ++drive_.writes_;
      drive_.inodes_[queued.inode].unsynced.push_back(std::move(write));
    }
    queue_.push_back(queued);
    ++taken;
  }
  return taken;
}

Status SimulatedDisk::complete(const Queued& queued) {
  if (drive_.crashed_ || !alive().ok()) return Status(Code::kAborted, "simulated crash");
  SimulatedDrive::Inode& inode = drive_.inodes_[queued.inode];
  const Transfer& transfer = queued.transfer;
  if (transfer.write) {
    for (SimulatedDrive::Write& write : inode.unsynced) {
      if (write.id != queued.write) continue;
      SimulatedDrive::store(&inode.cached, write.offset, write.data);
      write.completed = true;
    }
    if (queued.bad) return drive_.fault_status("write");
    return transfer.offset_bytes + transfer.bytes > inode.cached.size()
               ? system_error("write behind the end", EFBIG)
               : Status();
  }
  if (queued.bad) return drive_.fault_status("read");
  if (transfer.offset_bytes + transfer.bytes > inode.cached.size()) {
    return Status(Code::kRefused, "the file ends before the read did");
  }
  std::memcpy(transfer.buffer, inode.cached.data() + transfer.offset_bytes, transfer.bytes);
  return {};
}

Status SimulatedDisk::reap(uint32_t least, uint64_t, std::vector<Completion>* done) {
  uint32_t reaped = 0;
  while (!queue_.empty() && (reaped < least || drive_.draw(3) == 0)) {
    const auto at = queue_.begin() + static_cast<ptrdiff_t>(drive_.draw(queue_.size()));
    const Queued queued = *at;
    queue_.erase(at);
    done->push_back({queued.transfer.tag, complete(queued)});
    ++reaped;
  }
  return {};
}

Status SimulatedDisk::sync(FileId file) {
  WEIR_RETURN_IF_ERROR(alive());
  bool bad = false;
  WEIR_RETURN_IF_ERROR(drive_.request(&bad));
  WEIR_RETURN_IF_ERROR(drive_.event());
  SimulatedDrive::Inode& inode = drive_.inodes_[files_[file].inode];
  for (const SimulatedDrive::Write& write : inode.unsynced) {
    if (write.completed && !bad) SimulatedDrive::store(&inode.durable, write.offset, write.data);
  }
  std::erase_if(inode.unsynced, [](const SimulatedDrive::Write& write) { return write.completed; });
  return bad ? drive_.fault_status("sync") : Status();
}

}  // namespace weir::offload
