// SPDX-License-Identifier: Apache-2.0
#include "simnet/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>

#include "core/comm/start/bootstrap_place.h"
#include "simnet/outside.h"
#include "weir/weir.h"

namespace weir::simnet {

namespace {

constexpr uint64_t kSlackNs = 200 * kMillisecond;

weir_unique_id_t id_of(uint64_t seed) {
  weir_unique_id_t id{};
  std::memcpy(id.bytes, "weirid02", 8);
  for (uint64_t i = 0; i < 4; ++i) {
    const uint64_t word = mix(seed, 7, i);
    std::memcpy(id.bytes + 8 + 8 * i, &word, sizeof word);
  }
  const std::string place = comm::pack(comm::Place());
  std::memcpy(id.bytes + 40, place.data(), place.size());
  return id;
}

// Everything about one running job.
struct Job {
  Job(const Plan& p, bool keeps_trace)
      : plan(p),
        trace(keeps_trace),
        world(p.world, p.rank_count, &trace),
        fabric(world, p.fabric, p.host_of_rank),
        outside(world),
        settled_count(p.rank_count, 0) {
    world.set_diagnosis([this] { return fabric.waits(); });
    outside.host_of_rank = p.host_of_rank;
    outside.rules = p.rules;
    Settings& settings = outside.settings.value();
    settings.tuning_file = "rules.toml";
    settings.probe = false;
    settings.recorder = false;
    settings.spin_us = 0;
    settings.timeout_ms = p.timeout_ms;
    settings.deterministic = p.deterministic;
    for (const Stall& stall : p.stalls) fabric.add_stall(stall);
    settings.staging_bytes = 64 << 10;
    if (p.fabric.shares_memory) return;  // there the start of the job sets the time
    if (p.pause_ns != 0) fabric.stop_at_post(p.paused, p.pause_at, p.pause_ns);
    if (p.fault == Fault::kKill) fabric.kill_at_post(p.culprit, p.fault_at);
    if (p.fault == Fault::kStop) fabric.stop_at_post(p.culprit, p.fault_at, kNever);
  }

  // All ranks have their communicator.
  void begin() {
    const uint64_t now = world.now_ns();
    if (plan.fault == Fault::kCut) {
      cut_ns = now + plan.fault_at;
      for (uint32_t a = 0; a < plan.rank_count; ++a) {
        for (uint32_t b = 0; b < plan.rank_count; ++b) {
          if (plan.is_cut_off(a) && !plan.is_cut_off(b)) fabric.add_stall({a, b, cut_ns, kNever});
        }
      }
    }
    if (!plan.fabric.shares_memory) return;
    if (plan.fault == Fault::kKill) {
      world.at(now + plan.fault_at, [this] { fabric.kill(plan.culprit); });
    }
    if (plan.fault == Fault::kStop) {
      world.at(now + plan.fault_at, [this] { fabric.stop(plan.culprit); });
    }
    if (plan.pause_ns != 0) {
      world.at(now + plan.pause_at,
               [this] { world.stop(plan.paused, world.now_ns() + plan.pause_ns); });
    }
  }

  const Plan& plan;
  Trace trace;
  World world;
  Fabric fabric;
  Outside outside;
  std::vector<std::string> wrong;
  uint32_t created_count = 0;
  std::vector<size_t> settled_count;  // by rank: how many operations it has done and checked
  uint64_t cut_ns = 0;                // when the host is cut off

  uint64_t bound_ns() const {
    return 2 * static_cast<uint64_t>(plan.timeout_ms) * kMillisecond + kSlackNs;
  }
};

// One rank of it.
class Member {
 public:
  Member(Job& job, uint32_t rank)
      : job_(job), plan_(job.plan), rank_(rank), random_(mix(job.plan.seed, 3, rank)) {}

  void run();

 private:
  void wrong(const std::string& text) {
    if (!over()) job_.wrong.push_back(fmt::format("rank {}: {}", rank_, text));
  }
  // Nothing that happens from then on is judged.
  bool over() const { return job_.world.closing(); }
  bool create();
  void perform(weir_comm_t comm, const std::vector<Operation>& operations, bool with_faults);
  bool settle(weir_comm_t comm);  // false after an error
  void stay_away();
  void note_error(weir_comm_t comm, weir_result_t result, const std::string& what);
  void split();
  void face_fault();
  void judge_error();
  void go_on_without(const std::vector<int>& lost);
  template <typename Call>
  weir_result_t timed(const std::string& what, Call call);

