// SPDX-License-Identifier: Apache-2.0
#include "perf/offload_perf/mix_probe.h"

#include <thread>

#include "offload/io/disk_probe.h"
#include "offload/io/open_disk.h"

namespace weir::perf {
namespace {

constexpr uint64_t kTransferBytes = uint64_t{1} << 20;
constexpr uint32_t kDepth = 8;

}  // namespace

Result<std::unique_ptr<MixProbe>> MixProbe::create(const std::vector<std::string>& directories,
                                                   uint64_t file_bytes) {
  auto probe = std::make_unique<MixProbe>();
  probe->file_bytes_ = file_bytes;
  for (const std::string& directory : directories) {
    auto arena = offload::Arena::create({.budget_bytes = kDepth * kTransferBytes});
    if (!arena.ok()) return arena.status().with_context("probe");
    offload::DiskOptions options;
    options.depth = kDepth;
    options.arena = arena.value().get();
    auto disk = offload::open_disk(options);
    if (!disk.ok()) return disk.status().with_context("probe");
    probe->drives_.push_back({directory, arena.take(), disk.take()});
  }
  return Result<std::unique_ptr<MixProbe>>(std::move(probe));
}

Result<MixRates> MixProbe::run(double read_share, uint64_t time_ms) {
  std::vector<Status> problems(drives_.size());
  std::vector<offload::DiskRates> rates(drives_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < drives_.size(); ++i) {
    threads.emplace_back([&, i] {
      offload::DiskProbeOptions options;
      options.directory = drives_[i].directory;
      options.transfer_bytes = kTransferBytes;
      options.depth = kDepth;
      options.file_bytes = file_bytes_;
      options.time_ms = time_ms;
      options.read_share = read_share;
      const auto found =
          offload::probe_disk(drives_[i].disk.get(), drives_[i].arena.get(), options);
      problems[i] = found.status();
      if (found.ok()) rates[i] = found.value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  MixRates sum;
  for (size_t i = 0; i < drives_.size(); ++i) {
    WEIR_RETURN_IF_ERROR(problems[i]);
    sum.read_bytes_per_s += rates[i].mixed_read_bytes_per_s;
    sum.write_bytes_per_s += rates[i].mixed_write_bytes_per_s;
  }
  return sum;
}

}  // namespace weir::perf
