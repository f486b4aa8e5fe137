// SPDX-License-Identifier: Apache-2.0
#include "core/comm/stream/stream_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/comm/stream/scheduled_program.h"
#include "core/comm/stream/stream_ways.h"
#include "core/graph/rings.h"

namespace weir::comm {
namespace {

constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduceScatter,
                               Collective::kAllGather, Collective::kAllToAll,
                               Collective::kBroadcast, Collective::kReduce,
                               Collective::kGather,    Collective::kScatter};
constexpr uint64_t kUntouched = ~uint64_t{0};

bool has_send_blocks(Collective it) {
  return it == Collective::kReduceScatter || it == Collective::kAllToAll ||
         it == Collective::kScatter;
}
bool has_recv_blocks(Collective it) {
  return it == Collective::kAllGather || it == Collective::kAllToAll || it == Collective::kGather;
}

bool has_windows(Collective it) { return it != Collective::kScatter; }

// Devices on which streams carry out programs: elements of 8 bytes, folded in order by a hash, so
// that another order gives another value; those of schedules, which have orders of their own, are
// added.
class Machine {
 public:
  Machine(Rank n, uint64_t slot_bytes) : n_(n), slot_(slot_bytes) {
    flags_.resize(StreamProgram::flag_count(n));
    for (size_t i = 1; i < StreamProgram::pair_flag_count(n); i += 2) flags_[i] = 1;
    scratch_.assign(n, std::vector<uint64_t>(StreamProgram::kSlots * slot_bytes / 8));
    streams_.resize(n);
  }

  struct Buffers {
    std::vector<uint64_t> send;
    std::vector<uint64_t> recv;
    bool in_place = false;
    size_t recv_begin = 0;  // in `send`, where it is in place
  };

  // The buffers of all ranks in the call.
  // `by_need`: of a schedule, whose copies StreamCall makes in the order that they need.
  void push(Rank rank, std::vector<Buffers>* all, std::vector<StreamOp> ops, bool by_need = false) {
    if (!by_need) mix_copies(&ops);
    for (const StreamOp& op : ops) streams_[rank].push_back({op, all});
  }
  bool empty(Rank rank) const { return streams_[rank].empty(); }

  // Carries out the first operation of the stream; false: it waits.
  bool advance(Rank rank) {
    auto& [op, all] = streams_[rank].front();
    Buffers* const buffers = &(*all)[rank];
    if (op.kind == StreamOp::Kind::kWait) {
      if (flags_[op.flag] != op.value) return false;
    } else if (op.kind == StreamOp::Kind::kSet) {
      flags_[op.flag] = op.value;
    } else if (op.kind == StreamOp::Kind::kCopy) {
      EXPECT_EQ(op.bytes % 8, 0u);
      for (uint64_t i = 0; i < op.bytes; i += 8) {
        const bool is_peers =
            op.from.memory == StreamBuffer::kPeerSend || op.from.memory == StreamBuffer::kPeerRecv;
        Buffers& from = is_peers ? (*all)[op.from.rank] : *buffers;
        at(rank, *buffers, op.to, i) = at(is_peers ? op.from.rank : rank, from, op.from, i);
      }
    } else if (!op.operands.empty()) {
      for (uint64_t i = 0; i < op.count; ++i) {
        uint64_t value = 0;
        for (const StreamPlace& operand : op.operands) value += at(rank, *buffers, operand, 8 * i);
        if (op.stores) at(rank, *buffers, op.to, 8 * i) = value;
        if (op.keeps) scratch(rank, op.kept_offset + 8 * i) = value;
      }
    } else {
      for (uint64_t i = 0; i < op.count; ++i) {
        const auto operand = [&, &op = op, all = all](Rank r) {
          return op.from.memory == StreamBuffer::kPeerSend
                     ? (*all)[r].send.at(op.from.offset / 8 + i)
                     : scratch(r, op.from.offset + 8 * i);
        };
        uint64_t value = operand(0);
        for (Rank r = 1; r < n_; ++r) value = value * 31 + operand(r);
        if (op.stores) at(rank, *buffers, op.to, 8 * i) = value;
        if (op.keeps) scratch(rank, op.kept_offset + 8 * i) = value;
      }
    }
    streams_[rank].pop_front();
    return true;
  }

