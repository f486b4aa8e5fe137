// SPDX-License-Identifier: Apache-2.0
// kill -9 of real processes at random instants: no committed step is lost, no state is mixed, and
// what goes on equals the uninterrupted run bit for bit. WEIR_TEST_SOAK=n kills n times instead of
// 200.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "core/base/clock.h"
#include "offload/optimizer/optimizer_support.h"

namespace weir::offload::test {
namespace {

constexpr uint64_t kLateNs = 10'000'000'000;

struct Message {
  char kind = 0;  // 'O' opened, 'R' rolled back, 'C' stepped, 'E' error
  uint64_t step = 0;
  uint64_t hash = 0;
};

struct Job {
  uint32_t ranks = 1;
  uint32_t durable_every = 1;
  uint64_t memory_bytes = 0;
  std::string root;
};

Groups groups_of(const Job& job, uint32_t rank) {
  Groups groups = mixed_groups();
  for (ParameterGroup& group : groups) {
    const uint64_t each = group.element_count / job.ranks / kMomentBlock * kMomentBlock;
    group.first_element = rank * each;
    group.element_count = rank + 1 == job.ranks ? group.element_count - rank * each : each;
  }
  return groups;
}

OptimizerOptions options_of(const Job& job, uint32_t rank) {
  OptimizerOptions options = small_options();
  options.rank = rank;
  options.rank_count = job.ranks;
  options.durable_every = job.durable_every;
  options.memory_bytes = job.memory_bytes;
  options.directories = {job.root + "/" + std::to_string(rank)};
  return options;
}

uint64_t hash_of(const Values& values) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& group : values)
    for (const float value : group) hash = (hash ^ std::bit_cast<uint32_t>(value)) * 0x100000001b3u;
  return hash;
}

// The uninterrupted run of a rank, as far as it was asked for.
class Expected {
 public:
  Expected(const Job& job, uint32_t rank) : groups_(groups_of(job, rank)) {
    optimizer_ = made(Optimizer::create(small_options(), groups_));
    EXPECT_TRUE(set_first(*optimizer_, groups_).ok());
    hashes_.push_back(hash_of(values_of(*optimizer_, groups_)));
  }
  uint64_t at(uint64_t step) {
    for (uint64_t s = hashes_.size(); s <= step; ++s) {
      EXPECT_TRUE(run_steps(*optimizer_, groups_, s - 1, s).ok());
      hashes_.push_back(hash_of(values_of(*optimizer_, groups_)));
    }
    return hashes_[step];
  }

 private:
  Groups groups_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<uint64_t> hashes_;
};

void send(int to, const Message& message) {
  if (::write(to, &message, sizeof message) != sizeof message) ::_exit(3);
}

uint64_t receive(int from) {
  uint64_t value = 0;
  if (::read(from, &value, sizeof value) != sizeof value) ::_exit(4);
  return value;
}

Status run_rank(const Job& job, uint32_t rank, int in, int out) {
  const Groups groups = groups_of(job, rank);
  auto opened = Optimizer::open(options_of(job, rank), groups);
  if (!opened.ok()) return opened.status();
  Optimizer& optimizer = *opened.value();
  Message message{'O'};
  WEIR_RETURN_IF_ERROR(optimizer.committed_step(&message.step));
  send(out, message);
  uint64_t step = receive(in);
  WEIR_RETURN_IF_ERROR(optimizer.roll_back(step));
  WEIR_RETURN_IF_ERROR(optimizer.peers_committed(step));
  send(out, {'R', step, hash_of(values_of(optimizer, groups))});
  for (;; ++step) {
    WEIR_RETURN_IF_ERROR(run_steps(optimizer, groups, step, step + 1));
    message.kind = 'C';
    WEIR_RETURN_IF_ERROR(optimizer.committed_step(&message.step));
    send(out, message);
    WEIR_RETURN_IF_ERROR(optimizer.peers_committed(receive(in)));
  }
}

struct Process {
  pid_t pid = 0;
  int in = -1;   // what it says
  int out = -1;  // what it is told
  char said = 0;
  uint64_t step = 0;
};

Process start(const Job& job, uint32_t rank, const std::vector<Process>& others) {
  int up[2];
  int down[2];
  if (::pipe(up) != 0 || ::pipe(down) != 0) std::abort();
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const Process& other : others) {
      ::close(other.in);
      ::close(other.out);
    }
    ::close(up[0]);
    ::close(down[1]);
    const Status status = run_rank(job, rank, down[0], up[1]);
    std::fprintf(stderr, "rank %u: %s\n", rank, status.text().c_str());
    send(up[1], {'E'});
    ::_exit(1);
  }
  ::close(up[1]);
  ::close(down[0]);
  return {pid, up[0], down[1]};
}

class Killer {
 public:
  explicit Killer(const Job& job) : job_(job), random_(seed() + job.ranks), acked_(job.ranks, 0) {
    for (uint32_t rank = 0; rank < job.ranks; ++rank) expected_.emplace_back(job, rank);
  }

  void create() {
    for (uint32_t rank = 0; rank < job_.ranks; ++rank) {
      const Groups groups = groups_of(job_, rank);
      const auto optimizer = made(Optimizer::create(options_of(job_, rank), groups));
      ASSERT_NE(optimizer, nullptr);
      ASSERT_OK(set_first(*optimizer, groups));
      ASSERT_OK(optimizer->commit());
    }
  }