  struct Running {
    std::unique_ptr<Operation> other;  // what this rank calls instead
    std::unique_ptr<Buffers> buffers;
    const Operation* operation;
    std::vector<weir_request_t> requests;
    bool checked = false;
  };

  Job& job_;
  const Plan& plan_;
  uint32_t rank_;
  Random random_;
  weir_comm_t comm_ = nullptr;
  std::deque<Running> running_;  // buffers stay until the communicators have gone
  weir_result_t error_ = WEIR_OK;
  std::string error_text_;
};

template <typename Call>
weir_result_t Member::timed(const std::string& what, Call call) {
  const uint64_t begin_ns = job_.world.now_ns();
  const weir_result_t result = call();
  const uint64_t took_ns = job_.world.now_ns() - begin_ns;
  job_.trace.say(job_.world.now_ns(), rank_, fmt::format("{} gave {}", what, int{result}));
  job_.world.moved();
  if (took_ns > job_.bound_ns()) {
    wrong(fmt::format("{} took {} ms with a timeout of {} ms", what, took_ns / kMillisecond,
                      plan_.timeout_ms));
  }
  return result;
}

void Member::note_error(weir_comm_t comm, weir_result_t result, const std::string& what) {
  if (error_ != WEIR_OK) return;
  error_ = result;
  error_text_ = weir_last_error(comm);
  job_.trace.say(job_.world.now_ns(), rank_, error_text_);
  if (plan_.fault == Fault::kNone) {
    wrong(fmt::format("{} failed though nothing was wrong: {}", what, error_text_));
  }
}

bool Member::create() {
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.name = "sim";
  const weir_unique_id_t id = id_of(plan_.seed);
  const weir_result_t result = weir_comm_create(&comm_, static_cast<int>(plan_.rank_count), &id,
                                                static_cast<int>(rank_), &config);
  if (result == WEIR_OK) return true;
  wrong(fmt::format("no communicator: {}", weir_last_error(nullptr)));
  return false;
}

bool Member::settle(weir_comm_t comm) {
  struct Waited {
    Running* running;
    weir_request_t request;
  };
  std::vector<Waited> waited;
  for (Running& running : running_) {
    for (weir_request_t request : running.requests) waited.push_back({&running, request});
    running.requests.clear();
  }
  while (!waited.empty()) {
    const size_t at = random_.below(waited.size());
    Waited& next = waited[at];
    const std::string what = "waiting for " + next.running->operation->describe();
    weir_result_t result = WEIR_OK;
    if (random_.one_in(3)) {
      int done = 0;
      result = timed(what, [&] {
        weir_result_t tested = WEIR_OK;
        while (tested == WEIR_OK && done == 0) {
          tested = weir_test(&next.request, &done);
          if (done == 0) job_.world.sleep(random_.of_any_size(100 * kMicrosecond));
        }
        return tested;
      });
    } else {
      result = timed(what, [&] { return weir_wait(&next.request); });
    }
    if (result != WEIR_OK) note_error(comm, result, what);
    waited.erase(waited.begin() + static_cast<std::ptrdiff_t>(at));
  }
  for (Running& running : running_) {
    if (running.checked || running.buffers == nullptr) continue;
    running.checked = true;
    const std::string bad = running.buffers->check(error_ == WEIR_OK);
    if (!bad.empty()) wrong(running.operation->describe() + ": " + bad);
  }
  return error_ == WEIR_OK && !over();
}

void Member::perform(weir_comm_t comm, const std::vector<Operation>& operations, bool with_faults) {
  int rank = 0;
  int rank_count = 0;
  if (weir_comm_rank(comm, &rank) != WEIR_OK || weir_comm_size(comm, &rank_count) != WEIR_OK) {
    return wrong("the communicator does not know its rank and size");
  }
  uint32_t unsettled = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    if (random_.one_in(3)) job_.world.sleep(random_.of_any_size(500 * kMicrosecond));
    const bool mine = with_faults && rank_ == plan_.culprit && i == plan_.fault_at;
    if (mine && plan_.fault == Fault::kAbort) {
      (void)weir_comm_abort(comm);
    }
    Running& running = running_.emplace_back();
    running.operation = &operations[i];
    if (mine && plan_.fault == Fault::kMismatch) {
      running.other = std::make_unique<Operation>(operations[i]);
      Operation& other = *running.other;
      other.kind = Kind::kAllReduce;
      other.type = WEIR_INT32;
      other.fold = WEIR_MAX;
      other.count = 4321;
      running.operation = running.other.get();
    }
    running.buffers = std::make_unique<Buffers>(*running.operation, static_cast<uint32_t>(rank),
                                                static_cast<uint32_t>(rank_count), random_);
    const bool blocks = !running.operation->nonblocking;
    const std::string what = running.operation->describe();
    const weir_result_t result = timed(
        what, [&] { return running.buffers->call(comm, blocks ? nullptr : &running.requests); });
    if (result != WEIR_OK) note_error(comm, result, what);
    ++unsettled;
    const bool last = i + 1 == operations.size();
    // All ranks wait for the same operations before one of them stays away.
    const bool settles = plan_.stays_away ? mix(plan_.seed, 11, i) % 2 == 0 : random_.one_in(2);
    if (result != WEIR_OK || last || unsettled == 4 || settles) {
      if (!settle(comm)) return;
      unsettled = 0;
      if (!with_faults) continue;
      job_.settled_count[rank_] = i + 1;
      if (plan_.stays_away && random_.one_in(2)) stay_away();
    }
  }
}

// What the others need of this rank for the operations that it has done is with them, or on its
// way.
void Member::stay_away() {
  const size_t done = job_.settled_count[rank_];
  const auto wait = [this] { job_.world.sleep(random_.of_any_size(10 * kMillisecond)); };
  while (!over() &&
         *std::min_element(job_.settled_count.begin(), job_.settled_count.end()) < done) {
    wait();
  }
  if (!over()) wait();
}

void Member::split() {
  if (plan_.color_of_rank.empty()) return;
  weir_comm_t part = nullptr;
  const int color = plan_.color_of_rank[rank_];
  const weir_result_t result = timed("split", [&] {
    return weir_comm_split(comm_, color, static_cast<int>(random_.below(3)), nullptr, &part);
  });
  if (result != WEIR_OK) return note_error(comm_, result, "split");
  if (part == nullptr) return;
  perform(part, plan_.of_color[static_cast<size_t>(color)], false);
  if (weir_comm_destroy(part) != WEIR_OK) wrong("destroy of the part failed");
}

// Whatever the operations needed of the culprit, this one needs it.
void Member::face_fault() {
  if (plan_.fault == Fault::kNone) return;
  const bool is_culprit = rank_ == plan_.culprit;
  if (is_culprit && error_ == WEIR_OK && job_.fabric.fault_ns() == kNever) {
    if (plan_.fault == Fault::kKill) job_.fabric.kill(rank_);
    if (plan_.fault == Fault::kStop) job_.fabric.stop(rank_);
    if (over()) return;
  }
  // Some have done all of theirs before the last one is there.
  while (plan_.fault == Fault::kCut && !over() &&
         (job_.created_count < plan_.rank_count || job_.world.now_ns() < job_.cut_ns)) {
    job_.world.sleep(100 * kMicrosecond);
  }
  if (error_ == WEIR_OK) {
    const weir_result_t result =
        timed("the last barrier", [&] { return weir_barrier(comm_, nullptr); });
    if (over()) return;
    if (result == WEIR_OK) return wrong("a barrier passed without the rank that was out");
    note_error(comm_, result, "the last barrier");
  }
  judge_error();
}

void Member::judge_error() {
  if (over()) return;
  int ranks[64];
  int count = 0;
  if (weir_comm_lost_ranks(comm_, ranks, 64, &count) != WEIR_OK) return wrong("no lost ranks");
  std::vector<int> lost(ranks, ranks + count);
  const int culprit = static_cast<int>(plan_.culprit);
  const auto expect = [&](weir_result_t code, const std::vector<int>& whom) {
    if (error_ != code) {
      wrong(fmt::format("{} instead of {}: {}", weir_result_string(error_),
                        weir_result_string(code), error_text_));
    }
    if (lost != whom) {
      wrong(fmt::format("blames ranks {} instead of {}: {}", fmt::join(lost, " "),
                        fmt::join(whom, " "), error_text_));
    }
  };
  switch (plan_.fault) {
    case Fault::kKill:
      expect(WEIR_ERROR_PEER_LOST, {culprit});
      return go_on_without({culprit});
    case Fault::kStop:
      expect(WEIR_ERROR_TIMEOUT, {culprit});
      return go_on_without({culprit});
    case Fault::kCut: {
      std::vector<int> others;
      for (uint32_t p = 0; p < plan_.rank_count; ++p) {
        if (plan_.is_cut_off(p) != plan_.is_cut_off(rank_)) others.push_back(static_cast<int>(p));
      }
      // Those who are cut off end at once, and may be gone before one of them asks.
      if (plan_.is_cut_off(rank_)) {
        std::erase_if(lost, [&](int p) { return plan_.is_cut_off(static_cast<uint32_t>(p)); });
      }
      expect(WEIR_ERROR_TIMEOUT, others);
      if (!plan_.is_cut_off(rank_)) go_on_without(others);
      return;
    }
    case Fault::kMismatch:
      if (error_ != WEIR_ERROR_MISMATCH) {
        wrong(fmt::format("{} instead of a mismatch: {}", weir_result_string(error_), error_text_));
      }
      return;
    case Fault::kAbort:
      if (error_ != WEIR_ERROR_ABORTED) {
        wrong(fmt::format("{} instead of an abort: {}", weir_result_string(error_), error_text_));
      }
      return;
    case Fault::kNone:
      return;
  }
}

void Member::go_on_without(const std::vector<int>& lost) {
  weir_comm_t smaller = nullptr;
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = 20'000;
  const weir_result_t result =
      weir_comm_shrink(comm_, lost.data(), static_cast<int>(lost.size()), &config, &smaller);
  if (result != WEIR_OK) return wrong(fmt::format("shrink: {}", weir_last_error(comm_)));
  const weir_result_t before = std::exchange(error_, WEIR_OK);
  perform(smaller, plan_.after, false);
  if (error_ != WEIR_OK) wrong("after the shrink: " + error_text_);
  error_ = before;
  if (weir_comm_destroy(smaller) != WEIR_OK) wrong("destroy of the smaller one failed");
}

void Member::run() {
  if (create()) {
    if (++job_.created_count == plan_.rank_count) job_.begin();
    perform(comm_, plan_.operations, true);
    if (error_ == WEIR_OK) split();
    face_fault();
  }
  if (weir_comm_destroy(comm_) != WEIR_OK) wrong("destroy failed");
}

}  // namespace

