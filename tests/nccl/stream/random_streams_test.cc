// SPDX-License-Identifier: Apache-2.0
// Random programs on streams: one thread holds all ranks of several communicators, each rank with
// streams of its own, and enqueues collectives and messages on memory of all kinds. There is one
// order of all operations, which every rank keeps; but each has other ones of them in a group, in
// another order within it, and on another stream. Every value is compared with what a serial model
// says. WEIR_TEST_SEED is the first seed, WEIR_TEST_SEEDS their number.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "nccl/stream/stream_support.h"

namespace weir::nccl::test {
namespace {

// Longer operations have more pieces than are under way at a time; settings are read at the first
// call.
const int kEnvironment = setenv("WEIR_NCCL_CHUNK_BYTES", "16KiB", 1);

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

using Random = std::mt19937_64;

size_t below(Random& random, size_t end) {
  return std::uniform_int_distribution<size_t>(0, end - 1)(random);
}

// Below the size from which operations go directly, around it, and of many pieces.
size_t any_count(Random& random) {
  constexpr size_t kSizes[] = {1, 100, 3000, 4097, 16384, 20000, 45001};
  return kSizes[below(random, std::size(kSizes))] + below(random, 3);
}

struct Message {
  int from;
  int to;
  Array out;
  Array in;
  std::vector<int> values;
};

// An operation of one communicator: a collective, or else a message.
struct Step {
  size_t comm;
  std::unique_ptr<Exchange> collective;
  std::unique_ptr<Message> message;

  bool concerns(int rank) const {
    return collective != nullptr || message->from == rank || message->to == rank;
  }
  void check() const {
    if (collective != nullptr) {
      collective->check();
    } else {
      EXPECT_EQ(message->in.get(), message->values) << message->from << " to " << message->to;
    }
  }
};

MemoryKind any_memory(Random& random) {
  // Half of it on devices.
  const size_t kind = below(random, 6);
  return kind < 4 ? MemoryKind::kDevice : kind == 4 ? MemoryKind::kPinned : MemoryKind::kHost;
}

class Program {
 public:
  explicit Program(uint64_t seed) : random_(seed), rank_count_(2 + static_cast<int>(seed % 3)) {
    for (size_t i = 0; i < 1 + below(random_, 2); ++i) {
      families_.push_back(std::make_unique<AllRanks>(rank_count_));
    }
    for (int r = 0; r < rank_count_; ++r) {
      // Ranks that wait for each other must not share a stream.
      use_device_of(r);
      streams_.emplace_back(1 + below(random_, 3));
    }
    use_device_of(0);
  }

  void run() {
    for (int round = 0; round < 2; ++round) {
      make_steps(4 + below(random_, 12));
      for (int rank = 0; rank < rank_count_; ++rank) enqueue(rank);
      for (const auto& of_rank : streams_) {
        for (const Stream& stream : of_rank) stream.synchronize();
      }
      for (const auto& family : families_) {
        for (int r = 0; r < rank_count_; ++r) EXPECT_EQ(async_error((*family)[r]), ncclSuccess);
      }
      for (const Step& step : steps_) step.check();
      steps_.clear();
    }
  }

 private:
  void make_steps(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      Step step{below(random_, families_.size()), nullptr, nullptr};
      const auto size = any_count(random_);
      const auto n = static_cast<size_t>(rank_count_);
      const int seed = static_cast<int>(below(random_, 1000));
      if (below(random_, 2) == 0) {
        const Kind kind = kKinds[below(random_, std::size(kKinds))];
        const bool all_on_devices = below(random_, 2) == 0;
        step.collective = std::make_unique<Exchange>(
            kind, rank_count_, size, static_cast<int>(below(random_, n)), seed,
            [&](int) { return all_on_devices ? MemoryKind::kDevice : any_memory(random_); });
      } else {
        const int from = static_cast<int>(below(random_, n));
        const int to = (from + 1 + static_cast<int>(below(random_, n - 1))) % rank_count_;
        step.message = std::make_unique<Message>(Message{from, to, Array(any_memory(random_), size),
                                                         Array(any_memory(random_), size),
                                                         numbers(size, from, seed)});
        step.message->out.set(step.message->values);
        step.message->in.set(std::vector<int>(size, kUntouched));
      }
      steps_.push_back(std::move(step));
    }
  }

