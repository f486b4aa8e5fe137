// SPDX-License-Identifier: Apache-2.0
#include "core/engine/probe.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>

#include "core/base/clock.h"
#include "core/engine/reduce.h"

namespace weir::engine {

namespace {

using cost::Regime;

constexpr std::array<uint64_t, cost::kRegimeCount> kRegimeBytes = {64 * 1024, 1024 * 1024,
                                                                   8 * 1024 * 1024};
constexpr uint32_t kRounds = 5;
constexpr uint32_t kPingCount = 200;
constexpr uint64_t kSlotBytes = 32 * 1024;
constexpr uint32_t kProbeLane = 0;

// The least of some rounds: whatever else the machine does only adds.
double least_ns(const std::function<void()>& task) {
  task();
  double least = 1e18;
  for (uint32_t i = 0; i < kRounds; ++i) {
    const uint64_t begin = now_ns();
    task();
    least = std::min(least, static_cast<double>(now_ns() - begin));
  }
  return least;
}

struct FreeDeleter {
  void operator()(unsigned char* memory) const { std::free(memory); }
};

class Probe {
 public:
  Probe(Context& context, uint64_t deadline_ns) : context_(context), deadline_ns_(deadline_ns) {}

  void own_core(cost::TaskTimes& times) {
    const uint64_t all = 3 * kRegimeBytes.back();
    std::unique_ptr<unsigned char, FreeDeleter> memory(
        static_cast<unsigned char*>(std::aligned_alloc(4096, all)));
    if (memory == nullptr) return;
    std::memset(memory.get(), 0, all);
    for (size_t r = 0; r < cost::kRegimeCount; ++r) {
      const uint64_t bytes = kRegimeBytes[r];
      unsigned char* a = memory.get();
      unsigned char* b = a + bytes;
      unsigned char* c = b + bytes;
      const bool streams = r + 1 == cost::kRegimeCount;
      times.copy_ns_per_byte[r] =
          least_ns([&] { copy_bytes(b, a, bytes, streams); }) / static_cast<double>(bytes);
      double before = 0;
      for (size_t k = 0; k < cost::kReduceSources.size(); ++k) {
        const uint32_t count = cost::kReduceSources[k];
        // As many sources as fit into the same memory, so that the regime stays the same.
        const uint64_t part = std::max<uint64_t>(4096, 2 * bytes / (count + 1) / 4096 * 4096);
        std::array<const void*, 16> sources{};
        for (uint32_t s = 0; s < count; ++s) sources[s] = a + s * part / 2 / 64 * 64;
        ReduceArgs args;
        args.dst = c;
        args.sources = sources.data();
        args.source_count = count;
        args.element_count = part / 2 / sizeof(float);
        args.streaming = streams;
        const ReduceKernel kernel = reduce_kernel(DataType::kFloat32, Fold::kSum);
        const double per_byte = least_ns([&] { kernel(args); }) / static_cast<double>(part / 2);
        before = times.reduce_ns_per_byte[k][r] = std::max(before, per_byte);
      }
    }
    times.l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, times.l2_bytes);
    times.l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, times.l3_bytes);
  }

  Status pair(cost::LinkTimes& link) {
    const bool first = context_.rank == 0;
    const Rank peer = 1 - context_.rank;
    // Signals: a counter in each rank's staging, the other's read.
    auto& mine = *reinterpret_cast<std::atomic<uint64_t>*>(context_.staging(context_.rank));
    auto& theirs = *reinterpret_cast<std::atomic<uint64_t>*>(context_.staging(peer));
    uint64_t turn = 0;
    auto meet = [&]() -> bool {
      ++turn;
      if (first) mine.store(turn, std::memory_order_release);
      if (!wait_for(theirs, turn)) return false;
      if (!first) mine.store(turn, std::memory_order_release);
      return true;
    };
    if (!meet()) return late();
    double least = 1e18;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const uint64_t begin = now_ns();
      for (uint32_t i = 0; i < kPingCount; ++i) {
        if (!meet()) return late();
      }
      least = std::min(least, static_cast<double>(now_ns() - begin) / kPingCount / 2);
    }
    link.signal_ns = least;