  // One life of all ranks, ended by kill -9 in any order.
  void life() {
    processes_.clear();
    for (uint32_t rank = 0; rank < job_.ranks; ++rank)
      processes_.push_back(start(job_, rank, processes_));
    // Half of the lives end anywhere, opening and going back included, half of them within steps.
    uint64_t end_ns = now_ns() + (random_() % 60'000) * 1000;
    if (random_() % 2 == 0) {
      const uint64_t late_ns = now_ns() + kLateNs;
      stepped_ = false;
      while (!stepped_ && now_ns() < late_ns && !::testing::Test::HasFailure()) listen(late_ns);
      end_ns = now_ns() + (random_() % 40'000) * 1000;
    }
    while (now_ns() < end_ns && !::testing::Test::HasFailure()) listen(end_ns);
    std::shuffle(order().begin(), order().end(), random_);
    for (const uint32_t rank : order_) {
      ::kill(processes_[rank].pid, SIGKILL);
      if (random_() % 2 == 0) ::usleep(static_cast<useconds_t>(random_() % 3000));
    }
    for (uint32_t rank = 0; rank < job_.ranks; ++rank) {
      int status = 0;
      ::waitpid(processes_[rank].pid, &status, 0);
      Message message;
      while (::read(processes_[rank].in, &message, sizeof message) == sizeof message)
        heard(rank, message, false);
      ::close(processes_[rank].in);
      ::close(processes_[rank].out);
    }
  }

  uint64_t resumed() const { return resumed_; }
  uint64_t step() const { return *std::min_element(acked_.begin(), acked_.end()); }

 private:
  std::vector<uint32_t>& order() {
    order_.clear();
    for (uint32_t rank = 0; rank < job_.ranks; ++rank) order_.push_back(rank);
    return order_;
  }

  void listen(uint64_t end_ns) {
    std::vector<pollfd> polled;
    for (const Process& process : processes_) polled.push_back({process.in, POLLIN, 0});
    const uint64_t now = now_ns();
    const int wait_ms = now < end_ns ? static_cast<int>((end_ns - now) / 1'000'000) : 0;
    if (::poll(polled.data(), polled.size(), wait_ms) <= 0) return;
    for (uint32_t rank = 0; rank < job_.ranks; ++rank) {
      if (polled[rank].revents == 0) continue;
      Message message;
      ASSERT_EQ(::read(processes_[rank].in, &message, sizeof message),
                static_cast<ssize_t>(sizeof message))
          << "rank " << rank << " ended by itself";
      heard(rank, message, true);
    }
  }

  void heard(uint32_t rank, const Message& message, bool alive) {
    Process& process = processes_[rank];
    process.said = message.kind;
    process.step = message.step;
    if (message.kind == 'O') {
      EXPECT_GE(message.step, acked_[rank]) << "rank " << rank << " lost a committed step";
    } else if (message.kind == 'R') {
      EXPECT_EQ(message.hash, expected_[rank].at(message.step))
          << "rank " << rank << " at step " << message.step;
      ++resumed_;
      acked_[rank] = message.step;
      return;
    } else if (message.kind == 'C') {
      stepped_ = true;
      acked_[rank] = message.step;
    } else {
      ADD_FAILURE() << "rank " << rank << " failed";
    }
    if (!alive) return;
    for (const Process& other : processes_)
      if (other.said != message.kind) return;
    uint64_t least = message.step;
    for (Process& other : processes_) {
      least = std::min(least, other.step);
      other.said = 0;
    }
    if (message.kind == 'O') {
      EXPECT_GE(least, step()) << "all ranks had committed more than they can agree on";
      // Who is told may have gone back when it dies, also without saying so.
      for (uint64_t& acked : acked_) acked = std::min(acked, least);
    }
    for (const Process& other : processes_)
      ASSERT_EQ(::write(other.out, &least, sizeof least), static_cast<ssize_t>(sizeof least));
  }

  const Job job_;
  std::mt19937_64 random_;
  std::vector<uint64_t> acked_;  // by rank: committed for certain
  std::deque<Expected> expected_;
  std::vector<Process> processes_;
  std::vector<uint32_t> order_;
  uint64_t resumed_ = 0;
  bool stepped_ = false;
};

TEST(Kill, NoCommittedStepIsLostAndTheRunGoesOnBitForBit) {
  ::signal(SIGPIPE, SIG_IGN);
  const char* const soak = std::getenv("WEIR_TEST_SOAK");
  const uint64_t kills = soak != nullptr ? std::strtoull(soak, nullptr, 10) : 200;
  const Job jobs[] = {{1, 1, 0, {}}, {2, 1, uint64_t{9} << 19, {}}, {3, 2, 0, {}}, {4, 1, 0, {}}};
  for (Job job : jobs) {
    SCOPED_TRACE(std::to_string(job.ranks) + " ranks");
    ScratchDirectory scratch;
    job.root = scratch / "";
    Killer killer(job);
    killer.create();
    for (uint64_t i = 0; i < (kills + 3) / 4 && !HasFailure(); ++i) killer.life();
    std::printf("%u ranks: at step %llu, %llu times a rank went on\n", job.ranks,
                static_cast<unsigned long long>(killer.step()),
                static_cast<unsigned long long>(killer.resumed()));
    EXPECT_GT(killer.step(), 0u);
    EXPECT_GT(killer.resumed(), 0u);
  }
}

}  // namespace
}  // namespace weir::offload::test
