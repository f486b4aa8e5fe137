// SPDX-License-Identifier: Apache-2.0
#include "core/engine/probe.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/engine/probe_messages.h"
#include "core/engine/reduce.h"
#include "core/topo/caches.h"

namespace weir::engine {

namespace {

constexpr std::array<uint64_t, cost::kRegimeCount> kRegimeBytes = {64 * 1024, 1024 * 1024,
                                                                   8 * 1024 * 1024};
// Moved from one rank to the other for a figure: those of kRegimeBytes, several times.
constexpr std::array<uint64_t, cost::kRegimeCount> kMovedBytes = {2 * 1024 * 1024, 4 * 1024 * 1024,
                                                                  8 * 1024 * 1024};
constexpr uint32_t kRounds = 5;
// Of which the first touches the memory.
constexpr std::array<uint32_t, cost::kRegimeCount> kMovingRounds = {10, 8, 4};
constexpr uint32_t kPingCount = 200;
constexpr uint64_t kSlotBytes = 32 * 1024;
constexpr double kRoundNs = 50e6;  // the most that a round of pings may take
// No round begins later than this after the ranks have met.
constexpr uint64_t kBudgetNs = 1'000'000'000;

// The least of some rounds: any other load of the machine only adds time.
double least_ns(uint32_t rounds, const std::function<void()>& task) {
  task();
  double least = 1e18;
  for (uint32_t i = 0; i < rounds; ++i) {
    const uint64_t begin = now_ns();
    task();
    least = std::min(least, static_cast<double>(now_ns() - begin));
  }
  return least;
}

// Memory whose parts are handed out one after another, and again from the start: with more than the
// caches hold, no part that is handed out is in one.
class Parts {
 public:
  // Twice what the last level holds, within bounds: of caches above 64 MiB a part is left out.
  Parts()
      : bytes_(std::clamp(2 * topo::own_caches().last_bytes, kPartsMin, kPartsMax) /
               kHugePageBytes * kHugePageBytes),
        memory_(static_cast<unsigned char*>(std::aligned_alloc(kHugePageBytes, bytes_))) {
    if (memory_ == nullptr) return;
    (void)madvise(memory_.get(), bytes_, MADV_HUGEPAGE);  // or else it takes longer to touch
    std::memset(memory_.get(), 1, bytes_);
  }
  bool exist() const { return memory_ != nullptr; }
  unsigned char* first() const { return memory_.get(); }
  unsigned char* next(uint64_t bytes) {
    if (at_ + bytes > bytes_) at_ = 0;
    at_ += bytes;
    return memory_.get() + at_ - bytes;
  }

 private:
  struct FreeDeleter {
    void operator()(unsigned char* memory) const { std::free(memory); }
  };
  static constexpr uint64_t kHugePageBytes = 2 * 1024 * 1024;
  static constexpr uint64_t kPartsMin = 3 * kRegimeBytes.back();
  static constexpr uint64_t kPartsMax = 128 * 1024 * 1024;

  uint64_t bytes_;
  std::unique_ptr<unsigned char, FreeDeleter> memory_;
  uint64_t at_ = 0;
};

uint64_t cache_bytes(int name, uint64_t otherwise) {
  const long bytes = sysconf(name);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : otherwise;
}

// The C library's figures are the last resort: on some CPUs that for the last level is the sum of
// several caches.
void probe_caches(cost::TaskTimes* times) {
  const topo::CpuCaches caches = topo::own_caches();
  if (!caches.known) {
    times->l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, times->l2_bytes);
    times->l3_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, times->l3_bytes);
    return;
  }
  times->l2_bytes = caches.l2_bytes;
  times->l3_bytes = caches.last_bytes;
}

// The faster kind of stores, as plans choose theirs. `task` gets whether to stream.
double least_of_stores(uint32_t rounds, const std::function<void(bool)>& task) {
  return std::min(least_ns(rounds, [&] { task(false); }), least_ns(rounds, [&] { task(true); }));
}