Verdict run_job(const Plan& plan, bool keeps_trace) {
  Job job(plan, keeps_trace);
  job.world.run([&job](uint32_t rank) { Member(job, rank).run(); });
  Verdict verdict;
  verdict.wrong = std::move(job.wrong);
  if (!job.world.deadlock().empty()) {
    verdict.wrong.push_back(fmt::format("nothing moves any more at {} ns: {}", job.world.now_ns(),
                                        job.world.deadlock()));
  }
  if (plan.fault == Fault::kNone && !job.fabric.leftovers().empty()) {
    verdict.wrong.push_back(job.fabric.leftovers());
  }
  verdict.trace_hash = job.trace.hash();
  verdict.trace = job.trace.text();
  verdict.virtual_ns = job.world.now_ns();
  verdict.message_count = job.fabric.message_count();
  for (uint32_t rank = 0; rank < plan.rank_count; ++rank) {
    verdict.post_count_max = std::max(verdict.post_count_max, job.fabric.post_count(rank));
  }
  return verdict;
}

std::string describe(const Plan& plan, const Verdict& verdict) {
  std::string text = plan.describe();
  for (const std::string& wrong : verdict.wrong) text += wrong + "\n";
  return text + fmt::format("to see it again with its trace: simnet_replay {}\n", plan.seed);
}

}  // namespace weir::simnet