 private:
  // Copies that follow each other have no order: one kernel makes them.
  void mix_copies(std::vector<StreamOp>* ops) {
    const auto is_copy = [](const StreamOp& op) { return op.kind == StreamOp::Kind::kCopy; };
    for (auto begin = ops->begin(); begin != ops->end();) {
      begin = std::find_if(begin, ops->end(), is_copy);
      const auto end = std::find_if_not(begin, ops->end(), is_copy);
      std::shuffle(begin, end, random_);
      begin = end;
    }
  }
  uint64_t& scratch(Rank rank, uint64_t offset) { return scratch_[rank].at(offset / 8); }
  uint64_t& at(Rank rank, Buffers& buffers, const StreamPlace& place, uint64_t offset) {
    const uint64_t index = (place.offset + offset) / 8;
    if (place.memory == StreamBuffer::kScratch) return scratch(place.rank, place.offset + offset);
    EXPECT_EQ(place.rank, rank);
    if (place.memory == StreamBuffer::kSend || place.memory == StreamBuffer::kPeerSend) {
      return buffers.send.at(index);
    }
    return buffers.in_place ? buffers.send.at(buffers.recv_begin + index) : buffers.recv.at(index);
  }

  Rank n_;
  uint64_t slot_;
  std::mt19937_64 random_{20261128};
  std::vector<uint32_t> flags_;
  std::vector<std::vector<uint64_t>> scratch_;
  std::vector<std::deque<std::pair<StreamOp, std::vector<Buffers>*>>> streams_;
};

uint64_t value_of(Rank rank, uint64_t index, uint64_t seed) {
  return (rank + 1) * 1000003 + index * 7 + seed * 977;
}

struct Case {
  Collective collective;
  Rank n;
  Rank root;
  uint64_t count;
  uint64_t slot_bytes;
  bool in_place;
  bool in_windows = false;
  bool adds = false;