  // A rank's part of all steps, cut into groups.
  void enqueue(int rank) {
    use_device_of(rank);
    std::vector<size_t> mine;
    for (size_t i = 0; i < steps_.size(); ++i) {
      if (steps_[i].concerns(rank)) mine.push_back(i);
    }
    for (size_t begin = 0; begin < mine.size();) {
      const size_t end = std::min(mine.size(), begin + 1 + below(random_, 5));
      std::vector<size_t> group(mine.begin() + static_cast<std::ptrdiff_t>(begin),
                                mine.begin() + static_cast<std::ptrdiff_t>(end));
      mix(group, rank);
      const bool grouped = group.size() > 1;
      // One stream follows the other where the rank goes from one to the next.
      const size_t stream = below(random_, streams_of(rank).size());
      follow(rank, stream);
      EXPECT_NCCL(grouped ? ncclGroupStart() : ncclSuccess);
      for (const size_t i : group) call(rank, steps_[i], streams_of(rank)[stream]);
      EXPECT_NCCL(grouped ? ncclGroupEnd() : ncclSuccess);
      begin = end;
    }
  }

  // Another order, which leaves that of the collectives of a communicator, and that of a pair's
  // messages; where a device has few queues, that of all collectives: as with NCCL, which runs
  // those of a group one after the other.
  void mix(std::vector<size_t>& group, int rank) {
    for (size_t pass = 0; pass < group.size(); ++pass) {
      for (size_t i = 0; i + 1 < group.size(); ++i) {
        if (below(random_, 2) == 0 && !ordered(steps_[group[i]], steps_[group[i + 1]], rank)) {
          std::swap(group[i], group[i + 1]);
        }
      }
    }
  }

  static bool ordered(const Step& a, const Step& b, int rank) {
    if (has_own_devices() && a.collective != nullptr && b.collective != nullptr) return true;
    if (a.comm != b.comm) return false;
    if ((a.collective != nullptr) != (b.collective != nullptr)) return false;
    if (a.collective != nullptr) return true;
    if ((a.message->from == rank) != (b.message->from == rank)) return false;
    return a.message->from == b.message->from && a.message->to == b.message->to;
  }

  void follow(int rank, size_t stream) {
    const auto& all = streams_of(rank);
    for (size_t other = 0; other < all.size(); ++other) {
      if (other == stream) continue;
      cuda::Event event = nullptr;
      EXPECT_CUDA(cuEventCreate(&event, cuda::kEventDisableTiming));
      EXPECT_CUDA(cuEventRecord(event, all[other].get()));
      EXPECT_CUDA(cuStreamWaitEvent(all[stream].get(), event, 0));
      EXPECT_CUDA(cuEventDestroy_v2(event));
    }
  }

  void call(int rank, const Step& step, const Stream& stream) {
    ncclComm_t comm = (*families_[step.comm])[rank];
    if (step.collective != nullptr) {
      EXPECT_NCCL(step.collective->call_on(rank, comm, stream));
      return;
    }
    const Message& it = *step.message;
    EXPECT_NCCL(rank == it.from
                    ? ncclSend(it.out.data(), it.out.size(), ncclInt, it.to, comm, stream.nccl())
                    : ncclRecv(it.in.data(), it.in.size(), ncclInt, it.from, comm, stream.nccl()));
  }

  const std::vector<Stream>& streams_of(int rank) const {
    return streams_[static_cast<size_t>(rank)];
  }

  Random random_;
  const int rank_count_;
  std::vector<std::unique_ptr<AllRanks>> families_;
  std::vector<std::vector<Stream>> streams_;  // by rank
  std::vector<Step> steps_;
};

TEST(NcclRandomStreams, WhateverEachRankGroupsAllGetWhatASerialModelSays) {
  ASSERT_EQ(kEnvironment, 0);
  use_device(0);
  // One thread submits for all ranks, and not always in a group: what a stream has room for is that
  // of a driver, in chunks that are 64 times smaller than Weir's own.
  if (strict_cuda_queue != nullptr) strict_cuda_queue(64 * 1024);
  const uint64_t first = from_environment("WEIR_TEST_SEED", std::random_device()());
  const uint64_t count = from_environment("WEIR_TEST_SEEDS", 200);
  std::printf("WEIR_TEST_SEED=%llu WEIR_TEST_SEEDS=%llu\n", static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(count));
  std::fflush(stdout);  // also seen where the test hangs and is killed
  for (uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("WEIR_TEST_SEED=" + std::to_string(seed));
    Program(seed).run();
  }
}

}  // namespace
}  // namespace weir::nccl::test
