// SPDX-License-Identifier: Apache-2.0
#include "core/comm/record/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/comm/record/record_folder.h"

namespace weir::comm {

namespace {

constexpr uint64_t kWaitRefreshNs = 20'000'000;

// The files of this process that a process which ends in order removes: those of communicators that
// were neither destroyed nor broken. Never destroyed, since other threads may go on until the end.
struct OpenFiles {
  std::mutex lock;
  std::set<Recorder*> recorders;
  bool tidied = false;           // the folder
  bool removed_at_exit = false;  // a handler of exit() is registered
};
OpenFiles& open_files() {
  static constinit PerProcess<OpenFiles> files;
  return files.get();
}

void remove_at_exit() {
  OpenFiles& files = open_files();
  std::unique_lock lock(files.lock, std::try_to_lock);
  if (!lock.owns_lock()) return;
  files.removed_at_exit = false;  // later exit handlers may make further ones
  for (const Recorder* recorder : files.recorders) {
    if (recorder->on() && recorder->idle()) unlink(recorder->path().c_str());
  }
}

void enlist(Recorder* recorder) {
  OpenFiles& files = open_files();
  std::lock_guard lock(files.lock);
  if (!std::exchange(files.removed_at_exit, true)) (void)std::atexit(remove_at_exit);
  files.recorders.insert(recorder);
}

void delist(Recorder* recorder) {
  OpenFiles& files = open_files();
  std::lock_guard lock(files.lock);
  files.recorders.erase(recorder);
}

bool is_first_to_tidy() {
  OpenFiles& files = open_files();
  std::lock_guard lock(files.lock);
  return !std::exchange(files.tidied, true);
}

void copy_text(char* to, size_t bytes, std::string_view from) {
  const size_t length = std::min(bytes - 1, from.size());
  if (length > 0) std::memcpy(to, from.data(), length);
  std::memset(to + length, 0, bytes - length);
}

template <size_t kWords>
void store_text(std::atomic<uint64_t> (&to)[kWords], std::string_view from) {
  char text[kWords * sizeof(uint64_t)];
  copy_text(text, sizeof text, from);
  for (size_t i = 0; i < kWords; ++i) {
    uint64_t word;
    std::memcpy(&word, text + i * sizeof word, sizeof word);
    to[i].store(word, std::memory_order_relaxed);
  }
}

void store(ClockSample& to, const ClockReading& from) {
  to.ticks.store(from.ticks, std::memory_order_relaxed);
  to.monotonic_ns.store(from.monotonic_ns, std::memory_order_relaxed);
  to.wall_ns.store(from.wall_ns, std::memory_order_relaxed);
}

std::string encode(const std::vector<PeerWay>& ways) {
  std::string bytes;
  for (const PeerWay& way : ways) {
    const size_t length = std::min(way.text.size(), kWayTextBytesMax);
    if (length == 0) continue;
    const size_t room = std::min(std::max(length, way.room), kWayTextBytesMax);
    if (bytes.size() + kWayHeaderBytes + room > kWaysBytesMax) break;
    const uint32_t peer = way.peer;
    const auto text_bytes = static_cast<uint16_t>(room);
    bytes.append(reinterpret_cast<const char*>(&peer), sizeof peer);
    bytes.append(reinterpret_cast<const char*>(&text_bytes), sizeof text_bytes);
    bytes.append(way.text, 0, length);
    bytes.append(room - length, '\0');
  }
  return bytes;
}

// Writes the peer's text where `encode` has left room for it. Who reads meanwhile may see half of
// each.
void rewrite(unsigned char* at, size_t bytes, Rank peer, const std::string& text) {
  while (bytes >= kWayHeaderBytes) {
    uint32_t entry_peer;
    uint16_t room;
    std::memcpy(&entry_peer, at, sizeof entry_peer);
    std::memcpy(&room, at + sizeof entry_peer, sizeof room);
    if (room > kWayTextBytesMax || room > bytes - kWayHeaderBytes) return;  // not what we wrote
    if (entry_peer == peer) {
      char padded[kWayTextBytesMax] = {};
      std::memcpy(padded, text.data(), std::min<size_t>(text.size(), room));
      if (std::memcmp(at + kWayHeaderBytes, padded, room) != 0) {
        std::memcpy(at + kWayHeaderBytes, padded, room);
      }
      return;
    }
    at += kWayHeaderBytes + room;
    bytes -= kWayHeaderBytes + room;
  }
}

// A new file of zeros with its memory in place, mapped; nullptr and errno otherwise.
RecordFile* make_file(int folder, const std::string& name, size_t bytes) {
  const int file =
      openat(folder, name.c_str(), O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  // A full file system must be met here: later it would be a signal in the middle of a store.
  errno = posix_fallocate(file, 0, static_cast<off_t>(bytes));
  if (errno == 0) {
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  }
  const int error = errno;
  close(file);
  if (memory != MAP_FAILED) return static_cast<RecordFile*>(memory);
  unlinkat(folder, name.c_str(), 0);
  errno = error;
  return nullptr;
}

}  // namespace

ClockReading ClockReading::now() {
  timespec wall;
  clock_gettime(CLOCK_REALTIME, &wall);
  return {
      comm::ticks(), now_ns(),
      static_cast<uint64_t>(wall.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(wall.tv_nsec)};
}

void Recorder::open(const RecorderIdentity& identity, const std::string& folder) {
  RecordName name;
  name.process = getpid();
  name.process_start = process_start_of(name.process);
  name.instance = identity.instance;
  name.rank = identity.rank;

  const std::string ways = encode(identity.ways);
  const size_t file_bytes = sizeof(RecordFile) + ways.size();
  std::string place;
  RecordFile* file = nullptr;
  int error = 0;
  // The last file of another process may have taken the folder with it meanwhile.
  for (int attempt = 0; attempt < 3 && file == nullptr; ++attempt) {
    Result<int> opened = open_any_record_folder(folder, true, &place);
    if (!opened.ok()) {
      log_info(
          fmt::format("no recorder for communicator '{}': {}; set WEIR_RECORDER_DIR to another "
                      "folder, or WEIR_RECORDER=0 to turn the recorder off",
                      identity.name, opened.status().text()));
      return;
    }
    if (is_first_to_tidy()) tidy_record_folder(opened.value());
    file = make_file(opened.value(), name.text(), file_bytes);
    error = errno;
    ::close(opened.value());
    if (file == nullptr && error != ENOENT) break;
  }
  if (file == nullptr) {
    log_info(fmt::format("no recorder for communicator '{}': {}/{}: {}", identity.name, place,
                         name.text(), std::strerror(error)));
    return;
  }

  file->version = kRecordVersion;
  file->byte_order = kRecordByteOrder;
  file->file_bytes = file_bytes;
  file->ways_bytes = static_cast<uint32_t>(ways.size());
  if (!ways.empty())
    std::memcpy(reinterpret_cast<char*>(file) + sizeof(RecordFile), ways.data(), ways.size());
  file->comm_id = identity.comm_id;
  file->instance = identity.instance;
  file->rank = identity.rank;
  file->rank_count = identity.rank_count;
  file->process = static_cast<uint32_t>(name.process);
  file->user = geteuid();
  file->process_start = name.process_start;
  file->pid_namespace = pid_namespace_of_self();
  copy_text(file->boot_id, sizeof file->boot_id, boot_id_of_machine());
  char host[sizeof file->host] = {};
  gethostname(host, sizeof host - 1);
  copy_text(file->host, sizeof file->host, host);
  copy_text(file->name, sizeof file->name, identity.name);
  copy_text(file->program, sizeof file->program, program_invocation_short_name);
  copy_text(file->transport, sizeof file->transport, identity.transport);
  store(file->made, identity.earlier);
  file->start_ns[0] = identity.start.rendezvous_ns;
  file->start_ns[1] = identity.start.handshake_ns;
  file->start_ns[2] = identity.start.exchange_ns;
  file->start_ns[3] = identity.start.connect_ns;
  file->start_ns[4] = identity.start.costs_ns;
  store(file->latest, ClockReading::now());
  file->state.store(static_cast<uint32_t>(RecordState::kOpen), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(file->magic, kRecordMagic, sizeof file->magic);

  maker_.emplace();
  // The process may change its directory before the file is to go.
  std::error_code ignored;
  path_ = (std::filesystem::absolute(place, ignored) / name.text()).string();
  folder_ = folder.empty() ? place : std::string();
  file_ = file;
  file_bytes_ = file_bytes;
  enlist(this);
}

void Recorder::close() {
  if (file_ == nullptr) return;
  const bool is_ours = maker_->is_this();
  if (is_ours) delist(this);
  RecordFile* file = file_;
  file_ = nullptr;
  const bool keep =
      file->state.load(std::memory_order_relaxed) != static_cast<uint32_t>(RecordState::kOpen);
  munmap(file, file_bytes_);
  if (!is_ours || keep) return;
  unlink(path_.c_str());
  if (!folder_.empty()) rmdir(folder_.c_str());  // only when it is empty
  path_.clear();
}

bool Recorder::idle() const {
  const uint64_t completed = file_->completed.load(std::memory_order_relaxed);
  const uint64_t next =
      file_->operations[(completed + 1) % kOperationRecords].flag.load(std::memory_order_relaxed);
  return next >> 32 != (completed + 1) % (uint64_t{1} << 32) &&
         file_->wait.kind.load(std::memory_order_relaxed) == 0 &&
         file_->state.load(std::memory_order_relaxed) == static_cast<uint32_t>(RecordState::kOpen);
}

uint64_t Recorder::message_begun(RecordKind kind, Rank peer, uint64_t bytes) {
  return write_message(kind, peer, bytes, false);
}

void Recorder::message_done(RecordKind kind, Rank peer, uint64_t bytes) {
  write_message(kind, peer, bytes, true);
}

uint64_t Recorder::write_message(RecordKind kind, Rank peer, uint64_t bytes, bool is_done) {
  const uint64_t number = message_count_.fetch_add(1, std::memory_order_relaxed) + 1;
  MessageRecord& record = file_->messages[number % kMessageRecords];
  record.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  record.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  record.peer.store(peer, std::memory_order_relaxed);
  record.bytes.store(bytes, std::memory_order_relaxed);
  const uint64_t now = comm::ticks();
  record.begin_ticks.store(now, std::memory_order_relaxed);
  record.end_ticks.store(is_done ? now : 0, std::memory_order_relaxed);
  record.number.store(number, std::memory_order_release);
  return number;
}

void Recorder::message_finished(uint64_t number) {
  MessageRecord& record = file_->messages[number % kMessageRecords];
  // Its place may have been taken by a later message.
  if (record.number.load(std::memory_order_relaxed) != number) return;
  record.end_ticks.store(comm::ticks(), std::memory_order_relaxed);
}

bool Recorder::looked(uint64_t since_ns, uint64_t now_ns) {
  file_->looked_ns.store(now_ns, std::memory_order_relaxed);
  return now_ns - since_ns >= kLongWaitNs && now_ns - waits_written_ns_ >= kWaitRefreshNs;
}

void Recorder::looked_after() {
  sample_clocks();
  file_->looked_ns.store(file_->latest.monotonic_ns.load(std::memory_order_relaxed),
                         std::memory_order_relaxed);
}

void Recorder::waits(const Wait& wait, uint64_t now_ns) {
  waits_written_ns_ = now_ns;
  waiting_ = true;
  waited_message_.store(is_message(wait.kind) ? wait.sequence : 0, std::memory_order_relaxed);
  sample_clocks();
  WaitBlock& block = file_->wait;
  const uint64_t version = block.version.load(std::memory_order_relaxed);
  block.version.store(version + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  block.sequence.store(wait.sequence, std::memory_order_relaxed);
  block.what.store(wait.what, std::memory_order_relaxed);
  block.count.store(wait.count, std::memory_order_relaxed);
  block.since_ns.store(wait.since_ns, std::memory_order_relaxed);
  block.slice.store(wait.slice, std::memory_order_relaxed);
  block.slice_count.store(wait.slice_count, std::memory_order_relaxed);
  block.kind.store(static_cast<uint32_t>(wait.kind), std::memory_order_relaxed);
  block.step.store(wait.step, std::memory_order_relaxed);
  block.step_count.store(wait.step_count, std::memory_order_relaxed);
  block.awaited_count.store(static_cast<uint32_t>(wait.awaited.size()), std::memory_order_relaxed);
  const size_t listed = std::min<size_t>(wait.awaited.size(), kAwaitedRanksMax);
  for (size_t i = 0; i < listed; ++i) {
    block.awaited[i].store(wait.awaited[i], std::memory_order_relaxed);
  }
  store_text(block.algorithm, wait.algorithm);
  store_text(block.protocol, wait.protocol);
  block.version.store(version + 2, std::memory_order_release);
}

void Recorder::end_wait() {
  waiting_ = false;
  waits_written_ns_ = 0;
  waited_message_.store(0, std::memory_order_relaxed);
  file_->wait.kind.store(static_cast<uint32_t>(RecordKind::kNothing), std::memory_order_release);
}

void Recorder::sample_clocks() { store(file_->latest, ClockReading::now()); }

void Recorder::way_changed(Rank peer, const std::string& text) {
  if (file_ == nullptr || text.empty()) return;
  rewrite(reinterpret_cast<unsigned char*>(file_) + sizeof(RecordFile), file_->ways_bytes, peer,
          text);
}

void Recorder::failed(const Status& status) {
  if (file_ == nullptr) return;
  sample_clocks();
  copy_text(file_->why, sizeof file_->why, status.text());
  file_->code.store(static_cast<uint32_t>(status.code()), std::memory_order_relaxed);
  const RecordState state =
      status.code() == Code::kAborted ? RecordState::kAborted : RecordState::kFailed;
  file_->state.store(static_cast<uint32_t>(state), std::memory_order_release);
}

void Recorder::aborted() {
  if (file_ == nullptr) return;
  auto open = static_cast<uint32_t>(RecordState::kOpen);
  file_->code.store(static_cast<uint32_t>(Code::kAborted), std::memory_order_relaxed);
  file_->state.compare_exchange_strong(open, static_cast<uint32_t>(RecordState::kAborted));
}

}  // namespace weir::comm
