// SPDX-License-Identifier: Apache-2.0
// Random calls of all kinds on random buffers. The ranks share the calls; each has buffers of its
// own choice: in an arena, outside, in a part of an allocation, across two, in weir_mem_alloc's
// memory, in place or not, and NULL where none is used. Every result is compared with what it has
// to be, and nothing behind it may have changed.
//
// WEIR_TEST_ROUNDS: how many calls; WEIR_TEST_SEED: where they begin.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/ranks.h"

namespace weir::test {
namespace {

constexpr size_t kGuard = 16;
constexpr int32_t kGuardValue = 0x5ca1ab1e;
constexpr size_t kLongest = 60'000;  // elements of a buffer of one rank
constexpr size_t kArenaBytes = size_t{64} << 20;

uint64_t number_of(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 0) : otherwise;
}

// Element `index` of what rank `rank` sends in call `call`; sums of it are exact in a float.
int32_t value_of(int call, size_t rank, size_t index) {
  const uint64_t h =
      (static_cast<uint64_t>(call) * 1009 + rank * 101 + index) * 0x9e3779b97f4a7c15u;
  return static_cast<int32_t>(h >> 56) - 100;
}

// The buffers of one rank.
class Buffers {
 public:
  Buffers(weir_comm_t comm, uint64_t seed) : comm_(comm), random_(seed) {
    EXPECT_EQ(weir_arena_create(comm, kArenaBytes, &arena_), WEIR_OK) << weir_last_error(comm);
    EXPECT_EQ(weir_arena_create(comm, kArenaBytes / 4, &second_), WEIR_OK);
    void* memory = nullptr;
    EXPECT_EQ(weir_mem_alloc(comm, 4 * kArenaBytes / 16, &memory), WEIR_OK);
    symmetric_ = static_cast<int32_t*>(memory);
  }
  ~Buffers() {
    reset();
    while (!kept_.empty()) drop_kept();
    EXPECT_EQ(weir_arena_destroy(arena_), WEIR_OK) << weir_last_error(nullptr);
    EXPECT_EQ(weir_arena_destroy(second_), WEIR_OK) << weir_last_error(nullptr);
    EXPECT_EQ(weir_mem_free(comm_, symmetric_), WEIR_OK);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // `count` elements and a guard, until `reset`.
  int32_t* get(size_t count, std::string* kind) {
    const size_t whole = count + kGuard;
    int32_t* memory = nullptr;
    switch (random_() % 7) {
      case 0:
      case 1:
        *kind = "arena";
        memory = take(arena_, whole);
        break;
      case 2:
        *kind = "second arena";
        memory = take(second_, whole);
        break;
      case 3: {
        *kind = "part of an allocation";
        const size_t before = random_() % 3000;
        memory = take(arena_, whole + before + random_() % 3000) + before;
        break;
      }
      case 4: {
        *kind = "across two allocations";
        const size_t lines = (whole / 16 + 2) * 16;
        int32_t* first = take(arena_, lines);
        int32_t* next = take(arena_, lines);
        memory = next == first + lines ? first + lines / 2 + 3 : first;
        break;
      }
      case 5:
        *kind = "weir_mem_alloc";
        memory = symmetric_ + symmetric_used_;
        symmetric_used_ += (whole + random_() % 100 + 15) / 16 * 16;
        break;
      default:
        *kind = "outside";
        outside_.emplace_back(whole);
        memory = outside_.back().data();
    }
    std::fill(memory, memory + whole, kGuardValue);
    return memory;
  }
  // Gives back all, and keeps or drops some others, so that offsets differ.
  void reset() {
    std::shuffle(taken_.begin(), taken_.end(), random_);
    for (const auto& [arena, memory] : taken_) {
      EXPECT_EQ(weir_arena_free(arena, memory), WEIR_OK) << weir_last_error(nullptr);
    }
    taken_.clear();
    outside_.clear();
    symmetric_used_ = 0;
    if (random_() % 2 == 0) {
      void* memory = nullptr;
      if (weir_arena_alloc(arena_, 1 + random_() % 100'000, &memory) == WEIR_OK) {
        kept_.push_back(memory);
      }
    }
    if (kept_.size() > 20) drop_kept();
  }
  uint64_t random() { return random_(); }
  weir_arena_t arena() const { return arena_; }

 private:
  int32_t* take(weir_arena_t arena, size_t count) {
    void* memory = nullptr;
    EXPECT_EQ(weir_arena_alloc(arena, count * sizeof(int32_t), &memory), WEIR_OK)
        << weir_last_error(nullptr);
    taken_.emplace_back(arena, memory);
    return static_cast<int32_t*>(memory);
  }
  void drop_kept() {
    const size_t at = random_() % kept_.size();
    EXPECT_EQ(weir_arena_free(arena_, kept_[at]), WEIR_OK);
    kept_.erase(kept_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  weir_comm_t comm_;
  std::mt19937_64 random_;
  weir_arena_t arena_ = nullptr, second_ = nullptr;
  int32_t* symmetric_ = nullptr;
  size_t symmetric_used_ = 0;
  std::vector<std::pair<weir_arena_t, void*>> taken_;
  std::vector<void*> kept_;
  std::deque<std::vector<int32_t>> outside_;
};

enum Kind {
  kAllReduce,
  kPremulSum,
  kReduce,
  kBroadcast,
  kReduceScatter,
  kReduceScatterV,
  kAllGather,
  kAllGatherV,
  kAllToAll,
  kAllToAllV,
  kGather,
  kScatter,
  kKinds
};
constexpr const char* kNames[] = {"all_reduce",   "premul_sum",     "reduce",
                                  "broadcast",    "reduce_scatter", "reduce_scatter_v",
                                  "all_gather",   "all_gather_v",   "all_to_all",
                                  "all_to_all_v", "gather",         "scatter"};

// One call of this rank, and what it has to give.
struct Step {
  Kind kind;
  size_t n, self, root, count;
  bool all_in_place;
  std::vector<size_t> counts;         // of blocks
  std::vector<size_t> displacements;  // of blocks in recv
  int32_t* send = nullptr;
  int32_t* recv = nullptr;
  size_t recv_count = 0;
  std::string text;
  std::vector<int32_t> expected;
  bool is_float = false;
  weir_redop_t op = WEIR_SUM;
};

// The same on all ranks.
Step shared_step(int call, size_t n, size_t self, std::mt19937_64& random) {
  Step step;
  step.kind = static_cast<Kind>(random() % kKinds);
  step.n = n;
  step.self = self;
  step.root = random() % n;
  constexpr size_t kCounts[] = {0, 1, 777, 4096, 5000, 20'011, kLongest};
  step.count = kCounts[random() % std::size(kCounts)];
  step.all_in_place = random() % 2 == 0;
  const bool blocks = step.kind >= kReduceScatter;
  if (blocks) step.count /= n;
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    step.counts.push_back(step.count == 0 ? 0 : random() % (step.count + 1));
    step.displacements.push_back(at);
    at += step.counts.back() + random() % 3;
  }
  step.op = random() % 3 == 0 ? WEIR_MAX : WEIR_SUM;
  step.text = fmt::format("call {}: {} of {} elements, root {}", call, kNames[step.kind],
                          step.count, step.root);
  return step;
}

int32_t folded(const Step& step, int call, size_t index) {
  int32_t result = value_of(call, 0, index);
  for (size_t p = 1; p < step.n; ++p) {
    const int32_t value = value_of(call, p, index);
    result = step.op == WEIR_MAX ? std::max(result, value) : result + value;
  }
  return result;
}

// Chooses the buffers, fills them, and finds out what is expected.
void prepare(Step& s, int call, Buffers& buffers) {
  const bool is_root = s.self == s.root;
  const bool rooted =
      s.kind == kReduce || s.kind == kBroadcast || s.kind == kGather || s.kind == kScatter;
  size_t send_count = s.count;
  s.recv_count = s.count;
  size_t send_at_in_recv = 0;  // in place: send == recv + this
  size_t recv_at_in_send = 0;  // or recv == send + this
  const size_t total = std::accumulate(s.counts.begin(), s.counts.end(), size_t{0});
  const size_t before = std::accumulate(
      s.counts.begin(), s.counts.begin() + static_cast<std::ptrdiff_t>(s.self), size_t{0});
  switch (s.kind) {
    case kReduceScatter:
      send_count = s.n * s.count;
      recv_at_in_send = s.self * s.count;
      break;
    case kReduceScatterV:
      send_count = total;
      s.recv_count = s.counts[s.self];
      recv_at_in_send = before;
      break;
    case kAllGather:
    case kGather:
      s.recv_count = s.n * s.count;
      send_at_in_recv = s.self * s.count;
      break;
    case kAllGatherV:
      send_count = s.counts[s.self];
      s.recv_count = s.displacements.back() + s.counts.back();
      send_at_in_recv = s.displacements[s.self];
      break;
    case kAllToAll:
      send_count = s.recv_count = s.n * s.count;
      break;
    case kAllToAllV: {  // rank p sends counts[(p + i) % n] elements to rank i
      send_count = total;
      s.recv_count = total;
      break;
    }
    case kScatter:
      send_count = s.n * s.count;
      recv_at_in_send = s.self * s.count;
      break;
    default:
      break;
  }
  const bool sends = !rooted || is_root || s.kind == kReduce || s.kind == kGather;
  const bool receives = !rooted || is_root || s.kind == kBroadcast || s.kind == kScatter;
  bool in_place =
      s.kind == kAllToAll ? s.all_in_place : s.kind != kAllToAllV && buffers.random() % 2 == 0;
  in_place = in_place && sends && receives && send_count > 0 && s.recv_count > 0;
  std::string send_kind = "none", recv_kind = "none";
  if (in_place) {
    const size_t longest = std::max(send_count, s.recv_count);
    int32_t* both = buffers.get(longest, &send_kind);
    s.send = both + (send_count < s.recv_count ? send_at_in_recv : 0);
    s.recv = both + (s.recv_count < send_count ? recv_at_in_send : 0);
    recv_kind = "in place";
  } else {
    if (sends) s.send = buffers.get(send_count, &send_kind);
    if (receives) s.recv = buffers.get(s.recv_count, &recv_kind);
  }
  s.text += fmt::format("; rank {} sends from {}, receives in {}", s.self, send_kind, recv_kind);
  const auto put = [&](size_t at, int32_t value) {
    if (s.is_float) {
      reinterpret_cast<float*>(s.send)[at] = static_cast<float>(value);
    } else {
      s.send[at] = value;
    }
  };
  s.is_float = s.kind == kPremulSum;
  for (size_t i = 0; sends && i < send_count; ++i) put(i, value_of(call, s.self, i));
  if (!receives) return;
  auto& e = s.expected;
  e.assign(s.recv_count, kGuardValue);
  for (size_t i = 0; i < s.recv_count; ++i) {
    switch (s.kind) {
      case kAllReduce:
      case kReduce:
        e[i] = folded(s, call, i);
        break;
      case kPremulSum:
        e[i] = 0;
        for (size_t p = 0; p < s.n; ++p) e[i] += static_cast<int32_t>(p + 1) * value_of(call, p, i);
        break;
      case kBroadcast:
        e[i] = value_of(call, s.root, i);
        break;
      case kReduceScatter:
        e[i] = folded(s, call, s.self * s.count + i);
        break;
      case kReduceScatterV:
        e[i] = folded(s, call, before + i);
        break;
      case kAllGather:
      case kGather:
        e[i] = value_of(call, i / s.count, i % s.count);
        break;
      case kAllToAll:
        e[i] = value_of(call, i / s.count, s.self * s.count + i % s.count);
        break;
      case kScatter:
        e[i] = value_of(call, s.root, s.self * s.count + i);
        break;
      default:
        break;
    }
  }
  if (s.kind == kAllGatherV) {
    for (size_t p = 0; p < s.n; ++p) {
      for (size_t i = 0; i < s.counts[p]; ++i) e[s.displacements[p] + i] = value_of(call, p, i);
    }
  }
  if (s.kind == kAllToAllV) {
    size_t to = 0;
    for (size_t p = 0; p < s.n; ++p) {
      size_t from = 0;
      for (size_t i = 0; i < s.self; ++i) from += s.counts[(p + i) % s.n];
      for (size_t i = 0; i < s.counts[(p + s.self) % s.n]; ++i)
        e[to++] = value_of(call, p, from + i);
    }
  }
}

weir_result_t run(weir_comm_t comm, const Step& s, weir_redop_t premul, weir_request_t* request) {
  const int root = static_cast<int>(s.root);
  std::vector<size_t> sent, received;
  for (size_t i = 0; i < s.n; ++i) {
    sent.push_back(s.counts[(s.self + i) % s.n]);
    received.push_back(s.counts[(i + s.self) % s.n]);
  }
  switch (s.kind) {
    case kAllReduce:
      return weir_all_reduce(comm, s.send, s.recv, s.count, WEIR_INT32, s.op, request);
    case kPremulSum:
      return weir_all_reduce(comm, s.send, s.recv, s.count, WEIR_FLOAT32, premul, request);
    case kReduce:
      return weir_reduce(comm, s.send, s.recv, s.count, WEIR_INT32, s.op, root, request);
    case kBroadcast:
      return weir_broadcast(comm, s.send, s.recv, s.count, WEIR_INT32, root, request);
    case kReduceScatter:
      return weir_reduce_scatter(comm, s.send, s.recv, s.count, WEIR_INT32, s.op, request);
    case kReduceScatterV:
      return weir_reduce_scatter_v(comm, s.send, s.recv, s.counts.data(), WEIR_INT32, s.op,
                                   request);
    case kAllGather:
      return weir_all_gather(comm, s.send, s.recv, s.count, WEIR_INT32, request);
    case kAllGatherV:
      return weir_all_gather_v(comm, s.send, s.recv, s.counts.data(), s.displacements.data(),
                               WEIR_INT32, request);
    case kAllToAll:
      return weir_all_to_all(comm, s.send, s.recv, s.count, WEIR_INT32, request);
    case kAllToAllV:
      return weir_all_to_all_v(comm, s.send, sent.data(), nullptr, s.recv, received.data(), nullptr,
                               WEIR_INT32, request);
    case kGather:
      return weir_gather(comm, s.send, s.recv, s.count, WEIR_INT32, root, request);
    default:
      return weir_scatter(comm, s.send, s.recv, s.count, WEIR_INT32, root, request);
  }
}

void check(const Step& s) {
  for (size_t i = 0; i < s.expected.size(); ++i) {
    // Between the blocks of an all_gather_v.
    if (s.expected[i] == kGuardValue) {
      ASSERT_EQ(s.recv[i], kGuardValue) << s.text << " between blocks, at " << i;
    } else if (s.is_float) {
      ASSERT_EQ(reinterpret_cast<float*>(s.recv)[i], static_cast<float>(s.expected[i]))
          << s.text << " at " << i;
    } else {
      ASSERT_EQ(s.recv[i], s.expected[i]) << s.text << " at " << i;
    }
  }
  if (s.recv == nullptr || s.recv == s.send) return;
  const bool in_send = s.send != nullptr && s.recv > s.send && s.recv < s.send + s.n * kLongest;
  for (size_t i = 0; i < kGuard && !in_send; ++i) {
    ASSERT_EQ(s.recv[s.recv_count + i], kGuardValue) << s.text << " behind its end";
  }
}

void run_calls(int rank, weir_comm_t comm, size_t n, uint64_t seed, int rounds) {
  std::mt19937_64 shared(seed);
  Buffers buffers(comm, seed * 31 + static_cast<uint64_t>(rank));
  const auto factor = static_cast<float>(rank + 1);
  weir_redop_t premul = 0;
  ASSERT_EQ(weir_redop_create_premul_sum(comm, &factor, WEIR_FLOAT32, &premul), WEIR_OK);
  for (int call = 0; call < rounds && !testing::Test::HasFailure();) {
    // One call, or several in flight.
    const size_t burst = 1 + (shared() % 3 == 0 ? shared() % 3 : 0);
    std::vector<Step> steps;
    for (size_t i = 0; i < burst; ++i) {
      steps.push_back(shared_step(call, n, static_cast<size_t>(rank), shared));
      prepare(steps.back(), call++, buffers);
    }
    std::vector<weir_request_t> requests(burst, nullptr);
    for (size_t i = 0; i < burst; ++i) {
      const bool waits = burst == 1 && buffers.random() % 2 == 0;
      ASSERT_EQ(run(comm, steps[i], premul, waits ? nullptr : &requests[i]), WEIR_OK)
          << steps[i].text << ": " << weir_last_error(comm);
    }
    ASSERT_EQ(weir_wait_all(requests.data(), burst), WEIR_OK)
        << steps[0].text << ": " << weir_last_error(comm);
    for (const Step& step : steps) check(step);
    buffers.reset();
  }
  ASSERT_EQ(weir_redop_destroy(comm, premul), WEIR_OK);
}

struct Rounds {
  uint64_t seed = number_of("WEIR_TEST_SEED", std::random_device{}());
  int count = static_cast<int>(number_of("WEIR_TEST_ROUNDS", 120));
  std::string text = fmt::format("WEIR_TEST_SEED={}", seed);
};

TEST(ArenaRandom, EveryCallIsRightInProcesses) {
  const Rounds given;
  SCOPED_TRACE(given.text);
  for (const int n : {2, 3, 4, 8}) {
    run_processes(n, [&](int rank, weir_comm_t comm) {
      SCOPED_TRACE(given.text);
      run_calls(rank, comm, static_cast<size_t>(n), given.seed + static_cast<uint64_t>(n),
                given.count);
    });
  }
}

TEST(ArenaRandom, EveryCallIsRightInThreads) {
  const Rounds given;
  SCOPED_TRACE(given.text);
  for (const int n : {2, 5}) {
    run_threads(n, [&](int rank, weir_comm_t comm) {
      run_calls(rank, comm, static_cast<size_t>(n), given.seed + static_cast<uint64_t>(n),
                given.count);
    });
  }
}

TEST(ArenaRandom, EveryCallIsRightWhereAllFoldInOrder) {
  const Rounds given;
  SCOPED_TRACE(given.text);
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.flags = WEIR_COMM_DETERMINISTIC;
  run_processes(
      3, [&](int rank, weir_comm_t comm) { run_calls(rank, comm, 3, given.seed, given.count); }, {},
      config);
}

}  // namespace
}  // namespace weir::test
