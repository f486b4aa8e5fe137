// SPDX-License-Identifier: Apache-2.0
#include "offload/io/disk_probe.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "offload/io/arena.h"

namespace weir::offload {
namespace {

struct Phase {
  double read_share = 0;
  uint64_t end_ns = 0;           // nothing is submitted after it
  uint64_t write_bytes_max = 0;  // 0: wrap around in the file until end_ns
};

struct Moved {
  uint64_t read_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t ns = 0;
  double per_second(uint64_t bytes) const {
    return ns == 0 ? 0 : static_cast<double>(bytes) * 1e9 / static_cast<double>(ns);
  }
};

class Probe {
 public:
  Probe(Disk* disk, const DiskProbeOptions& options) : disk_(*disk), options_(options) {}
  ~Probe() {
    if (open_) (void)disk_.close(file_);
  }
  Probe(const Probe&) = delete;
  Probe& operator=(const Probe&) = delete;

  Status prepare(Arena* arena);
  Result<Moved> run(const Phase& phase);
  // Later phases use only the first `bytes` bytes of the file.
  void limit(uint64_t bytes) { file_bytes_ = bytes; }
  uint64_t file_bytes() const { return file_bytes_; }
  // After an error: waits for transfers under way, or gives up their buffers.
  void drain();

 private:
  Transfer next(bool write, uint32_t buffer);
  Status collect(Moved* moved);

