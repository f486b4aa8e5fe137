// SPDX-License-Identifier: Apache-2.0
#include "nccl/stream/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "api/handles.h"
#include "core/base/process_number.h"
#include "core/base/settings.h"
#include "core/comm/stream/device_links.h"
#include "core/comm/stream/stream_memory.h"
#include "core/comm/stream/stream_record.h"
#include "core/comm/stream/stream_setup.h"
#include "core/comm/stream/window_setup.h"
#include "cuda/driver.h"
#include "nccl/stream/direct_policy.h"
#include "nccl/stream/enqueue.h"
#include "nccl/stream/neighbors.h"

namespace weir::nccl {

namespace {

// What ranks tell each other about the memory that they are going to use.
struct MemoryEntry {
  uint64_t chunk_bytes;  // 0: this rank has no CUDA
  uint64_t host;         // 0: not known
  comm::DirectChoice direct;
  uint32_t zero;
  uint64_t number;  // rank 0's: of the communicator
  int64_t device;   // of the communicator; -1: its rank has chosen none
  ProcessNumber process;
};

// Of a communicator whose rank 0 is here; no other one has it, most probably.
uint64_t number_of_next() {
  std::random_device random;
  return uint64_t{random()} << 32 | random();
}

// Rank 0 explains once why device memory goes through host memory, and by whose choice.
void explain_choices(const Comm& comm, const std::vector<MemoryEntry>& all) {
  if (comm.rank() != 0) return;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const comm::DirectChoice choice = all[rank].direct;
    if (is_allowed(choice) || choice == comm::DirectChoice::kNoCuda) continue;
    explain(comm, fmt::format("device memory is copied through host memory: rank {}: {}", rank,
                              reason_of(choice)));
    return;
  }
}

// *told: the result of the latest gather, where that has failed.
comm::GatherFromRanks gather_of(const Comm& comm, weir_result_t* told) {
  return [&comm, told](const void* mine, void* all, size_t entry_bytes) {
    *told = gather_for_setup(comm.weir(), mine, all, entry_bytes);
    return *told == WEIR_OK ? Status() : Status(static_cast<Code>(*told), "");
  };
}

// The links between the devices of the ranks, all of which are of this host.
Outcome find_device_links(const char* function, const Comm& comm,
                          std::shared_ptr<const graph::DeviceWays>* links) {
  const Result<Settings>& settings = process_settings();
  const cuda::Driver* driver = cuda::driver_in_use();
  weir_result_t told = WEIR_OK;
  auto found = comm::agree_on_device_links(
      settings.ok() ? settings.value() : Settings(), static_cast<Rank>(comm.rank()),
      static_cast<Rank>(comm.rank_count()),
      driver == nullptr ? "" : cuda::told_device(*driver, comm.device()), gather_of(comm, &told));
  if (told != WEIR_OK) return comm.outcome(function, told);
  if (!found.ok()) return outcome_of(found.status());
  if (!found.value().reason.empty()) {
    explain(comm, "the links between the devices are " + found.value().reason);
  }
  *links = std::move(found.value().ways);
  return {};
}

// *made stays empty on all ranks where one of them cannot take part; on that rank *reason says why.
// The same where only kernels are impossible (has_kernels).
Outcome make_stream_memory(const char* function, const Comm& comm, comm::DirectChoice choice,
                           std::shared_ptr<const graph::DeviceWays> links,
                           std::shared_ptr<comm::StreamMemory>* made, std::string* reason) {
  comm::StreamSetup setup({function, static_cast<Rank>(comm.rank()),
                           static_cast<Rank>(comm.rank_count()), comm.device(),
                           comm.devices().in_one_process(), choice, comm.weir()->comm->network(),
                           std::move(links), comm.weir()->comm->deterministic()});
  const comm::StreamSetup::Entry& mine = setup.begin();
  std::vector<comm::StreamSetup::Entry> all(static_cast<size_t>(comm.rank_count()));
  weir_result_t told = gather_for_setup(comm.weir(), &mine, all.data(), sizeof mine);
  if (told != WEIR_OK) return comm.outcome(function, told);
  const Result<bool> connected = setup.connect(all);
  if (!connected.ok()) return outcome_of(connected.status());
  *reason = setup.reason();
  const uint32_t can = connected.value() ? 1 : 0;
  std::vector<uint32_t> votes(all.size());
  told = gather_for_setup(comm.weir(), &can, votes.data(), sizeof can);
  if (told != WEIR_OK) return comm.outcome(function, told);
  *made = setup.end(std::count(votes.begin(), votes.end(), 1u) ==
                    static_cast<std::ptrdiff_t>(votes.size()));
  return {};
}

}  // namespace

