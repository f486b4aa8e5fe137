// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "output/run_tool.h"
#include "perf/harness/buffers.h"
#include "perf/harness/group.h"

namespace weir::perf {
namespace {

constexpr int kInFlightMax = 8;                 // -z 0
constexpr int64_t kAutoIterationsMax = 200000;  // -n auto
// With -I rank 0 holds the time of each iteration of each rank.
constexpr int64_t kAutoIterationsEachMax = 10000;
constexpr double kAutoTimeUs = 20000;
constexpr int64_t kProbeIterations = 3;
constexpr size_t kBackToBackCheckBytes = 16u << 20;

double now_us(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

// A failed library call or an impossible request; unwinds this rank's run.
struct RunError {
  std::string text;
};

// One rank's microseconds per operation.
struct Timing {
  double elapsed_us = 0;
  double cpu_us = 0;  // of this thread; with -C
};

// One line of the table, while it is measured.
struct PointSetup {
  Geometry geometry;
  SlotPlan plan;
  Where where;
  const ElementType* type = nullptr;
  weir_redop_t op = WEIR_SUM;
};

double grown_since(size_t resident_before) {
  const size_t now = resident_bytes();
  return now > resident_before ? static_cast<double>(now - resident_before) : 0;
}

class Runner {
 public:
  explicit Runner(const RankJob& job)
      : job_(job), options_(*job.options), operation_(*job.operation) {
    cache_bytes_ =
        options_.cache_bytes != 0 ? options_.cache_bytes : job.machine.last_level_cache_bytes;
    sizes_ = sweep_sizes(options_);
  }

  int run();

 private:
  void prepare();
  void measure_series(Pattern& pattern, const Where& where, weir_redop_t op);
  void measure_point(Pattern& pattern, const PointSetup& setup);
  Measurement measure_place(Pattern& pattern, const PointSetup& setup, bool in_place);

  // Runs `count` iterations. *each_us receives the time of an operation in each of them.
  Timing time_iterations(const PointSetup& setup, bool in_place, int64_t count,
                         std::vector<double>* each_us);
  // The requests of one operation; unused where calls block.
  using Requests = std::array<weir_request_t, 2>;
  void start(const PointSetup& setup, bool in_place, size_t slot, Requests* requests);
  // Collective. The times of all ranks; nothing at other ranks than 0.
  std::optional<IterationTimes> gather_times(const std::vector<double>& each_us);
  int64_t choose_iterations(const PointSetup& setup, bool in_place);

  void gather_memory();  // collective

  void fill_slot(Pattern& pattern, const PointSetup& setup, bool in_place, size_t slot,
                 uint64_t iteration);
  uint64_t check_slot(Pattern& pattern, const PointSetup& setup, bool in_place, size_t slot,
                      uint64_t iteration);
  void note_mismatch(Pattern& pattern, const PointSetup& setup, bool in_place,
                     const ExpectedBlock& block, const Mismatch& mismatch);

  PointSetup setup_point(const ElementType& type, const Where& where, size_t bytes) const;
  SlotPlan plan_point(const ElementType& type, int root, size_t bytes) const;
  // Bytes that the first sizes of the sweep need, to send from and to receive into.
  std::pair<size_t, size_t> arena_bytes(size_t size_count) const;
  // Removes the sizes at the end of the sweep for whose buffers a machine has no memory.
  void drop_sizes_without_memory();

  uint8_t* send_at(const PointSetup& setup, bool in_place, size_t slot) const;
  uint8_t* recv_at(const PointSetup& setup, bool in_place, size_t slot) const;

  // Each needs buffers of its own.
  int operations_in_flight() const {
    return options_.blocking == Blocking::kRequests ? std::max(kInFlightMax, options_.aggregate)
                                                    : options_.aggregate;
  }
  size_t shift_bytes(const PointSetup& setup) const {
    return options_.unaligned_elements * setup.type->bytes;
  }

  // Values of all ranks, by rank.
  std::vector<double> exchange(double mine);
  double over_ranks(const std::vector<double>& values) const;  // as -a says
  void barrier();
  void require(weir_result_t result, const char* call) const { require(result, call, job_.comm); }
  static void require(weir_result_t result, const char* call, weir_comm_t comm) {
    if (result != WEIR_OK) throw RunError{error_text(call, result, comm)};
  }

  const RankJob& job_;
  const Options& options_;
  const Operation& operation_;
  size_t cache_bytes_ = 0;
  std::vector<size_t> sizes_;
  Group group_;
  int smallest_group_ = 1;  // ranks
  Buffers buffers_;
  std::unique_ptr<Report> report_;  // rank 0
  MemoryUse memory_;                // of this process
  size_t resident_prepared_ = 0;    // before the first operation
  uint64_t wrong_here_ = 0;
  bool mismatch_shown_ = false;
};

std::vector<double> Runner::exchange(double mine) {
  std::vector<double> all(static_cast<size_t>(job_.rank_count));
  require(weir_all_gather(job_.comm, &mine, all.data(), 1, WEIR_FLOAT64, nullptr),
          "weir_all_gather (exchange of measurements)");
  return all;
}

void Runner::barrier() { require(weir_barrier(job_.comm, nullptr), "weir_barrier"); }

SlotPlan Runner::plan_point(const ElementType& type, int root, size_t bytes) const {
  size_t send_count = 0;
  size_t recv_count = 0;
  for (int rank = 0; rank < group_.rank_count(); ++rank) {
    const Geometry g =
        operation_.geometry(bytes / type.bytes, type.bytes, {rank, group_.rank_count(), root});
    send_count = std::max(send_count, g.send_count);
    // In place runs in the receive arena.
    recv_count = std::max({recv_count, g.recv_count, g.in_place_count});
  }
  SlotLimits limits;
  limits.cache_bytes = cache_bytes_;
  limits.local_rank_count = job_.local_rank_count;
  limits.fixed = options_.fixed_buffers;
  limits.slot_count_min = operations_in_flight();
  limits.unaligned_bytes = options_.unaligned_elements * type.bytes;
  return plan_slots(send_count * type.bytes, recv_count * type.bytes, limits);
}

PointSetup Runner::setup_point(const ElementType& type, const Where& where, size_t bytes) const {
  PointSetup setup;
  setup.where = where;
  setup.type = &type;
  setup.geometry = operation_.geometry(bytes / type.bytes, type.bytes, where);
  setup.plan = plan_point(type, where.root, bytes);
  return setup;
}

std::pair<size_t, size_t> Runner::arena_bytes(size_t size_count) const {
  size_t send_bytes = 0;
  size_t recv_bytes = 0;
  for (const ElementType* type : options_.types) {
    for (size_t i = 0; i < size_count; ++i) {
      const SlotPlan plan = plan_point(*type, 0, sizes_[i]);
      send_bytes = std::max(send_bytes, plan.slot_count * plan.send_stride);
      recv_bytes = std::max(recv_bytes, plan.slot_count * plan.recv_stride);
    }
  }
  return {send_bytes, recv_bytes};
}

void Runner::drop_sizes_without_memory() {
  // The library and other programs need some too.
  const size_t available = job_.machine.memory_available_bytes / 8 * 7;
  const auto needed = [this](size_t size_count) {
    const auto [send_bytes, recv_bytes] = arena_bytes(size_count);
    return (send_bytes + recv_bytes) * static_cast<size_t>(job_.local_rank_count);
  };
  size_t fitting = sizes_.size();
  while (available != 0 && fitting > 0 && needed(fitting) > available) --fitting;
  // Machines differ, and all ranks measure the same sizes.
  for (const double other : exchange(static_cast<double>(fitting))) {
    fitting = std::min(fitting, static_cast<size_t>(other));
  }
  if (fitting == 0) {
    throw RunError{
        fmt::format("the buffers of {} local ranks need {:.1f} GiB and the machine has {:.1f} GiB "
                    "for them; lower "
                    "-b, the number of ranks or -m, or use --fixed-buffers",
                    job_.local_rank_count, static_cast<double>(needed(1)) / (1u << 30),
                    static_cast<double>(available) / (1u << 30))};
  }
  sizes_.resize(fitting);
}

void Runner::prepare() {
  if (std::string e = group_.make(job_.comm, job_.rank, options_.split, job_.process); !e.empty()) {
    throw RunError{e};
  }
  for (const weir_comm_t comm : {job_.comm, group_.comm()}) {
    if (options_.timeout_s == 0) continue;
    require(weir_comm_set_timeout(comm, options_.timeout_s * 1000), "weir_comm_set_timeout", comm);
  }
  const std::vector<double> counts = exchange(group_.rank_count());
  smallest_group_ = static_cast<int>(*std::min_element(counts.begin(), counts.end()));
  if (options_.root >= smallest_group_ && operation_.has_root) {
    throw RunError{fmt::format("-r {}: the ranks are 0 to {}", options_.root, smallest_group_ - 1)};
  }
  memory_.start_bytes = grown_since(job_.resident_bytes);
  drop_sizes_without_memory();
  const size_t before = resident_bytes();
  const auto [send_bytes, recv_bytes] = arena_bytes(sizes_.size());
  if (std::string e =
          buffers_.allocate(group_.comm(), send_bytes, recv_bytes, options_.registration);
      !e.empty()) {
    throw RunError{e};
  }
  memory_.buffer_bytes = grown_since(before);
  resident_prepared_ = resident_bytes();

  struct Card {
    int32_t process, group, local_rank, pid, cpu;
    char host[108];
  };
  Card mine{job_.process,    options_.split.color(job_.process),
            job_.local_rank, static_cast<int32_t>(getpid()),
            job_.pinned_cpu, {}};
  std::snprintf(mine.host, sizeof(mine.host), "%s", job_.machine.host.c_str());
  std::vector<Card> cards(static_cast<size_t>(job_.rank_count));
  require(weir_all_gather(job_.comm, &mine, cards.data(), sizeof(Card), WEIR_UINT8, nullptr),
          "weir_all_gather (exchange of names)");
  if (job_.rank != 0) return;
  RunInfo info;
  info.program = operation_.program;
  info.rank_count = job_.rank_count;
  info.process_count = job_.process_count;
  info.launch = job_.launch;
  info.cache_bytes = cache_bytes_;
  info.bytes_max =
      sizes_.size() < sweep_sizes(options_).size() ? sizes_.back() : options_.bytes_max;
  info.machine = job_.machine;
  for (size_t i = 0; i < cards.size(); ++i) {
    cards[i].host[sizeof(cards[i].host) - 1] = '\0';
    info.ranks.push_back({static_cast<int>(i), cards[i].group, cards[i].local_rank,
                          cards[i].process, cards[i].pid, cards[i].cpu, cards[i].host});
  }
  report_ = std::make_unique<Report>(options_, std::move(info));
  report_->print_header();
}

uint8_t* Runner::send_at(const PointSetup& s, bool in_place, size_t slot) const {
  const size_t shift = shift_bytes(s);
  if (!in_place) return buffers_.send() + slot * s.plan.send_stride + shift;
  return buffers_.recv() + slot * s.plan.recv_stride + shift +
         s.geometry.in_place_send_offset * s.type->bytes;
}

uint8_t* Runner::recv_at(const PointSetup& s, bool in_place, size_t slot) const {
  const size_t shift = shift_bytes(s);
  return buffers_.recv() + slot * s.plan.recv_stride + shift +
         (in_place ? s.geometry.in_place_recv_offset * s.type->bytes : 0);
}

void Runner::start(const PointSetup& s, bool in_place, size_t slot, Requests* requests) {
  Call call;
  call.comm = group_.comm();
  call.send = send_at(s, in_place, slot);
  call.recv = recv_at(s, in_place, slot);
  call.count = s.geometry.table_count;
  call.element_bytes = s.type->bytes;
  call.type = s.type->type;
  call.op = s.op;
  call.where = s.where;
  if (options_.blocking == Blocking::kRequests) {
    call.request = requests->data();
    call.second_request = requests->data() + 1;
  }
  require(operation_.start(call), operation_.c_name, group_.comm());
}

Timing Runner::time_iterations(const PointSetup& s, bool in_place, int64_t count,
                               std::vector<double>* each_us) {
  const bool requests = options_.blocking == Blocking::kRequests;
  const bool grouped = options_.aggregate > 1;
  const bool stops = options_.blocking == Blocking::kBarrierOutside;
  const auto now = [this] {
    return Timing{now_us(CLOCK_MONOTONIC),
                  options_.report_cpu_time ? now_us(CLOCK_THREAD_CPUTIME_ID) : 0};
  };
  struct Flight {
    Requests requests{};
    bool ends_iteration = false;
  };
  std::vector<Flight> flights(static_cast<size_t>(operations_in_flight()));
  size_t flight_index = 0;
  size_t slot = 0;
  double iteration_begin = 0;
  const auto end_iteration = [&] {
    const double time = now_us(CLOCK_MONOTONIC);
    each_us->push_back((time - iteration_begin) / options_.aggregate);
    iteration_begin = time;
  };
  // Requests complete in their order, so the time of an iteration is that from one end to the next.
  const auto finish = [&](Flight& flight) {
    require(weir_wait_all(flight.requests.data(), flight.requests.size()), "weir_wait_all");
    if (flight.ends_iteration && each_us != nullptr) end_iteration();
    flight.ends_iteration = false;
  };
  Timing timed;  // with -z 3, without the barriers
  barrier();
  Timing begin = now();
  iteration_begin = begin.elapsed_us;
  for (int64_t i = 0; i < count; ++i) {
    for (int a = 0; requests && a < options_.aggregate; ++a) {
      // Before the group: it would start what is waited for only at its end.
      finish(flights[(flight_index + static_cast<size_t>(a)) % flights.size()]);
    }
    if (each_us != nullptr && !requests) iteration_begin = now_us(CLOCK_MONOTONIC);
    if (grouped) require(weir_group_start(), "weir_group_start");
    for (int a = 0; a < options_.aggregate; ++a) {
      start(s, in_place, slot, &flights[flight_index].requests);
      flights[flight_index].ends_iteration = requests && a + 1 == options_.aggregate;
      if (++flight_index == flights.size()) flight_index = 0;
      if (++slot == s.plan.slot_count) slot = 0;
    }
    if (grouped) require(weir_group_end(), "weir_group_end");
    if (options_.blocking == Blocking::kBarrier) barrier();
    if (each_us != nullptr && !requests) end_iteration();
    if (stops) {
      const Timing end = now();
      timed.elapsed_us += end.elapsed_us - begin.elapsed_us;
      timed.cpu_us += end.cpu_us - begin.cpu_us;
      barrier();
      begin = now();
    }
  }
  for (size_t i = 0; i < flights.size(); ++i) {
    finish(flights[(flight_index + i) % flights.size()]);
  }
  if (!stops) {
    const Timing end = now();
    timed = {end.elapsed_us - begin.elapsed_us, end.cpu_us - begin.cpu_us};
  }
  const double operations = static_cast<double>(count * options_.aggregate);
  return {timed.elapsed_us / operations, timed.cpu_us / operations};
}

int64_t Runner::choose_iterations(const PointSetup& s, bool in_place) {
  if (options_.iterations > 0) return options_.iterations;
  double slowest = 0;
  for (const double us :
       exchange(time_iterations(s, in_place, kProbeIterations, nullptr).elapsed_us)) {
    slowest = std::max(slowest, us * options_.aggregate);
  }
  const int64_t most = options_.per_iteration ? kAutoIterationsEachMax : kAutoIterationsMax;
  const double wanted = slowest > 0 ? kAutoTimeUs / slowest : static_cast<double>(most);
  return std::clamp(static_cast<int64_t>(wanted), kAutoIterationsMin, most);
}

std::optional<IterationTimes> Runner::gather_times(const std::vector<double>& each_us) {
  const size_t count = each_us.size();
  std::vector<double> all;
  if (report_) all.resize(count * static_cast<size_t>(job_.rank_count));
  require(weir_gather(job_.comm, each_us.data(), all.data(), count, WEIR_FLOAT64, 0, nullptr),
          "weir_gather (times of iterations)");
  if (!report_) return std::nullopt;
  IterationTimes times;
  times.times_us.resize(count);
  const bool per_process = !options_.json_file.empty() && job_.process_count > 1;
  if (per_process) {
    times.process_times_us.assign(static_cast<size_t>(job_.process_count),
                                  std::vector<double>(count));
  }
  for (size_t rank = 0; rank < static_cast<size_t>(job_.rank_count); ++rank) {
    const size_t process = rank / static_cast<size_t>(options_.ranks_per_process());
    for (size_t i = 0; i < count; ++i) {
      const double us = all[rank * count + i];
      times.times_us[i] = std::max(times.times_us[i], us);
      if (!per_process) continue;
      double& slowest = times.process_times_us[process][i];
      slowest = std::max(slowest, us);
    }
  }
  times.stats =
      iteration_stats({times.times_us.begin() + options_.per_iteration_skip, times.times_us.end()});
  return times;
}

void Runner::fill_slot(Pattern& pattern, const PointSetup& s, bool in_place, size_t slot,
                       uint64_t iteration) {
  if (in_place) {
    const size_t shift = shift_bytes(s);
    const size_t bytes = s.geometry.in_place_count * s.type->bytes;
    uint8_t* base = buffers_.recv() + slot * s.plan.recv_stride + shift;
    std::memset(base, kPoisonByte, bytes);
    std::memset(base + bytes, kGuardByte, kGuardBytes);
  } else {
    uint8_t* base = recv_at(s, false, slot);
    const size_t bytes = s.geometry.recv_count * s.type->bytes;
    std::memset(base, kPoisonByte, bytes);
    std::memset(base + bytes, kGuardByte, kGuardBytes);
  }
  pattern.fill(send_at(s, in_place, slot), s.where.rank, 0, s.geometry.send_count, iteration);
}

void Runner::note_mismatch(Pattern& pattern, const PointSetup& s, bool in_place,
                           const ExpectedBlock& block, const Mismatch& mismatch) {
  if (mismatch_shown_) return;
  mismatch_shown_ = true;
  fmt::print(
      stderr,
      "{}: rank {}: first wrong value: {} {} {}, size {}, element {} of {}: {:#x} ({:g}) and "
      "not {:#x} ({:g})\n",
      operation_.program, job_.rank, s.type->name, reduction_name(pattern.reduction()),
      in_place ? "in place" : "out of place", s.geometry.table_bytes,
      block.recv_index + mismatch.index, s.geometry.recv_count, mismatch.actual_bits,
      decode(*s.type, mismatch.actual_bits), mismatch.expected_bits,
      decode(*s.type, mismatch.expected_bits));
}

uint64_t Runner::check_slot(Pattern& pattern, const PointSetup& s, bool in_place, size_t slot,
                            uint64_t iteration) {
  uint64_t wrong = 0;
  const uint8_t* recv = recv_at(s, in_place, slot);
  if (s.geometry.recv_count > 0) {
    for (const ExpectedBlock& block : operation_.expected(s.geometry, s.where)) {
      Mismatch first;
      const size_t here = pattern.count_wrong(recv + block.recv_index * s.type->bytes, block.source,
                                              block.source_index, block.count, iteration, &first);
      if (here > 0) note_mismatch(pattern, s, in_place, block, first);
      wrong += here;
    }
  }
  // The bytes after the buffer, and the input, must be unchanged.
  const size_t shift = shift_bytes(s);
  const size_t whole = in_place ? s.geometry.in_place_count : s.geometry.recv_count;
  const uint8_t* guard =
      buffers_.recv() + slot * s.plan.recv_stride + shift + whole * s.type->bytes;
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] == kGuardByte) continue;
    ++wrong;
    if (!mismatch_shown_) {
      mismatch_shown_ = true;
      fmt::print(stderr, "{}: rank {}: byte {} behind the receive buffer of {} bytes was written\n",
                 operation_.program, job_.rank, i, whole * s.type->bytes);
    }
  }
  const Geometry& g = s.geometry;
  const bool apart = g.in_place_recv_offset >= g.in_place_send_offset + g.send_count;
  if (!in_place || apart) {
    Mismatch first;
    const size_t here = pattern.count_wrong(send_at(s, in_place, slot), s.where.rank, 0,
                                            s.geometry.send_count, iteration, &first);
    if (here > 0 && !mismatch_shown_) {
      mismatch_shown_ = true;
      fmt::print(stderr, "{}: rank {}: element {} of the send buffer was changed\n",
                 operation_.program, job_.rank, first.index);
    }
    wrong += here;
  }
  return wrong;
}

