// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_flags.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "core/base/per_process.h"
#include "core/comm/stream/stream_program.h"

namespace weir::comm {

namespace {

// All that this process has mapped. Streams may use it until the process ends: never destroyed.
struct Mapped {
  std::mutex lock;
  std::vector<std::shared_ptr<StreamFlags>> all;
  std::vector<StreamFlagsKey> keys;  // of `all`
  std::vector<bool> made_here;
};

// Of pieces that this process has made and uses no more, and that a rank has not left, so many keep
// their descriptors. A rank that has died never leaves.
constexpr size_t kUnleftMax = 4;

Mapped& mapped() {
  static constinit PerProcess<Mapped> it;
  return it.get();
}

Status failed(const char* call) {
  return Status(Code::kSystem,
                fmt::format("memory for flags of streams: {}: {}", call, std::strerror(errno)));
}

}  // namespace

uint64_t StreamFlags::bytes_for(Rank rank_count) {
  const uint64_t bytes = kLine + rank_count * kRecords * sizeof(Record) +
                         uint64_t{StreamProgram::flag_count(rank_count)} * kLine +
                         rank_count * kLine + uint64_t{rank_count} * rank_count * kPairBytes;
  return (bytes + 4095) / 4096 * 4096;
}

uint64_t StreamFlags::stops_offset() const {
  return offset_of(StreamProgram::flag_count(rank_count_));
}

StreamFlags::~StreamFlags() {
  if (memory_ != nullptr) (void)munmap(memory_, bytes_);
  if (descriptor_ >= 0) (void)close(descriptor_);
}

void StreamFlags::reset() {
  std::memset(memory_ + kLine, 0, bytes_ - kLine);
  for (uint32_t i = 1; i < StreamProgram::pair_flag_count(rank_count_); i += 2) flag(i).store(1);
}

Result<std::shared_ptr<StreamFlags>> StreamFlags::make(Rank rank_count, StreamFlagsKey* key,
                                                       int* descriptor) {
  Mapped& it = mapped();
  std::lock_guard lock(it.lock);
  for (size_t i = 0; i < it.all.size(); ++i) {
    StreamFlags& known = *it.all[i];
    if (!it.made_here[i] || known.rank_count_ != rank_count || !known.is_left()) continue;
    known.words()[1].fetch_add(1);
    known.enter();
    known.reset();
    *key = it.keys[i];
    *descriptor = known.descriptor_;
    return it.all[i];
  }
  size_t unleft = 0;
  for (size_t i = it.all.size(); i-- > 0;) {
    StreamFlags& known = *it.all[i];
    if (!it.made_here[i] || it.all[i].use_count() > 1 || known.is_left()) continue;
    if (++unleft <= kUnleftMax) continue;
    (void)close(std::exchange(known.descriptor_, -1));
    it.made_here[i] = false;
  }
  if (getrandom(key->data(), key->size(), 0) != static_cast<ssize_t>(key->size())) {
    return failed("getrandom");
  }
  const uint64_t bytes = bytes_for(rank_count);
  const int fd = memfd_create("weir-flags", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return failed("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const Status status = failed("ftruncate");
    (void)close(fd);
    return status;
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    const Status status = failed("mmap");
    (void)close(fd);
    return status;
  }
  std::shared_ptr<StreamFlags> made(new StreamFlags());
  made->memory_ = static_cast<char*>(memory);
  made->bytes_ = bytes;
  made->rank_count_ = rank_count;
  made->flags_offset_ = kLine + rank_count * kRecords * sizeof(Record);
  made->descriptor_ = fd;
  made->key_ = *key;
  made->enter();
  made->reset();
  *descriptor = fd;
  it.all.push_back(made);
  it.keys.push_back(*key);
  it.made_here.push_back(true);
  return made;
}

std::shared_ptr<StreamFlags> StreamFlags::find(const StreamFlagsKey& key) {
  Mapped& it = mapped();
  std::lock_guard lock(it.lock);
  const auto found = std::find(it.keys.begin(), it.keys.end(), key);
  return found == it.keys.end() ? nullptr : it.all[static_cast<size_t>(found - it.keys.begin())];
}

Result<std::shared_ptr<StreamFlags>> StreamFlags::map(const StreamFlagsKey& key, int descriptor,
                                                      Rank rank_count) {
  struct stat status {};
  const uint64_t bytes = bytes_for(rank_count);
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (fstat(descriptor, &status) != 0 || static_cast<uint64_t>(status.st_size) != bytes ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(Code::kRefused,
                  "memory for flags of streams: rank 0 has sent a file of another kind or size");
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) return failed("mmap");
  std::shared_ptr<StreamFlags> made(new StreamFlags());
  made->memory_ = static_cast<char*>(memory);
  made->bytes_ = bytes;
  made->rank_count_ = rank_count;
  made->flags_offset_ = kLine + rank_count * kRecords * sizeof(Record);
  made->key_ = key;
  Mapped& it = mapped();
  std::lock_guard lock(it.lock);
  const auto found = std::find(it.keys.begin(), it.keys.end(), key);
  if (found != it.keys.end()) return it.all[static_cast<size_t>(found - it.keys.begin())];
  it.all.push_back(made);
  it.keys.push_back(key);
  it.made_here.push_back(false);
  return made;
}

void StreamFlags::note_call(Rank rank, uint64_t number, uint64_t what, uint64_t count,
                            uint32_t fingerprint) {
  Record& it = record(rank, number);
  it.number.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  it.what = what;
  it.count = count;
  it.fingerprint = fingerprint;
  it.number.store(number, std::memory_order_release);
}

bool StreamFlags::read_call(Rank rank, uint64_t number, uint64_t* what, uint64_t* count,
                            uint32_t* fingerprint) const {
  const Record& it = record(rank, number);
  if (it.number.load(std::memory_order_acquire) != number) return false;
  *what = it.what;
  *count = it.count;
  *fingerprint = static_cast<uint32_t>(it.fingerprint);
  // Ranks that are far ahead write new calls over those that are read here.
  std::atomic_thread_fence(std::memory_order_acquire);
  return it.number.load(std::memory_order_relaxed) == number;
}

}  // namespace weir::comm
