// SPDX-License-Identifier: Apache-2.0
// The start-up probe over a transport of this file's own, which is slow, fails or falls silent at
// any step: nothing stays posted, and the figures are what the link is.
#include "core/engine/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/cost/plausible.h"
#include "core/engine/probe_link.h"
#include "core/engine/probe_messages.h"
#include "core/topo/caches.h"
#include "support/attempts.h"
#include "support/scripted_transport.h"

namespace weir::engine {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;

using test::Attempts;
using test::End;
using test::Fault;
using test::Wire;

// Two ranks and what lies between them.
struct Pair {
  Wire wire;
  std::array<End, 2> ends;
  std::array<Context, 2> contexts;
  std::array<Status, 2> statuses;
  std::array<bool, 2> complete = {true, true};
  cost::LinkTimes link = cost::built_in_table().times.link(cost::Link::kTcp);
  std::vector<unsigned char> segment;
  double seconds = 0;

  Pair() {
    for (Rank rank : {0u, 1u}) {
      ends[rank].wire = &wire;
      ends[rank].rank = rank;
      contexts[rank].rank = rank;
      contexts[rank].rank_count = 2;
      contexts[rank].transport = &test::scripted_transport();
      contexts[rank].instance = reinterpret_cast<weir_transport_t*>(&ends[rank]);
    }
  }
  void share_memory() {
    constexpr uint64_t kStride = kStagingOffset + 128 * 1024;
    segment.assign(2 * kStride + 4096, 0);
    auto* base = segment.data();
    base += 4096 - reinterpret_cast<uintptr_t>(base) % 4096;
    for (Context& context : contexts) {
      context.segment_base = base;
      context.segment_stride_bytes = kStride;
      context.staging_bytes = 128 * 1024;
    }
  }
  template <class Probe>
  void run(const Probe& probe) {
    const uint64_t begin = now_ns();
    std::thread other([&] { statuses[1] = probe(1u); });
    statuses[0] = probe(0u);
    other.join();
    seconds = static_cast<double>(now_ns() - begin) * 1e-9;
    EXPECT_FALSE(ends[0].holds_something());
    EXPECT_FALSE(ends[1].holds_something());
  }
  void probe_over_link(bool is_network, uint64_t patience_ns, bool brief = false) {
    run([&, deadline = now_ns() + patience_ns](Rank rank) {
      cost::LinkTimes unused;
      return probe_link(contexts[rank], 1 - rank, rank == 0,
                        {.is_network = is_network, .brief = brief}, deadline, {},
                        rank == 0 ? &link : &unused, &complete[rank]);
    });
  }
  void probe_over_memory(uint64_t patience_ns) {
    run([&, deadline = now_ns() + patience_ns](Rank rank) {
      auto found = probe_tasks(contexts[rank], 7, deadline, {}, &complete[rank]);
      return found.ok() ? Status() : found.status();
    });
  }
  bool nothing_is_left() const {
    return std::all_of(wire.queues.begin(), wire.queues.end(),
                       [](const auto& queue) { return queue.second.empty(); });
  }
};

TEST(LinkProbe, OverAFastLinkMeasuresEverythingAndLeavesNothing) {
  Pair pair;
  pair.probe_over_link(true, 60'000 * kMillisecond);
  ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
  ASSERT_TRUE(pair.statuses[1].ok()) << pair.statuses[1].text();
  EXPECT_TRUE(pair.nothing_is_left());
  EXPECT_GT(pair.link.message_ns, 0);
  EXPECT_LT(pair.link.message_ns, 100e6);
  EXPECT_GT(pair.link.wire_ns_per_byte, 0);
}

// 64 kbit/s, 300 ms each way.
TEST(LinkProbe, OverASlowLinkEndsInSecondsWithWhatItHasFound) {
  Pair pair;
  pair.wire.latency_ns = 300 * kMillisecond;
  pair.wire.ns_per_byte = 125'000;
  const cost::LinkTimes built_in = pair.link;
  pair.probe_over_link(true, 60'000 * kMillisecond);
  ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
  ASSERT_TRUE(pair.statuses[1].ok()) << pair.statuses[1].text();
  EXPECT_TRUE(pair.nothing_is_left());
  EXPECT_LT(pair.seconds, 15);
  EXPECT_FALSE(pair.complete[0]);
  EXPECT_LE(pair.ends[0].largest_bytes, 8u * 1024);
  EXPECT_GT(pair.link.message_ns, 300e6);
  EXPECT_LT(pair.link.message_ns, 1000e6);
  EXPECT_GT(pair.link.wire_ns_per_byte, 60'000);
  EXPECT_LT(pair.link.wire_ns_per_byte, 1'000'000);
  EXPECT_EQ(pair.link.slot_in_ns_per_byte, built_in.slot_in_ns_per_byte);
}

// Six of them in turns, as between three hosts, must not take a minute.
TEST(LinkProbe, ABriefOneOverALongWayEndsAfterTheRoundTrips) {
  Pair pair;
  pair.wire.latency_ns = 300 * kMillisecond;
  pair.probe_over_link(true, 60'000 * kMillisecond, true);
  ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
  ASSERT_TRUE(pair.statuses[1].ok()) << pair.statuses[1].text();
  EXPECT_TRUE(pair.nothing_is_left());
  EXPECT_EQ(pair.link.wire_ns_per_byte, 0);
  EXPECT_LE(pair.ends[0].largest_bytes, 64u);
}

TEST(LinkProbe, ABriefOneMeasuresTheWire) {
  Pair pair;
  pair.wire.latency_ns = 5 * kMillisecond;
  pair.wire.ns_per_byte = 1'000;
  pair.probe_over_link(true, 60'000 * kMillisecond, true);
  ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
  EXPECT_GT(pair.link.wire_ns_per_byte, 500);
  EXPECT_LT(pair.link.wire_ns_per_byte, 10'000);
}

// As if the peer stood still: no figure of it is one that a table may hold.
TEST(LinkProbe, OfAPeerThatStandsStillKeepsTheBuiltInFigures) {
  Pair pair;
  pair.wire.latency_ns = 1'200 * kMillisecond;
  const cost::LinkTimes built_in = pair.link;
  pair.probe_over_link(true, 60'000 * kMillisecond);
  ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
  ASSERT_TRUE(pair.statuses[1].ok()) << pair.statuses[1].text();
  EXPECT_TRUE(pair.nothing_is_left());
  EXPECT_FALSE(pair.complete[0]);
  EXPECT_EQ(pair.link.message_ns, built_in.message_ns);
  EXPECT_EQ(pair.link.wire_ns_per_byte, built_in.wire_ns_per_byte);
}

// Within what its bucket holds a shaped link is fast.
TEST(LinkProbe, WhatALinkCannotCarryInTimeIsNotBegun) {
  Pair pair;
  pair.wire.ns_per_byte =
      5'000;  // 1.6 Mbit/s: 64 KiB take a third of a second, 256 KiB more than one
  pair.probe_over_link(true, 60'000 * kMillisecond);
  ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
  EXPECT_LE(pair.ends[0].largest_bytes, 64u * 1024);
  EXPECT_LT(pair.seconds, 15);
}

// What is slow within a host is the machine, not the link.
TEST(LinkProbe, WithinAHostASlowLinkKeepsTheBuiltInFigures) {
  Pair pair;
  pair.wire.latency_ns = 300 * kMillisecond;
  pair.wire.ns_per_byte = 125'000;
  const double built_in = pair.link.message_ns;
  pair.probe_over_link(false, 60'000 * kMillisecond);
  ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
  EXPECT_FALSE(pair.complete[0]);
  EXPECT_EQ(pair.link.message_ns, built_in);
}

// Steps at the beginning, and some within what is large.
std::vector<uint64_t> steps() {
  std::vector<uint64_t> all;
  for (uint64_t step = 0; step < 20; ++step) all.push_back(step);
  for (uint64_t step = 50; step < 3000; step = step * 3 / 2) all.push_back(step);
  return all;
}

TEST(LinkProbe, ARankThatIsSlowAtAnyStepOnlyDelays) {
  for (const Rank rank : {0u, 1u}) {
    for (const uint64_t step : steps()) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", step " << step);
      Pair pair;
      pair.ends[rank].fault = Fault::kSlow;
      pair.ends[rank].step = step;
      pair.probe_over_link(false, 60'000 * kMillisecond);
      ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
      ASSERT_TRUE(pair.statuses[1].ok()) << pair.statuses[1].text();
      ASSERT_TRUE(pair.nothing_is_left());
    }
  }
}

TEST(LinkProbe, AnErrorAtAnyStepIsToldAndNothingStaysPosted) {
  for (const Rank rank : {0u, 1u}) {
    for (const uint64_t step : steps()) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", step " << step);
      Pair pair;
      pair.ends[rank].fault = Fault::kError;
      pair.ends[rank].step = step;
      pair.probe_over_link(false, 150 * kMillisecond);
      if (pair.ends[rank].post_count <= step) continue;  // it was done before
      EXPECT_EQ(pair.statuses[rank].code(), Code::kSystem);
      // The other one hears of it through the bootstrap, or waits until its deadline.
      EXPECT_TRUE(pair.statuses[1 - rank].code() == Code::kTimeout || pair.statuses[1 - rank].ok());
    }
  }
}

void expect_named(Fault fault, Rank rank, uint64_t step) {
  SCOPED_TRACE(testing::Message() << "rank " << rank << ", step " << step);
  uint64_t patience_ns = 150 * kMillisecond;
  for (Attempts attempts; attempts.next(); patience_ns *= 2) {
    Pair pair;
    pair.ends[rank].fault = fault;
    pair.ends[rank].step = step;
    pair.probe_over_link(false, patience_ns);
    if (!pair.ends[rank].silent) return;  // it was done before, or its time was up
    const Status& other = pair.statuses[1 - rank];
    if (other.ok()) return;  // the leader does not wait after its last word
    // On a busy machine the time may be up before the rank dies, for both.
    if (fault == Fault::kDies && other.code() == Code::kTimeout) continue;
    EXPECT_EQ(other.code(), fault == Fault::kDies ? Code::kPeerLost : Code::kTimeout);
    EXPECT_NE(other.text().find("rank " + std::to_string(rank)), std::string::npos) << other.text();
    EXPECT_EQ(pair.statuses[rank].code(), Code::kTimeout);
    return;
  }
  ADD_FAILURE() << "nobody heard of the death";
}

TEST(LinkProbe, ARankThatFallsSilentOrDiesIsNamed) {
  for (const Fault fault : {Fault::kSilent, Fault::kDies}) {
    for (const Rank rank : {0u, 1u}) {
      for (const uint64_t step : {0, 1, 2, 3, 5, 8, 13, 100, 900}) expect_named(fault, rank, step);
    }
  }
}

TEST(PairProbe, ARankThatIsSlowAtAnyStepOnlyDelays) {
  for (const Rank rank : {0u, 1u}) {
    for (const uint64_t step : {0, 1, 2, 7, 100, 600}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", step " << step);
      Pair pair;
      pair.share_memory();
      pair.ends[rank].fault = Fault::kSlow;
      pair.ends[rank].step = static_cast<uint64_t>(step);
      pair.probe_over_memory(60'000 * kMillisecond);
      ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
      ASSERT_TRUE(pair.statuses[1].ok()) << pair.statuses[1].text();
      ASSERT_TRUE(pair.nothing_is_left());
    }
  }
}

TEST(PairProbe, TheCachesAreThoseThatSysShows) {
  Pair pair;
  pair.share_memory();
  cost::Table table;
  pair.run([&, deadline = now_ns() + 60'000 * kMillisecond](Rank rank) {
    auto found = probe_tasks(pair.contexts[rank], 7, deadline, {}, &pair.complete[rank]);
    if (rank == 0 && found.ok()) table = found.value();
    return found.ok() ? Status() : found.status();
  });
  const topo::CpuCaches caches = topo::own_caches();
  if (!caches.known) GTEST_SKIP() << "/sys shows no caches";
  EXPECT_EQ(table.times.l2_bytes, caches.l2_bytes);
  EXPECT_EQ(table.times.l3_bytes, caches.last_bytes);
}

// What both ways of moving data take, each with both ranks at work.
TEST(PairProbe, MessagesAndStagingAreMeasuredInEachRegime) {
  Pair pair;
  pair.share_memory();
  cost::Table table;
  pair.run([&, deadline = now_ns() + 60'000 * kMillisecond](Rank rank) {
    auto found = probe_tasks(pair.contexts[rank], 7, deadline, {}, &pair.complete[rank]);
    if (rank == 0 && found.ok()) table = found.value();
    return found.ok() ? Status() : found.status();
  });
  ASSERT_TRUE(pair.statuses[0].ok()) << pair.statuses[0].text();
  if (!pair.complete[0]) GTEST_SKIP() << "the machine is busy";
  const cost::LinkTimes& link = table.times.link(cost::Link::kShmSharedCache);
  for (size_t r = 0; r < cost::kRegimeCount; ++r) {
    EXPECT_GT(link.window_ns_per_byte[r], 0);
    EXPECT_LT(link.window_ns_per_byte[r], 1000);
    EXPECT_GT(link.slot_in_ns_per_byte[r], 0);
    EXPECT_LT(link.slot_in_ns_per_byte[r], 1000);
    EXPECT_EQ(link.slot_in_ns_per_byte[r], link.slot_out_ns_per_byte[r]);
  }
}

// On a busy machine, one of several attempts.
TEST(PairProbe, WhatIsMeasuredOnThisMachineIsPlausible) {
  std::string reason = "nothing was measured in full";
  for (test::Attempts attempts; !reason.empty() && attempts.next();) {
    Pair pair;
    pair.share_memory();
    pair.run([&, deadline = now_ns() + 60'000 * kMillisecond](Rank rank) {
      auto found = probe_tasks(pair.contexts[rank], 7, deadline, {}, &pair.complete[rank]);
      if (!found.ok()) return found.status();
      // The messages of this file are not those of shared memory.
      if (rank == 0 && pair.complete[0]) {
        reason = cost::why_implausible(found.value(), {.shared_cores = true, .by_messages = true});
      }
      return Status();
    });
    EXPECT_TRUE(pair.complete[1]) << "rank 0 decides";
  }
  EXPECT_EQ(reason, "");
}

TEST(PairProbe, AnErrorOfOneRankEndsBoth) {
  for (const Rank rank : {0u, 1u}) {
    for (const uint64_t step : {0, 1, 2, 7}) {
      SCOPED_TRACE(testing::Message() << "rank " << rank << ", step " << step);
      Pair pair;
      pair.share_memory();
      pair.ends[rank].fault = Fault::kError;
      pair.ends[rank].step = static_cast<uint64_t>(step);
      pair.probe_over_memory(60'000 * kMillisecond);
      EXPECT_EQ(pair.statuses[rank].code(), Code::kSystem);
      EXPECT_EQ(pair.statuses[1 - rank].code(), Code::kAborted);
      EXPECT_LT(pair.seconds, 30);
    }
  }
}

TEST(PairProbe, ARankThatNeverComesIsNamedAtTheDeadline) {
  Pair pair;
  pair.share_memory();
  bool complete = true;
  const auto found = probe_tasks(pair.contexts[0], 7, now_ns() + 300 * kMillisecond, {}, &complete);
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.status().code(), Code::kTimeout);
  EXPECT_NE(found.status().text().find("rank 0 waits for rank 1"), std::string::npos)
      << found.status().text();
  pair.wire.dead[0] = true;
  const auto lost =
      probe_tasks(pair.contexts[1], 7, now_ns() + 60'000 * kMillisecond, {}, &complete);
  ASSERT_FALSE(lost.ok());
}

}  // namespace
}  // namespace weir::engine