// Tasks of one core alone.
void probe_own_core(Parts& parts, cost::TaskTimes* into) {
  cost::TaskTimes& times = *into;
  const ReduceKernel kernel = reduce_kernel(DataType::kFloat32, Fold::kSum);
  for (size_t r = 0; r < cost::kRegimeCount; ++r) {
    const uint64_t bytes = kRegimeBytes[r];
    const bool in_memory = r + 1 == cost::kRegimeCount;
    const uint32_t rounds = in_memory ? kRounds / 2 : kRounds;
    const auto place = [&](uint64_t needed) {
      return in_memory ? parts.next(needed) : parts.first();
    };
    const double copy_ns = least_of_stores(rounds, [&](bool streams) {
      unsigned char* const a = place(2 * bytes);
      copy_bytes(a + bytes, a, bytes, streams);
    });
    times.copy_ns_per_byte[r] = copy_ns / static_cast<double>(bytes);
    double before = 0;
    for (size_t k = 0; k < cost::kReduceSources.size(); ++k) {
      const uint32_t count = cost::kReduceSources[k];
      // As many sources as fit into the same memory, so that the regime stays the same.
      const uint64_t moved = std::max<uint64_t>(2048, bytes / (count + 1) / 2048 * 2048);
      const double ns = least_of_stores(rounds, [&](bool streams) {
        unsigned char* const a = place((count + 1) * moved);
        std::array<const void*, 16> sources{};
        for (uint32_t s = 0; s < count; ++s) sources[s] = a + s * moved / 64 * 64;
        ReduceArgs args;
        args.dst = a + count * moved;
        args.sources = sources.data();
        args.source_count = count;
        args.element_count = moved / sizeof(float);
        args.streaming = streams;
        kernel(args);
      });
      before = times.reduce_ns_per_byte[k][r] = std::max(before, ns / static_cast<double>(moved));
    }
  }
  probe_caches(&times);
}

class PairProbe {
 public:
  PairProbe(Context& context, const MappedPair& pair, uint64_t deadline_ns, const ProbeWatch& watch,
            Parts& parts)
      : context_(context),
        pair_(pair),
        patience_(context, peer(), deadline_ns, [this] { return told(); }),
        watch_(watch),
        messages_(context, peer(), patience_),
        parts_(parts) {}

  // One rank leads; the other does what it is asked until it is told to stop. After that, neither
  // accesses the other's memory.
  Status run(cost::LinkTimes* link, bool* complete) {
    Status status = leads() ? lead(link) : serve();
    // The peer that waits for this rank must not wait for ever.
    if (!status.ok()) own_word().store(kFailed, std::memory_order_release);
    // The other only does what it is asked.
    *complete = !leads() || has_time();
    return status;
  }

 private:
  // The next request of the leader: a number that grows by one, a Step in its lowest bits, above it
  // a count. The other answers with the same word.
  enum Step : uint64_t { kMeet = 1, kStaging = 2, kMessages = 3, kStop = 4, kLongMessages = 5 };
  static constexpr uint64_t kStepBits = 8;
  static constexpr uint64_t kCountBits = 8;
  static constexpr uint64_t kFailed = UINT64_MAX;
  static constexpr uint64_t kMovedAt = 2048;
  static constexpr uint64_t kSlotAt = 4096;

  bool leads() const { return context_.rank == pair_.leader; }
  Rank peer() const { return leads() ? pair_.other : pair_.leader; }
  std::atomic<uint64_t>& word_of(Rank rank) const {
    // A rank may be in several pairs, one after another: each has a word of its own.
    return *reinterpret_cast<std::atomic<uint64_t>*>(context_.staging(rank) +
                                                     uint64_t{64} * pair_.number);
  }
  std::atomic<uint64_t>& own_word() const { return word_of(context_.rank); }

  Status told() const {
    if (watch_) WEIR_RETURN_IF_ERROR(watch_());
    if (word_of(peer()).load(std::memory_order_acquire) != kFailed) return Status();
    return Status(Code::kAborted,
                  fmt::format("the start-up probe: it has failed on rank {}", peer()));
  }

  // Waits until a word of the other rank is one that `is_it` accepts.
  template <class Accept>
  Status wait_for(const std::atomic<uint64_t>& theirs, const Accept& is_it, uint64_t* word) {
    for (uint32_t tries = 1;; ++tries) {
      *word = theirs.load(std::memory_order_acquire);
      if (is_it(*word)) return Status();
      cpu_relax();
      if (tries % 1024 == 0) {
        WEIR_RETURN_IF_ERROR(patience_.look());
        sched_yield();
      }
    }
  }

  void ask(Step step, uint64_t count = 0) {
    asked_ = ++turn_ << (kStepBits + kCountBits) | count << kStepBits | step;
    own_word().store(asked_, std::memory_order_release);
  }
  Status answered() {
    uint64_t word = 0;
    return wait_for(
        word_of(peer()), [this](uint64_t shown) { return shown == asked_; }, &word);
  }
  Status meet(Step step = kMeet) {
    ask(step);
    return answered();
  }
  bool has_time() const { return now_ns() - began_ns_ < kBudgetNs; }