  Disk& disk_;
  const DiskProbeOptions& options_;
  FileId file_ = 0;
  bool open_ = false;
  uint64_t file_bytes_ = 0;
  uint64_t read_at_ = 0;
  uint64_t write_at_ = 0;
  std::vector<ArenaBuffer> buffers_;
  std::vector<bool> writes_;  // by buffer: its transfer
  std::vector<uint32_t> idle_;
};

Status Probe::prepare(Arena* arena) {
  const uint64_t unit = options_.transfer_bytes;
  const Result<uint64_t> available = disk_.free_bytes(options_.directory);
  if (!available.ok()) return available.status();
  file_bytes_ = std::min(options_.file_bytes, available.value() / 2) / unit * unit;
  if (file_bytes_ == 0)
    return Status(
        Code::kSystem,
        fmt::format("probe of '{}': {} bytes are free, a transfer of {} takes at most half "
                    "of them",
                    options_.directory, available.value(), unit));
  const uint32_t depth = std::min(options_.depth, disk_.depth());
  for (uint32_t i = 0; i < depth; ++i) {
    Result<ArenaBuffer> buffer = arena->allocate(unit);
    if (!buffer.ok()) return buffer.status().with_context("probe of a disk");
    // Not zeros: a disk may treat them specially.
    uint64_t word = 0x9e3779b97f4a7c15u + i;
    for (uint64_t at = 0; at < unit; at += sizeof(word)) {
      word ^= word << 13;
      word ^= word >> 7;
      word ^= word << 17;
      std::copy_n(reinterpret_cast<const unsigned char*>(&word), sizeof(word),
                  buffer.value().data() + at);
    }
    buffers_.push_back(buffer.take());
    idle_.push_back(i);
  }
  writes_.resize(depth);
  static std::atomic<uint32_t> count{0};
  const std::string path = fmt::format("{}/.weir_probe_{}_{}", options_.directory, getpid(),
                                       count.fetch_add(1, std::memory_order_relaxed));
  const Result<FileId> file = disk_.open(path, OpenMode::kCreate, file_bytes_);
  if (!file.ok()) return file.status();
  file_ = file.value();
  open_ = true;
  return disk_.remove(path);
}

Transfer Probe::next(bool write, uint32_t buffer) {
  uint64_t& at = write ? write_at_ : read_at_;
  if (at + options_.transfer_bytes > file_bytes_) at = 0;
  writes_[buffer] = write;
  const Transfer transfer{.write = write,
                          .file = file_,
                          .offset_bytes = at,
                          .buffer = buffers_[buffer].data(),
                          .bytes = options_.transfer_bytes,
                          .tag = buffer};
  at += options_.transfer_bytes;
  return transfer;
}

Status Probe::collect(Moved* moved) {
  std::vector<Completion> done;
  const Status reaped = disk_.reap(1, now_ns() + options_.timeout_ms * 1'000'000u, &done);
  Status first;
  for (const Completion& one : done) {
    WEIR_CHECK(one.tag < buffers_.size(), "the disk completes what it was given");
    idle_.push_back(static_cast<uint32_t>(one.tag));
    if (one.status.ok())
      (writes_[one.tag] ? moved->written_bytes : moved->read_bytes) += options_.transfer_bytes;
    else if (first.ok())
      first = one.status;
  }
  return first.ok() ? reaped : first;
}

Result<Moved> Probe::run(const Phase& phase) {
  Moved moved;
  const uint64_t begin_ns = now_ns();
  uint64_t read_bytes = 0;  // submitted, as the next one
  uint64_t written_bytes = 0;
  // Reads and writes of the mixed phase use different parts of the file.
  read_at_ = file_bytes_ / options_.transfer_bytes / 2 * options_.transfer_bytes;
  write_at_ = 0;
  bool first = true;
  while (true) {
    const bool over = phase.write_bytes_max > 0 && written_bytes >= phase.write_bytes_max;
    // At least one transfer each way, so that there is a rate.
    const bool late = !first && now_ns() >= phase.end_ns;
    while (!over && !late && !idle_.empty()) {
      const auto total = static_cast<double>(read_bytes + written_bytes);
      const bool write =
          static_cast<double>(read_bytes) > phase.read_share * total || phase.read_share <= 0;
      const uint32_t buffer = idle_.back();
      const Transfer transfer = next(write, buffer);
      const Result<uint32_t> taken = disk_.submit(std::span(&transfer, 1));
      if (!taken.ok()) return taken.status();
      if (taken.value() == 0) break;
      idle_.pop_back();
      (write ? written_bytes : read_bytes) += options_.transfer_bytes;
      if (phase.write_bytes_max > 0 && written_bytes >= phase.write_bytes_max) break;
    }
    first = false;
    if (idle_.size() == buffers_.size()) break;
    WEIR_RETURN_IF_ERROR(collect(&moved));
  }
  moved.ns = now_ns() - begin_ns;
  return moved;
}

void Probe::drain() {
  if (idle_.size() == buffers_.size()) return;
  disk_.cancel();
  Moved ignored;
  while (idle_.size() < buffers_.size()) {
    const size_t before = idle_.size();
    if (!collect(&ignored).ok() && idle_.size() == before) break;
  }
  std::sort(idle_.begin(), idle_.end());
  for (uint32_t i = 0; i < buffers_.size(); ++i)
    if (!std::binary_search(idle_.begin(), idle_.end(), i)) buffers_[i].abandon();
}

Result<DiskRates> measure(Probe* probe, const DiskProbeOptions& options) {
  const uint64_t begin_ns = now_ns();
  const auto until = [&](uint64_t tenths) {
    return begin_ns + options.time_ms * 1'000'000u / 10 * tenths;
  };
  // The first write of an extent is slower than all later ones and is not measured.
  const Result<Moved> fill = probe->run({0, until(4), probe->file_bytes()});
  if (!fill.ok()) return fill.status();
  probe->limit(fill.value().written_bytes);
  const Result<Moved> write = probe->run({0, until(6), 0});
  if (!write.ok()) return write.status();
  const Result<Moved> read = probe->run({1, until(8), 0});
  if (!read.ok()) return read.status();
  const Result<Moved> mixed = probe->run({options.read_share, until(10), 0});
  if (!mixed.ok()) return mixed.status();
  DiskRates rates;
  const Moved& m = mixed.value();
  rates.write_bytes_per_s = write.value().per_second(write.value().written_bytes);
  rates.read_bytes_per_s = read.value().per_second(read.value().read_bytes);
  rates.mixed_read_bytes_per_s = m.per_second(m.read_bytes);
  rates.mixed_write_bytes_per_s = m.per_second(m.written_bytes);
  rates.mixed_bytes_per_s = m.per_second(m.read_bytes + m.written_bytes);
  rates.file_bytes = probe->file_bytes();
  return rates;
}

}  // namespace

Result<DiskRates> probe_disk(Disk* disk, Arena* arena, const DiskProbeOptions& options) {
  if (options.transfer_bytes == 0 || options.transfer_bytes % kDiskAlignment != 0 ||
      options.depth == 0 || options.time_ms == 0 || options.timeout_ms == 0 ||
      !(options.read_share >= 0 && options.read_share <= 1))
    return invalid_argument(
        fmt::format("probe of '{}': transfers of {} bytes (a multiple of {}), depth {}, {} ms, "
                    "share of reads {} "
                    "(0 to 1)",
                    options.directory, options.transfer_bytes, kDiskAlignment, options.depth,
                    options.time_ms, options.read_share));
  if (disk->in_flight() > 0)
    return Status(Code::kInvalidUsage, "probe of a disk that has transfers under way");
  Probe probe(disk, options);
  WEIR_RETURN_IF_ERROR(probe.prepare(arena));
  Result<DiskRates> rates = measure(&probe, options);
  if (!rates.ok()) probe.drain();
  return rates;
}

}  // namespace weir::offload