    // Slots: rank 0 writes what rank 1 has read before, rank 1 reads what rank 0 has written.
    unsigned char* slot = context_.staging(0) + 4096;
    std::unique_ptr<unsigned char, FreeDeleter> own(
        static_cast<unsigned char*>(std::aligned_alloc(4096, kSlotBytes)));
    if (own == nullptr) return Status(Code::kNoMemory, "the probe's buffer");
    std::memset(own.get(), 1, kSlotBytes);
    double fill = 1e18;
    double drain = 1e18;
    for (uint32_t round = 0; round < 4 * kRounds; ++round) {
      const uint64_t begin = now_ns();
      if (first) copy_bytes(slot, own.get(), kSlotBytes, true);
      fill = std::min(fill, static_cast<double>(now_ns() - begin));
      if (!meet()) return late();
      const uint64_t middle = now_ns();
      if (!first) copy_bytes(own.get(), slot, kSlotBytes, false);
      drain = std::min(drain, static_cast<double>(now_ns() - middle));
      if (!first) {
        // Rank 0 keeps the table: it is told how long the reading took.
        std::memcpy(context_.staging(1) + 2048, &drain, sizeof drain);
      }
      if (!meet()) return late();
    }
    if (first) std::memcpy(&drain, context_.staging(1) + 2048, sizeof drain);
    for (size_t r = 0; r < cost::kRegimeCount; ++r) {
      const double memory = std::max(1e-4, 0.5 * context_copy_[r]);
      link.slot_in_ns_per_byte[r] = std::max(fill / kSlotBytes, memory);
      link.slot_out_ns_per_byte[r] = std::max(drain / kSlotBytes, memory);
      link.window_ns_per_byte[r] = std::max(drain / kSlotBytes, memory);
    }
    return messages(link, peer, first);
  }

  void copy_times(const cost::ByRegime& copy) { context_copy_ = copy; }

 private:
  static uint64_t cache_bytes(int name, uint64_t otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? static_cast<uint64_t>(bytes) : otherwise;
  }

  static Status late() {
    return Status(Code::kTimeout, "the probe: ranks 0 and 1 did not meet within the deadline");
  }

  bool wait_for(const std::atomic<uint64_t>& counter, uint64_t value) const {
    for (uint32_t tries = 1; counter.load(std::memory_order_acquire) < value; ++tries) {
      cpu_relax();
      if (tries % 1024 == 0) {
        if (now_ns() > deadline_ns_) return false;
        sched_yield();
      }
    }
    return true;
  }

  Status finish_message(weir_result_t result, weir_transport_op_t& op) const {
    for (uint32_t tries = 1; result == WEIR_IN_PROGRESS; ++tries) {
      context_.transport->progress(context_.instance);
      result = context_.transport->test(context_.instance, &op);
      if (tries % 1024 == 0) {
        if (now_ns() > deadline_ns_) {
          context_.quiesce();  // the message lies on the stack
          return late();
        }
        sched_yield();
      }
    }
    if (result == WEIR_OK) return Status();
    context_.quiesce();
    return Status(static_cast<Code>(result), "the probe: a message failed");
  }

  Status messages(cost::LinkTimes& link, Rank peer, bool first) const {
    uint64_t word = 0;
    double least = 1e18;
    double send_least = 1e18;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const uint64_t begin = now_ns();
      uint64_t sending = 0;
      for (uint32_t i = 0; i < kPingCount; ++i) {
        for (const bool sends : {first, !first}) {
          weir_transport_op_t op{};
          const uint64_t before = i % 16 == 0 && sends ? now_ns() : 0;
          const weir_result_t result =
              sends ? context_.transport->send(context_.instance, peer, kProbeLane, &word,
                                               sizeof word, &op)
                    : context_.transport->recv(context_.instance, peer, kProbeLane, &word,
                                               sizeof word, &op);
          if (before != 0) sending += now_ns() - before;
          WEIR_RETURN_IF_ERROR(finish_message(result, op));
        }
      }
      least = std::min(least, static_cast<double>(now_ns() - begin) / kPingCount / 2);
      send_least = std::min(send_least, static_cast<double>(sending) / (kPingCount / 16.0));
    }
    link.message_ns = least;
    link.send_ns = std::min(least, send_least);
    link.recv_ns = std::min(least, link.recv_ns);
    return Status();
  }

  Context& context_;
  uint64_t deadline_ns_;
  cost::ByRegime context_copy_{};
};

}  // namespace

Result<cost::Table> probe_tasks(Context& context, uint64_t topology_hash, uint64_t deadline_ns) {
  cost::Table table = cost::built_in_table();
  Probe probe(context, deadline_ns);
  probe.own_core(table.times);
  if (context.rank_count > 1 && context.mapped()) {
    probe.copy_times(table.times.copy_ns_per_byte);
    WEIR_RETURN_IF_ERROR(probe.pair(table.times.link(cost::Link::kShmSharedCache)));
    // One machine's ranks are taken as equally far from each other: what is measured holds for all.
    const cost::LinkTimes measured = table.times.link(cost::Link::kShmSharedCache);
    table.times.link(cost::Link::kShmSameSocket) = measured;
  }
  table.topology_hash = topology_hash;
  const Status valid = cost::validate(table);
  if (!valid.ok()) return valid.with_context("the probe measured something impossible");
  return table;
}

}  // namespace weir::engine