double Runner::over_ranks(const std::vector<double>& values) const {
  switch (options_.average) {
    case Average::kRankZero:
      return values[0];
    case Average::kMean:
      return std::accumulate(values.begin(), values.end(), 0.0) /
             static_cast<double>(values.size());
    case Average::kMin:
      return *std::min_element(values.begin(), values.end());
    case Average::kMax:
      return *std::max_element(values.begin(), values.end());
  }
  return values[0];
}

Measurement Runner::measure_place(Pattern& pattern, const PointSetup& s, bool in_place) {
  const auto show = [&](const char* what) {
    if (report_) {
      report_->progress(fmt::format("{} {} {} {}: {}", operation_.program,
                                    format_bytes(s.geometry.table_bytes), s.type->name,
                                    in_place ? "in place" : "out of place", what));
    }
  };
  show("filling");
  for (size_t slot = 0; slot < s.plan.slot_count; ++slot) {
    fill_slot(pattern, s, in_place, slot, slot);
  }
  show("timing");
  if (options_.warmup > 0) time_iterations(s, in_place, options_.warmup, nullptr);
  const int64_t iterations = choose_iterations(s, in_place);
  std::vector<double> each_us;
  const Timing mine =
      time_iterations(s, in_place, iterations, options_.per_iteration ? &each_us : nullptr);

  uint64_t wrong = 0;
  if (options_.checks > 0) {
    show("checking");
    if (!in_place) {
      // Checks results of the timed loop itself: operations back to back, as in practice.
      const size_t slot_bytes = std::max<size_t>(s.plan.recv_stride, 1);
      const size_t used = static_cast<size_t>(std::min<int64_t>(
          iterations * options_.aggregate, static_cast<int64_t>(s.plan.slot_count)));
      const size_t some = std::max<size_t>(kBackToBackCheckBytes / slot_bytes, 1);
      for (size_t slot = 0; slot < std::min(used, some); ++slot) {
        wrong += check_slot(pattern, s, false, slot, slot);
      }
    }
    for (int c = 0; c < options_.checks; ++c) {
      const size_t slot = static_cast<size_t>(c) % s.plan.slot_count;
      const uint64_t iteration = s.plan.slot_count + static_cast<uint64_t>(c) + 1;
      fill_slot(pattern, s, in_place, slot, iteration);
      Requests requests{};
      start(s, in_place, slot, &requests);
      require(weir_wait_all(requests.data(), requests.size()), "weir_wait_all");
      if (options_.corrupt_rank == job_.rank && s.geometry.recv_count > 0) {
        recv_at(s, in_place, slot)[s.geometry.recv_count * s.type->bytes / 2] ^= 0x41;
      }
      wrong += check_slot(pattern, s, in_place, slot, iteration);
    }
  }
  wrong_here_ += wrong;

  Measurement m;
  m.iterations = iterations;
  const std::vector<double> times = exchange(mine.elapsed_us);
  m.time_us_min = *std::min_element(times.begin(), times.end());
  m.time_us_max = *std::max_element(times.begin(), times.end());
  m.time_us = over_ranks(times);
  if (options_.report_cpu_time) m.cpu_time_us = over_ranks(exchange(mine.cpu_us));
  if (m.time_us > 0) {
    m.algorithm_gbs = static_cast<double>(s.geometry.table_bytes) / m.time_us * 1e-3;
    m.bus_gbs = m.algorithm_gbs * operation_.bus_factor(group_.rank_count());
  }
  if (options_.checks > 0) {
    double total = 0;
    for (const double w : exchange(static_cast<double>(wrong))) total += w;
    m.wrong = static_cast<uint64_t>(total);
  }
  if (options_.per_iteration) m.each = gather_times(each_us);
  return m;
}