  Status lead(cost::LinkTimes* link) {
    WEIR_RETURN_IF_ERROR(meet());
    began_ns_ = now_ns();
    // Signals: each rank has a counter in its staging, which the other reads.
    double least = 1e18;
    uint32_t count = 4;  // the first round tells how many fit
    for (uint32_t round = 0; round <= kRounds; ++round) {
      const uint64_t begin = now_ns();
      for (uint32_t i = 0; i < count; ++i) WEIR_RETURN_IF_ERROR(meet());
      const double one_way_ns = static_cast<double>(now_ns() - begin) / count / 2;
      least = std::min(least, one_way_ns);
      if (!has_time()) break;
      count = pings_that_fit(one_way_ns);
    }
    link->signal_ns = least;
    WEIR_RETURN_IF_ERROR(moving(link));
    WEIR_RETURN_IF_ERROR(messages(link));
    return meet(kStop);
  }

  static uint32_t pings_that_fit(double one_way_ns) {
    return static_cast<uint32_t>(
        std::clamp(kRoundNs / (2 * one_way_ns + 1), 1.0, static_cast<double>(kPingCount)));
  }

  // Per byte, with both cores at work, as in a program: one moves data out of its buffer while the
  // other moves what came before into its own. By messages, and through staging, with the stores
  // that are better there.
  Status moving(cost::LinkTimes* link) {
    for (uint64_t r = 0; r < cost::kRegimeCount; ++r) {
      double message = kUnknown;
      double staging = kUnknown;
      for (uint32_t round = 0; round < kMovingRounds[r] && (round == 0 || has_time()); ++round) {
        if (round == 1) message = staging = kUnknown;
        WEIR_RETURN_IF_ERROR(moved(kLongMessages, r, false, &message));
        for (const bool streams : {false, true}) {
          WEIR_RETURN_IF_ERROR(moved(kStaging, r, streams, &staging));
        }
      }
      link->slot_in_ns_per_byte[r] = link->slot_out_ns_per_byte[r] = message;
      link->window_ns_per_byte[r] = staging;
    }
    return Status();
  }
  Status moved(Step step, uint64_t regime, bool streams, double* least) {
    const uint64_t begin = now_ns();
    ask(step, regime << 1 | (streams ? 1 : 0));
    WEIR_RETURN_IF_ERROR(move(step, regime, streams));
    WEIR_RETURN_IF_ERROR(answered());
    const auto bytes = static_cast<double>(kMovedBytes[regime]);
    *least = std::min(*least, static_cast<double>(now_ns() - begin) / bytes);
    return Status();
  }
  // This rank's part of it.
  Status move(Step step, uint64_t regime, bool streams) {
    const uint64_t bytes = kRegimeBytes[regime];
    const bool in_memory = regime + 1 == cost::kRegimeCount;
    moved_slots_ = 0;
    for (uint64_t at = 0; at < kMovedBytes[regime]; at += bytes) {
      unsigned char* const own = in_memory ? parts_.next(bytes) : parts_.first();
      WEIR_RETURN_IF_ERROR(step == kStaging ? through_staging(own, bytes, streams, in_memory)
                                            : messages_.move(own, bytes, leads(), false));
    }
    return Status();
  }