  StreamShape call() const {
    StreamShape it;
    it.collective = collective;
    it.root = root;
    it.count = count;
    it.element_bytes = 8;
    it.fingerprint = 1 + static_cast<uint32_t>(collective) * 100 + static_cast<uint32_t>(root);
    it.in_windows = in_windows;
    return it;
  }
  std::string text() const {
    return "collective " + std::to_string(static_cast<int>(collective)) + ", " + std::to_string(n) +
           " ranks, root " + std::to_string(root) + ", count " + std::to_string(count) + ", slot " +
           std::to_string(slot_bytes) + (in_place ? ", in place" : "") +
           (in_windows ? ", in windows" : "");
  }
  Machine::Buffers buffers(Rank rank, uint64_t seed) const {
    Machine::Buffers it;
    const bool wide = has_recv_blocks(collective) || has_send_blocks(collective);
    it.in_place = in_place;
    it.send.resize((in_place && wide) || has_send_blocks(collective) ? n * count : count);
    it.recv.assign(has_recv_blocks(collective) ? n * count : count, kUntouched);
    for (size_t i = 0; i < it.send.size(); ++i) it.send[i] = value_of(rank, i, seed);
    if (!in_place) return it;
    if (collective == Collective::kReduceScatter) it.recv_begin = rank * count;
    if (collective == Collective::kScatter) it.recv_begin = rank * count;
    return it;
  }
  // Where the send buffer begins in `send`.
  uint64_t shift(Rank rank) const {
    const bool own_block =
        collective == Collective::kAllGather || collective == Collective::kGather;
    return in_place && own_block ? rank * count : 0;
  }
  void check(const std::vector<Machine::Buffers>& all, uint64_t seed) const {
    for (Rank rank = 0; rank < n; ++rank) {
      const bool to_root = collective == Collective::kReduce || collective == Collective::kGather;
      if (to_root && rank != root) continue;
      for (uint64_t i = 0; i < (has_recv_blocks(collective) ? n * count : count); ++i) {
        const auto& it = all[rank];
        const uint64_t got = in_place ? it.send[it.recv_begin + i] : it.recv[i];
        ASSERT_EQ(got, expected(rank, i, seed)) << text() << ", rank " << rank << ", index " << i;
      }
    }
  }
  uint64_t expected(Rank rank, uint64_t i, uint64_t seed) const {
    const auto block = static_cast<Rank>(i / count);
    switch (collective) {
      case Collective::kAllReduce:
      case Collective::kReduce:
      case Collective::kReduceScatter: {
        const uint64_t at = collective == Collective::kReduceScatter ? rank * count + i : i;
        uint64_t value = value_of(0, at, seed);
        for (Rank r = 1; r < n; ++r) value = value * (adds ? 1 : 31) + value_of(r, at, seed);
        return value;
      }
      case Collective::kAllGather:
      case Collective::kGather:
        return value_of(block, shift(block) + i % count, seed);
      case Collective::kAllToAll:
        return value_of(block, rank * count + i % count, seed);
      case Collective::kScatter:
        return value_of(root, rank * count + i, seed);
      default:
        return value_of(root, i, seed);
    }
  }
};

// The operations of one rank, with the send buffer where it is.
template <typename AnyProgram>
std::vector<StreamOp> step_of(const Case& it, const AnyProgram& program, Rank rank, size_t index) {
  std::vector<StreamOp> ops;
  program.step(index, &ops);
  for (StreamOp& op : ops) {
    for (StreamPlace& operand : op.operands) {
      if (operand.memory == StreamBuffer::kSend) operand.offset += 8 * it.shift(rank);
    }
    if (op.kind != StreamOp::Kind::kCopy) continue;
    if (op.from.memory == StreamBuffer::kSend) op.from.offset += 8 * it.shift(rank);
    if (op.from.memory == StreamBuffer::kPeerSend) op.from.offset += 8 * it.shift(op.from.rank);
  }
  return ops;
}

// What the caller does with its buffers as soon as its part of the call is over.
std::vector<StreamOp> spoil(const Case& it, Rank rank, const Machine::Buffers& buffers) {
  std::vector<StreamOp> ops;
  if (it.in_place) return ops;
  StreamOp op;
  op.kind = StreamOp::Kind::kCopy;
  op.from = {StreamBuffer::kSend, rank, 0};
  op.bytes = 8;
  for (uint64_t i = 1; i < buffers.send.size(); ++i) {
    op.to = {StreamBuffer::kSend, rank, 8 * i};
    ops.push_back(op);
  }
  return ops;
}

std::vector<Case> cases(Rank ranks_max) {
  std::vector<Case> all;
  for (Rank n = 1; n <= ranks_max; ++n) {
    for (const Collective collective : kAll) {
      for (const uint64_t count : {1, 5, 100, 1000, 40000}) {
        for (const bool in_place : {false, true}) {
          if (count == 40000 && (n > 4 || in_place)) continue;  // of two phases
          const uint64_t slot = count == 40000 ? 65536 : StreamProgram::slot_bytes_min(n) * 2;
          all.push_back({collective, n, n / 2, count, slot, in_place});
          if (!has_windows(collective) || (collective == Collective::kAllToAll && in_place)) {
            continue;
          }
          all.push_back({collective, n, n / 2, count, slot, in_place, true});
        }
      }
    }
  }
  return all;
}

TEST(StreamProgram, EveryCollectiveGivesItsValuesInAnyOrderOfTheStreams) {
  std::mt19937_64 random(20261127);
  for (const Case& it : cases(9)) {
    Machine machine(it.n, it.slot_bytes);
    // Twice, as a replay would: the flags are as before.
    for (uint64_t seed = 0; seed < 2; ++seed) {
      std::vector<Machine::Buffers> buffers;
      for (Rank r = 0; r < it.n; ++r) buffers.push_back(it.buffers(r, seed));
      for (Rank r = 0; r < it.n; ++r) {
        const StreamProgram program(it.call(), r, it.n, it.slot_bytes);
        for (size_t i = 0; i < program.step_count(); ++i) {
          machine.push(r, &buffers, step_of(it, program, r, i));
        }
        machine.push(r, &buffers, spoil(it, r, buffers[r]));
      }
      uint64_t waits = 0;
      for (Rank left = it.n; left > 0;) {
        const auto rank = static_cast<Rank>(random() % it.n);
        if (machine.empty(rank)) {
          left = 0;
          for (Rank r = 0; r < it.n; ++r) left += machine.empty(r) ? 0 : 1;
          continue;
        }
        // As far as it comes, or a part of the way.
        bool moved = false;
        for (uint64_t k = random() % 40; k > 0 && !machine.empty(rank) && machine.advance(rank);
             --k) {
          moved = true;
        }
        waits = moved ? 0 : waits + 1;
        ASSERT_LT(waits, 100000u) << "hangs: " << it.text();
      }
      it.check(buffers, seed);
      if (HasFatalFailure()) return;
    }
  }
}

// One hardware queue for all ranks.
TEST(StreamProgram, NoStepWaitsForWhatALaterStepSets) {
  for (const Case& it : cases(6)) {
    Machine machine(it.n, it.slot_bytes);
    std::vector<Machine::Buffers> buffers;
    std::vector<StreamProgram> programs;
    for (Rank r = 0; r < it.n; ++r) {
      buffers.push_back(it.buffers(r, 3));
      programs.emplace_back(it.call(), r, it.n, it.slot_bytes);
    }
    for (size_t i = 0; i < programs[0].step_count(); ++i) {
      for (Rank k = 0; k < it.n; ++k) {
        const Rank r = i % 2 == 0 ? k : it.n - 1 - k;
        machine.push(r, &buffers, step_of(it, programs[r], r, i));
        while (!machine.empty(r)) {
          ASSERT_TRUE(machine.advance(r)) << "hangs: " << it.text() << ", step " << i;
        }
      }
    }
    it.check(buffers, 3);
    if (HasFatalFailure()) return;
  }
}

// Different collectives one after the other, each rank at its own time.
TEST(StreamProgram, CallsFollowEachOtherWithoutABarrier) {
  std::mt19937_64 random(7);
  for (const Rank n : {2, 3, 5}) {
    const uint64_t slot = StreamProgram::slot_bytes_min(n) * 2;
    Machine machine(n, slot);
    std::vector<Case> calls;
    std::vector<std::vector<Machine::Buffers>> buffers;
    for (int i = 0; i < 60; ++i) {
      calls.push_back({kAll[random() % std::size(kAll)], n, static_cast<Rank>(random() % n),
                       1 + random() % 300, slot, false});
      calls.back().in_windows = i % 3 == 0 && has_windows(calls.back().collective);
    }
    buffers.resize(calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      for (Rank r = 0; r < n; ++r) buffers[i].push_back(calls[i].buffers(r, i));
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      for (Rank r = 0; r < n; ++r) {
        const StreamProgram program(calls[i].call(), r, n, slot);
        for (size_t k = 0; k < program.step_count(); ++k) {
          machine.push(r, &buffers[i], step_of(calls[i], program, r, k));
        }
        machine.push(r, &buffers[i], spoil(calls[i], r, buffers[i][r]));
      }
    }
    for (uint64_t waits = 0; waits < 100000;) {
      const auto rank = static_cast<Rank>(random() % n);
      bool moved = false;
      for (uint64_t k = random() % 200; k > 0 && !machine.empty(rank) && machine.advance(rank);
           --k) {
        moved = true;
      }
      waits = moved ? 0 : waits + 1;
    }
    for (Rank r = 0; r < n; ++r) ASSERT_TRUE(machine.empty(r)) << "hangs";
    for (size_t i = 0; i < calls.size(); ++i) calls[i].check(buffers[i], i);
  }
}

// Of the copies of a step that read from peers, where all ranks read from all of them.
TEST(StreamProgram, EachRankBeginsWithAnotherPeer) {
  for (const bool in_windows : {false, true}) {
    for (const Collective it :
         {Collective::kAllGather, Collective::kAllToAll, Collective::kAllReduce}) {
      constexpr Rank kRanks = 8;
      for (Rank r = 0; r < kRanks; ++r) {
        const Case call{it, kRanks, 0, 40000, 65536, false, in_windows};
        const StreamProgram program(call.call(), r, kRanks, 65536);
        std::vector<Rank> peers;
        for (size_t step = 1; step < 3; ++step) {
          for (const StreamOp& op : step_of(call, program, r, step)) {
            if (op.kind == StreamOp::Kind::kCopy && op.from.rank != r) {
              peers.push_back(op.from.rank);
            }
          }
        }
        ASSERT_EQ(peers.size(), kRanks - 1);
        for (size_t i = 0; i < peers.size(); ++i) EXPECT_EQ(peers[i], (r + 1 + i) % kRanks);
      }
    }
  }
}

// ---- Schedules ----------------------------------------------------------------------------------

constexpr Collective kScheduled[] = {Collective::kAllReduce, Collective::kReduceScatter,
                                     Collective::kAllGather};

// Rings in different orders, some of which share links.
graph::Rings rings(Rank n, uint32_t count) {
  std::vector<std::vector<Rank>> orders;
  for (uint32_t ring = 0; ring < count; ++ring) {
    std::vector<Rank> order;
    for (Rank r = 0; r < n; ++r) order.push_back(ring % 2 == 0 ? (r + ring) % n : n - 1 - r);
    orders.push_back(order);
  }
  return graph::rings_of(std::move(orders));
}

struct Schedules {
  Schedules(Collective collective, Rank n, uint32_t ring_count, const char* name = "rings")
      : found(rings(n, ring_count)) {
    algo::Problem problem;
    problem.collective = collective;
    problem.rank_count = n;
    problem.rings = &found;
    const algo::Algorithm* algorithm = algo::find_algorithm(collective, name);
    for (Rank r = 0; r < n; ++r) {
      auto made = StreamSchedule::compile(*algorithm, problem, r);
      EXPECT_TRUE(made.ok()) << made.status().text();
      if (made.ok()) of_rank.push_back(std::make_shared<const StreamSchedule>(made.take()));
    }
  }
  graph::Rings found;
  std::vector<std::shared_ptr<const StreamSchedule>> of_rank;
};

TEST(ScheduledProgram, RingsGiveTheirValuesInAnyOrderOfTheStreamsAmongOtherCalls) {
  std::mt19937_64 random(20261128);
  for (Rank n = 2; n <= 8; ++n) {
    for (const Collective collective : kScheduled) {
      for (const uint32_t ring_count : {1u, 3u}) {
        const Schedules schedules(collective, n, ring_count);
        const uint64_t slot = schedules.of_rank[0]->slot_count() * StreamProgram::kAlign * 2;
        Machine machine(n, slot);
        std::vector<Case> calls;
        for (const uint64_t count : {uint64_t{1}, uint64_t{1000}, uint64_t{40} * n * ring_count}) {
          for (const bool in_place : {false, true}) {
            calls.push_back({collective, n, 0, count, slot, in_place, false, true});
          }
          // Between them, one that uses the same slots in another way.
          calls.push_back(
              {kAll[random() % std::size(kAll)], n, n / 2, 1 + random() % 500, slot, false});
        }
        std::vector<std::vector<Machine::Buffers>> buffers(calls.size());
        for (size_t i = 0; i < calls.size(); ++i) {
          for (Rank r = 0; r < n; ++r) buffers[i].push_back(calls[i].buffers(r, i));
          for (Rank r = 0; r < n; ++r) {
            const auto push = [&, i = i](const auto& program) {
              for (size_t k = 0; k < program.step_count(); ++k) {
                machine.push(r, &buffers[i], step_of(calls[i], program, r, k), calls[i].adds);
              }
            };
            if (calls[i].adds) {
              push(ScheduledProgram(calls[i].call(), schedules.of_rank[r], slot));
            } else {
              push(StreamProgram(calls[i].call(), r, n, slot));
            }
            machine.push(r, &buffers[i], spoil(calls[i], r, buffers[i][r]));
          }
        }
        for (uint64_t waits = 0; waits < 10000;) {
          const auto rank = static_cast<Rank>(random() % n);
          bool moved = false;
          for (uint64_t k = random() % 200; k > 0 && !machine.empty(rank) && machine.advance(rank);
               --k) {
            moved = true;
          }
          waits = moved ? 0 : waits + 1;
        }
        for (Rank r = 0; r < n; ++r) ASSERT_TRUE(machine.empty(r)) << "hangs: " << calls[0].text();
        for (size_t i = 0; i < calls.size(); ++i) calls[i].check(buffers[i], i);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(ScheduledProgram, NoStepWaitsForWhatALaterStepSets) {
  for (Rank n = 2; n <= 6; ++n) {
    for (const Collective collective : kScheduled) {
      const Schedules schedules(collective, n, 2);
      const uint64_t slot = schedules.of_rank[0]->slot_count() * StreamProgram::kAlign;
      const Case it{collective, n, 0, 1000, slot, false, false, true};
      Machine machine(n, slot);
      std::vector<Machine::Buffers> buffers;
      std::vector<ScheduledProgram> programs;
      for (Rank r = 0; r < n; ++r) {
        buffers.push_back(it.buffers(r, 3));
        programs.emplace_back(it.call(), schedules.of_rank[r], slot);
        ASSERT_EQ(programs[r].step_count(), programs[0].step_count());
      }
      for (size_t i = 0; i < programs[0].step_count(); ++i) {
        for (Rank k = 0; k < n; ++k) {
          const Rank r = i % 2 == 0 ? k : n - 1 - k;
          machine.push(r, &buffers, step_of(it, programs[r], r, i), true);
          while (!machine.empty(r)) ASSERT_TRUE(machine.advance(r)) << it.text() << ", step " << i;
        }
      }
      it.check(buffers, 3);
    }
  }
}

// What a rank reads of others is in slots of its neighbours on the rings, and once: each byte goes
// over the links of the rings only.
TEST(ScheduledProgram, RanksReadTheirNeighboursOnly) {
  const Rank n = 6;
  for (const Collective collective : kScheduled) {
    const Schedules schedules(collective, n, 1);
    for (Rank r = 0; r < n; ++r) {
      uint64_t read = 0;
      for (const auto& step : schedules.of_rank[r]->steps()) {
        for (const ScheduleOp& op : step) {
          for (const SchedulePlace& from : op.from) {
            if (from.buffer != SchedulePlace::Buffer::kSlot || from.rank == r) continue;
            EXPECT_EQ(from.rank, (r + n - 1) % n);
            ++read;
          }
        }
      }
      EXPECT_EQ(read, (collective == Collective::kAllReduce ? 2u : 1u) * (n - 1));
      EXPECT_EQ(schedules.of_rank[r]->readers(), std::vector<Rank>{(r + 1) % n});
    }
  }
}

TEST(ScheduledProgram, OtherSchedulesOfMessagesServeAsWell) {
  for (const Rank n : {2u, 4u, 8u}) {
    for (const char* name : {"recursive_doubling", "recursive_halving_doubling", "ring"}) {
      const Schedules schedules(Collective::kAllReduce, n, 1, name);
      ASSERT_EQ(schedules.of_rank.size(), n) << name;
      const uint64_t slot = schedules.of_rank[0]->slot_count() * StreamProgram::kAlign * 2;
      const Case it{Collective::kAllReduce, n, 0, 777, slot, false, false, true};
      Machine machine(n, slot);
      std::vector<Machine::Buffers> buffers;
      for (Rank r = 0; r < n; ++r) buffers.push_back(it.buffers(r, 1));
      for (Rank r = 0; r < n; ++r) {
        const ScheduledProgram program(it.call(), schedules.of_rank[r], slot);
        for (size_t i = 0; i < program.step_count(); ++i) {
          machine.push(r, &buffers, step_of(it, program, r, i), true);
        }
      }
      for (bool moved = true; moved;) {
        moved = false;
        for (Rank r = 0; r < n; ++r) {
          while (!machine.empty(r) && machine.advance(r)) moved = true;
        }
      }
      for (Rank r = 0; r < n; ++r) ASSERT_TRUE(machine.empty(r)) << name << " hangs";
      it.check(buffers, 1);
    }
  }
}

TEST(ScheduledProgram, SchedulesThatCannotServeAreRefused) {
  algo::Problem problem;
  problem.rank_count = 4;
  problem.mapped = true;
  const auto direct =
      StreamSchedule::compile(*algo::find_algorithm(Collective::kAllReduce, "direct"), problem, 0);
  ASSERT_FALSE(direct.ok());
  EXPECT_EQ(direct.status().code(), Code::kUnsupported);
  problem.rank_count = 80;
  const auto long_ring =
      StreamSchedule::compile(*algo::find_algorithm(Collective::kAllReduce, "ring"), problem, 0);
  ASSERT_FALSE(long_ring.ok());
  EXPECT_EQ(long_ring.status().code(), Code::kUnsupported);
}

// ---- Which way ----------------------------------------------------------------------------------

engine::Call call_of(Collective collective, uint64_t bytes, DataType type = DataType::kFloat32) {
  engine::Call call;
  call.collective = collective;
  call.type = type;
  call.count = bytes / element_bytes(type);
  return call;
}

// Of a machine whose rings take half of the time, by the links: 8 GPUs behind two sockets.
graph::DeviceWays two_sockets() {
  graph::DeviceWays links;
  links.straight_ns_per_byte = 0.02;
  links.rings_ns_per_byte = 0.01;
  links.rings = rings(8, 1);
  return links;
}

TEST(StreamWays, LargeCallsGoAlongRingsWhereTheseAreFaster) {
  const StreamWays ways(two_sockets(), 0, 8, 1 << 20, false);
  for (const Collective it : kScheduled) {
    EXPECT_NE(ways.schedule_for(call_of(it, 64 << 20)), nullptr);
    EXPECT_EQ(ways.schedule_for(call_of(it, 64 << 10)), nullptr);
  }
  EXPECT_EQ(ways.schedule_for(call_of(Collective::kAllToAll, 64 << 20)), nullptr);
  // 15 steps of 8 us and 0.02 ns for each byte, against 2 steps and 0.04 ns: from 5.2 MB up.
  EXPECT_EQ(ways.schedule_for(call_of(Collective::kAllReduce, 5'100'000)), nullptr);
  EXPECT_NE(ways.schedule_for(call_of(Collective::kAllReduce, 5'300'000)), nullptr);
}

TEST(StreamWays, WhatIsRoundedOnceOrInOrderGoesStraight) {
  const StreamWays ways(two_sockets(), 0, 8, 1 << 20, false);
  const StreamWays in_order(two_sockets(), 0, 8, 1 << 20, true);
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8E4M3}) {
    EXPECT_EQ(ways.schedule_for(call_of(Collective::kAllReduce, 64 << 20, type)), nullptr);
    EXPECT_NE(ways.schedule_for(call_of(Collective::kAllGather, 64 << 20, type)), nullptr);
  }
  EXPECT_NE(ways.schedule_for(call_of(Collective::kAllReduce, 64 << 20, DataType::kInt8)), nullptr);
  EXPECT_EQ(in_order.schedule_for(call_of(Collective::kReduceScatter, 64 << 20)), nullptr);
  EXPECT_NE(in_order.schedule_for(call_of(Collective::kAllGather, 64 << 20)), nullptr);
  engine::Call scaled = call_of(Collective::kAllReduce, 64 << 20);
  scaled.scaled = true;
  EXPECT_EQ(ways.schedule_for(scaled), nullptr);
}

TEST(StreamWays, OtherwiseEverythingGoesStraight) {
  graph::DeviceWays alike = two_sockets();
  alike.straight_ns_per_byte = alike.rings_ns_per_byte;
  const StreamWays all[] = {StreamWays(), StreamWays(alike, 0, 8, 1 << 20, false),
                            // A slot with no room for a piece of each message.
                            StreamWays(two_sockets(), 0, 8, 2048, false)};
  for (const StreamWays& ways : all) {
    EXPECT_EQ(ways.schedule_for(call_of(Collective::kAllReduce, 64 << 20)), nullptr);
  }
}

TEST(StreamWays, TwoPhasesBeginWhereTheyTakeAsLongAsOne) {
  EXPECT_EQ(StreamWays().one_phase_max(), StreamProgram::kOnePhaseMax);
  // A step of 8 us more, and 6 of 8 vectors less to read at 0.02 ns for each byte of all.
  const StreamWays ways(two_sockets(), 0, 8, 1 << 20, false);
  EXPECT_EQ(ways.one_phase_max(), 66'666u);
  // Two ranks read the same in both.
  graph::DeviceWays pair = two_sockets();
  pair.rings = rings(2, 1);
  const StreamWays two(pair, 0, 2, 1 << 20, false);
  EXPECT_EQ(two.one_phase_max(), StreamProgram::kOnePhaseMax);
}

}  // namespace
}  // namespace weir::comm