void Runner::measure_point(Pattern& pattern, const PointSetup& setup) {
  Row row;
  row.bytes = setup.geometry.table_bytes;
  row.count = setup.geometry.table_count;
  row.type = setup.type;
  row.reduction = pattern.reduction();
  row.root = operation_.has_root ? setup.where.root : -1;
  row.slot_count = setup.plan.slot_count;
  row.out_of_place = measure_place(pattern, setup, false);
  row.in_place = measure_place(pattern, setup, true);
  if (report_) report_->add(row);
}

void Runner::measure_series(Pattern& pattern, const Where& where, weir_redop_t op) {
  for (const size_t bytes : sizes_) {
    PointSetup setup = setup_point(pattern.type(), where, bytes);
    setup.op = op;
    measure_point(pattern, setup);
  }
}

void Runner::gather_memory() {
  const auto largest = [this](double mine) {
    const std::vector<double> all = exchange(mine);
    return *std::max_element(all.begin(), all.end());
  };
  MemoryUse most;
  most.start_bytes = largest(memory_.start_bytes);
  most.buffer_bytes = largest(memory_.buffer_bytes);
  most.running_bytes = largest(grown_since(resident_prepared_));
  if (report_) report_->set_memory(most);
}

int Runner::run() {
  try {
    prepare();
    for (int cycle = 0; options_.cycles == 0 || cycle < options_.cycles; ++cycle) {
      for (const ElementType* type : options_.types) {
        for (const Reduction reduction : options_.ops) {
          Pattern pattern(*type, reduction, group_.rank_count());
          weir_redop_t op = WEIR_SUM;
          switch (reduction) {
            case Reduction::kNone:
            case Reduction::kSum:
              break;
            case Reduction::kProd:
              op = WEIR_PROD;
              break;
            case Reduction::kMax:
              op = WEIR_MAX;
              break;
            case Reduction::kMin:
              op = WEIR_MIN;
              break;
            case Reduction::kAvg:
              op = WEIR_AVG;
              break;
            case Reduction::kMulSum: {
              const uint64_t factor = pattern.factor_bits(group_.rank());
              require(weir_redop_create_premul_sum(group_.comm(), &factor, type->type, &op),
                      "weir_redop_create_premul_sum", group_.comm());
              break;
            }
          }
          const bool all_roots = operation_.has_root && options_.root < 0;
          const int first = !operation_.has_root || all_roots ? 0 : options_.root;
          const int last = all_roots ? smallest_group_ - 1 : first;
          for (int root = first; root <= last; ++root) {
            measure_series(pattern, {group_.rank(), group_.rank_count(), root}, op);
          }
          if (reduction == Reduction::kMulSum) {
            require(weir_redop_destroy(group_.comm(), op), "weir_redop_destroy", group_.comm());
          }
        }
      }
    }
    if (options_.report_memory) gather_memory();
    if (std::string e = buffers_.release(); !e.empty()) throw RunError{e};
    if (std::string e = group_.release(); !e.empty()) throw RunError{e};
  } catch (const RunError& error) {
    if (report_) report_->progress("");
    fmt::print(stderr, "{}: rank {}: {}\n", operation_.program, job_.rank, error.text);
    return kExitError;
  }
  int status = wrong_here_ > 0 ? kExitWrong : kExitOk;
  if (report_) {
    report_->print_footer();
    // This process may be a child of the one that ends the tool.
    if (std::string e = output::stdout_error(); !e.empty()) {
      fmt::print(stderr, "{}: {}\n", operation_.program, e);
      status = kExitWrong;
    }
    if (report_->wrong_total() > 0 || !report_->bandwidth_suffices()) status = kExitWrong;
    if (std::string e = report_->write_files(); !e.empty()) {
      fmt::print(stderr, "{}: {}\n", operation_.program, e);
      status = kExitError;
    }
  }
  // A launcher may end all ranks when one ends with an error, so no rank ends before rank 0 has
  // reported.
  if (weir_barrier(job_.comm, nullptr) != WEIR_OK && status == kExitOk) {
    fmt::print(stderr, "{}: rank {}: {}\n", operation_.program, job_.rank,
               weir_last_error(job_.comm));
    status = kExitError;
  }
  return status;
}

}  // namespace

int run_rank(const RankJob& job) { return Runner(job).run(); }

}  // namespace weir::perf