Outcome make_device_window(const char* function, const Comm& comm, void* memory, uint64_t bytes,
                           bool wanted, std::shared_ptr<const comm::DeviceWindow>* made) {
  comm::StreamMemory* const streams = comm.devices().stream_memory().get();
  if (streams == nullptr) return {};
  weir_result_t told = WEIR_OK;
  const comm::GatherFromRanks gather = gather_of(comm, &told);
  control::Network* const network =
      comm.devices().in_one_process() ? nullptr : comm.weir()->comm->network();
  std::string reason;
  const Status status =
      comm::make_window(*streams, network, memory, bytes, wanted, gather, made, &reason);
  if (!status.ok()) return comm.outcome(function, told);
  if (!reason.empty()) {
    explain(comm, fmt::format("a window on devices is copied through scratch: rank {}: {}",
                              comm.rank(), reason));
  }
  return {};
}

Outcome agree_on_devices(const char* function, Comm& comm) {
  const auto earlier = comm::ClockReading::now();
  const comm::DirectChoice choice =
      comm.rank_count() > 1 ? comm::direct_choice_here() : comm::DirectChoice::kNoCuda;
  const int device = comm.chose_device() ? comm.device() : -1;
  const MemoryEntry mine{wanted_chunk_bytes(), comm::host_tag(), choice,        0,
                         number_of_next(),     device,           this_process()};
  std::vector<MemoryEntry> all(static_cast<size_t>(comm.rank_count()));
  const weir_result_t told = gather_for_setup(comm.weir(), &mine, all.data(), sizeof mine);
  if (told != WEIR_OK) return comm.outcome(function, told);
  uint64_t least = 0;
  bool direct = comm.rank_count() > 1;
  bool one_process = true;
  for (const MemoryEntry& it : all) {
    if (it.chunk_bytes != 0 && (least == 0 || it.chunk_bytes < least)) least = it.chunk_bytes;
    const bool here = it.process == all[0].process;
    one_process = one_process && here;
    direct = direct && is_allowed(it.direct) && (here || (it.host != 0 && it.host == all[0].host));
  }
  comm.devices().agree({least, one_process});
  std::vector<Neighbors::Rank> here;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].direct != comm::DirectChoice::kNoCuda && all[rank].process == mine.process) {
      here.emplace_back(static_cast<int>(rank), static_cast<int>(all[rank].device));
    }
  }
  if (here.size() > 1 && choice != comm::DirectChoice::kNoCuda) {
    std::shared_ptr<Neighbors> neighbors = Neighbors::find(all[0].number, here);
    neighbors->note_maker(comm.rank(), comm.making_thread());
    comm.devices().set_neighbors(std::move(neighbors));
  }
  explain_choices(comm, all);
  if (!direct) return {};
  std::shared_ptr<comm::StreamMemory> memory;
  std::string reason;
  std::shared_ptr<const graph::DeviceWays> links;
  Outcome outcome = find_device_links(function, comm, &links);
  if (!outcome.ok()) return outcome;
  outcome = make_stream_memory(function, comm, choice, std::move(links), &memory, &reason);
  if (!outcome.ok()) return outcome;
  if (memory == nullptr && !reason.empty()) {
    explain(comm, fmt::format("device memory is copied through host memory: rank {}: {}",
                              comm.rank(), reason));
  } else if (memory != nullptr && !memory->has_kernels() && !reason.empty()) {
    explain(comm, fmt::format("device memory is reduced through host memory, and messages pass "
                              "there, too: rank {}: {}",
                              comm.rank(), reason));
  }
  if (memory != nullptr) {
    comm.devices().set_stream_record(
        comm::StreamRecord::open(comm.weir()->comm->name(), static_cast<Rank>(comm.rank()),
                                 static_cast<Rank>(comm.rank_count()), all[0].number, earlier));
  }
  comm.devices().set_stream_memory(std::move(memory));
  return {};
}

}  // namespace weir::nccl