  // How many slots a rank has written or read in this turn of this pair.
  std::atomic<uint64_t>& moved_of(Rank rank) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(context_.staging(rank) + kMovedAt);
  }
  uint64_t moved_word(uint64_t count) const {
    return uint64_t{pair_.number + 1} << 56 | (turn_ & 0xffffff) << 32 | count;
  }
  Status through_staging(unsigned char* own, uint64_t bytes, bool streams, bool streams_out) {
    const uint64_t slots = std::max<uint64_t>(1, (context_.staging_bytes - kSlotAt) / kSlotBytes);
    unsigned char* const ring = context_.staging(pair_.leader) + kSlotAt;
    for (uint64_t at = 0; at < bytes; at += kSlotBytes) {
      // The least count of the peer at which this rank may go on.
      const uint64_t from =
          leads() ? moved_slots_ + 1 - std::min(moved_slots_ + 1, slots) : moved_slots_ + 1;
      uint64_t word = 0;
      const auto has_come = [&](uint64_t shown) {
        return from == 0 || (shown >= moved_word(from) && shown <= moved_word(UINT32_MAX));
      };
      WEIR_RETURN_IF_ERROR(wait_for(moved_of(peer()), has_come, &word));
      unsigned char* const slot = ring + moved_slots_ % slots * kSlotBytes;
      if (leads()) {
        copy_bytes(slot, own + at, kSlotBytes, streams);
      } else {
        copy_bytes(own + at, slot, kSlotBytes, streams_out);
      }
      moved_of(context_.rank).store(moved_word(++moved_slots_), std::memory_order_release);
    }
    return Status();
  }

  Status messages(cost::LinkTimes* link) {
    double least = 1e18;
    double send_least = 1e18;
    uint64_t count = 4;
    for (uint32_t round = 0; round <= kRounds; ++round) {
      ask(kMessages, count);
      uint64_t word = 0;
      const uint64_t begin = now_ns();
      uint64_t sending = 0;
      uint64_t timed = 0;
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t before = i % 16 == 0 ? now_ns() : 0;
        WEIR_RETURN_IF_ERROR(messages_.send(&word, sizeof word));
        if (before != 0) {
          sending += now_ns() - before;
          ++timed;
        }
        WEIR_RETURN_IF_ERROR(messages_.recv(&word, sizeof word));
      }
      const double one_way_ns =
          static_cast<double>(now_ns() - begin) / static_cast<double>(count) / 2;
      least = std::min(least, one_way_ns);
      send_least = std::min(send_least, static_cast<double>(sending) / static_cast<double>(timed));
      WEIR_RETURN_IF_ERROR(answered());
      if (!has_time()) break;
      count = pings_that_fit(one_way_ns);
    }
    link->message_ns = least;
    link->send_ns = std::min(least, send_least);
    link->recv_ns = std::min(least, link->recv_ns);
    return Status();
  }

  Status serve() {
    for (;;) {
      ++turn_;
      uint64_t asked = 0;
      WEIR_RETURN_IF_ERROR(wait_for(
          word_of(peer()),
          [this](uint64_t shown) { return shown >> (kStepBits + kCountBits) == turn_; }, &asked));
      switch (asked & ((1u << kStepBits) - 1)) {
        case kMeet:
        case kStop:
          break;
        case kStaging:
        case kLongMessages: {
          const uint64_t which = asked >> kStepBits & ((1u << kCountBits) - 1);
          if (which >> 1 >= cost::kRegimeCount) return refused();
          WEIR_RETURN_IF_ERROR(
              move(static_cast<Step>(asked & ((1u << kStepBits) - 1)), which >> 1, which & 1));
          break;
        }
        case kMessages: {
          const uint64_t count = asked >> kStepBits & ((1u << kCountBits) - 1);
          uint64_t word = 0;
          for (uint64_t i = 0; i < count; ++i) {
            WEIR_RETURN_IF_ERROR(messages_.recv(&word, sizeof word));
            WEIR_RETURN_IF_ERROR(messages_.send(&word, sizeof word));
          }
          break;
        }
        default:
          return refused();
      }
      own_word().store(asked, std::memory_order_release);
      if ((asked & ((1u << kStepBits) - 1)) == kStop) return Status();
    }
  }

  Status refused() const {
    return Status(Code::kRefused,
                  fmt::format("the start-up probe: rank {} asks rank {} for a measurement that it "
                              "does not know; do both run the same version of Weir?",
                              pair_.leader, pair_.other));
  }

  static constexpr double kUnknown = 1e18;
  Context& context_;
  const MappedPair pair_;
  ProbePatience patience_;
  const ProbeWatch watch_;
  ProbeMessages messages_;
  uint64_t began_ns_ = 0;  // the ranks have met
  uint64_t turn_ = 0;
  uint64_t asked_ = 0;
  Parts& parts_;
  uint64_t moved_slots_ = 0;  // in this turn
};

Status no_memory() { return Status(Code::kNoMemory, "the start-up probe's buffer"); }

}  // namespace

Status probe_mapped_pair(Context& context, const MappedPair& pair, uint64_t deadline_ns,
                         const ProbeWatch& watch, cost::LinkTimes* link, bool* complete) {
  Parts parts;
  if (!parts.exist()) return no_memory();
  PairProbe probe(context, pair, deadline_ns, watch, parts);
  return probe.run(link, complete);
}

Result<cost::Table> probe_tasks(Context& context, uint64_t topology_hash, uint64_t deadline_ns,
                                const ProbeWatch& watch, bool* complete) {
  cost::Table table = cost::built_in_table();
  *complete = true;
  Parts parts;
  if (!parts.exist()) return no_memory();
  probe_own_core(parts, &table.times);
  if (context.rank_count > 1 && context.mapped()) {
    PairProbe probe(context, MappedPair(), deadline_ns, watch, parts);
    cost::LinkTimes& link = table.times.link(cost::Link::kShmSharedCache);
    const cost::LinkTimes built_in = link;
    WEIR_RETURN_IF_ERROR(probe.run(&link, complete));
    if (*complete) {
      // Until other pairs are measured, all ranks of a machine are assumed to be equally far from
      // each other.
      table.times.link(cost::Link::kShmSameSocket) = link;
    } else {
      link = built_in;
      log_info(
          "ranks 0 and 1 did not get enough of their cores to measure shared memory: built-in "
          "figures are used");
    }
  }
  table.topology_hash = topology_hash;
  const Status valid = cost::validate(table);
  if (!valid.ok()) return valid.with_context("the start-up probe measured impossible times");
  return table;
}

}  // namespace weir::engine
