// SPDX-License-Identifier: Apache-2.0
#include "perf/harness/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <memory>
#include <optional>
#include <vector>

#include "perf/harness/buffers.h"

namespace weir::perf {
namespace {

constexpr size_t kInFlightMax = 8;          // -z 0
constexpr int64_t kAutoIterationsMin = 20;  // -n auto
constexpr int64_t kAutoIterationsMax = 200000;
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

// One line of the table, while it is measured.
struct PointSetup {
  Geometry geometry;
  SlotPlan plan;
  Where where;
  const ElementType* type = nullptr;
  weir_redop_t op = WEIR_SUM;
};

class Runner {
 public:
  explicit Runner(const RankJob& job)
      : job_(job), options_(*job.options), operation_(*job.operation) {
    cache_bytes_ =
        options_.cache_bytes != 0 ? options_.cache_bytes : job.machine.last_level_cache_bytes;
  }

  int run();

 private:
  void prepare();
  void measure_series(Pattern& pattern, const Where& where, weir_redop_t op);
  void measure_point(Pattern& pattern, const PointSetup& setup);
  Measurement measure_place(Pattern& pattern, const PointSetup& setup, bool in_place);

  // Runs `count` iterations and returns this rank's microseconds per operation.
  double time_iterations(const PointSetup& setup, bool in_place, int64_t count,
                         std::vector<double>* each_us);
  void start(const PointSetup& setup, bool in_place, size_t slot, weir_request_t* request);
  int64_t choose_iterations(const PointSetup& setup, bool in_place);

  void fill_slot(Pattern& pattern, const PointSetup& setup, bool in_place, size_t slot,
                 uint64_t iteration);
  uint64_t check_slot(Pattern& pattern, const PointSetup& setup, bool in_place, size_t slot,
                      uint64_t iteration);
  void note_mismatch(Pattern& pattern, const PointSetup& setup, bool in_place,
                     const ExpectedBlock& block, const Mismatch& mismatch);

  PointSetup setup_point(const ElementType& type, const Where& where, size_t bytes) const;
  SlotPlan plan_point(const ElementType& type, int root, size_t bytes) const;

  uint8_t* send_at(const PointSetup& setup, bool in_place, size_t slot) const;
  uint8_t* recv_at(const PointSetup& setup, bool in_place, size_t slot) const;

  // Values of all ranks, by rank.
  std::vector<double> exchange(double mine);
  void barrier();
  void require(weir_result_t result, const char* call) const {
    if (result != WEIR_OK) throw RunError{error_text(call, result, job_.comm)};
  }

  const RankJob& job_;
  const Options& options_;
  const Operation& operation_;
  size_t cache_bytes_ = 0;
  Buffers buffers_;
  std::unique_ptr<Report> report_;  // rank 0
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
  for (int rank = 0; rank < job_.rank_count; ++rank) {
    const Geometry g =
        operation_.geometry(bytes / type.bytes, type.bytes, {rank, job_.rank_count, root});
    send_count = std::max(send_count, g.send_count);
    // In place runs in the receive arena.
    recv_count = std::max({recv_count, g.recv_count, g.in_place_count});
  }
  SlotLimits limits;
  limits.cache_bytes = cache_bytes_;
  limits.local_rank_count = job_.local_rank_count;
  limits.fixed = options_.fixed_buffers;
  limits.slot_count_min = options_.aggregate;
  if (!options_.blocking) {
    limits.slot_count_min = std::max(limits.slot_count_min, static_cast<int>(kInFlightMax));
  }
  limits.unaligned_bytes = options_.unaligned ? type.bytes : 0;
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

void Runner::prepare() {
  if (options_.root >= job_.rank_count && operation_.has_root) {
    throw RunError{fmt::format("-r {}: the ranks are 0 to {}", options_.root, job_.rank_count - 1)};
  }
  if (options_.timeout_s > 0) {
    require(weir_comm_set_timeout(job_.comm, options_.timeout_s * 1000), "weir_comm_set_timeout");
  }
  size_t send_bytes = 0;
  size_t recv_bytes = 0;
  for (const ElementType* type : options_.types) {
    for (const size_t bytes : sweep_sizes(options_)) {
      const SlotPlan plan = plan_point(*type, 0, bytes);
      send_bytes = std::max(send_bytes, plan.slot_count * plan.send_stride);
      recv_bytes = std::max(recv_bytes, plan.slot_count * plan.recv_stride);
    }
  }
  const size_t available = job_.machine.memory_available_bytes;
  const size_t needed = (send_bytes + recv_bytes) * static_cast<size_t>(job_.local_rank_count);
  if (available != 0 && needed > available) {
    throw RunError{fmt::format(
        "the buffers of {} local ranks need {:.1f} GiB and the machine has {:.1f} GiB free; lower "
        "-e, the number of ranks or -m, or use --fixed-buffers",
        job_.local_rank_count, static_cast<double>(needed) / (1u << 30),
        static_cast<double>(available) / (1u << 30))};
  }
  if (std::string e = buffers_.allocate(job_.comm, send_bytes, recv_bytes, options_.registration);
      !e.empty()) {
    throw RunError{e};
  }

  struct Card {
    int32_t process, pid, cpu;
    char host[116];
  };
  Card mine{job_.process, static_cast<int32_t>(getpid()), job_.pinned_cpu, {}};
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
  info.machine = job_.machine;
  for (size_t i = 0; i < cards.size(); ++i) {
    cards[i].host[sizeof(cards[i].host) - 1] = '\0';
    info.ranks.push_back(
        {static_cast<int>(i), cards[i].process, cards[i].pid, cards[i].cpu, cards[i].host});
  }
  report_ = std::make_unique<Report>(options_, std::move(info));
  report_->print_header();
}

uint8_t* Runner::send_at(const PointSetup& s, bool in_place, size_t slot) const {
  const size_t shift = options_.unaligned ? s.type->bytes : 0;
  if (!in_place) return buffers_.send() + slot * s.plan.send_stride + shift;
  return buffers_.recv() + slot * s.plan.recv_stride + shift +
         s.geometry.in_place_send_offset * s.type->bytes;
}

uint8_t* Runner::recv_at(const PointSetup& s, bool in_place, size_t slot) const {
  const size_t shift = options_.unaligned ? s.type->bytes : 0;
  return buffers_.recv() + slot * s.plan.recv_stride + shift +
         (in_place ? s.geometry.in_place_recv_offset * s.type->bytes : 0);
}

void Runner::start(const PointSetup& s, bool in_place, size_t slot, weir_request_t* request) {
  Call call;
  call.comm = job_.comm;
  call.send = send_at(s, in_place, slot);
  call.recv = recv_at(s, in_place, slot);
  call.count = s.geometry.table_count;
  call.element_bytes = s.type->bytes;
  call.type = s.type->type;
  call.op = s.op;
  call.where = s.where;
  call.request = request;
  require(operation_.start(call), operation_.c_name);
}

double Runner::time_iterations(const PointSetup& s, bool in_place, int64_t count,
                               std::vector<double>* each_us) {
  const clockid_t clock = options_.report_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  weir_request_t requests[kInFlightMax] = {};
  size_t slot = 0;
  size_t request_index = 0;
  const bool grouped = options_.aggregate > 1;
  barrier();
  const double begin = now_us(clock);
  for (int64_t i = 0; i < count; ++i) {
    const double iteration_begin = each_us != nullptr ? now_us(clock) : 0;
    if (grouped) require(weir_group_start(), "weir_group_start");
    for (int a = 0; a < options_.aggregate; ++a) {
      weir_request_t* request = nullptr;
      if (!options_.blocking) {
        request = &requests[request_index];
        request_index = (request_index + 1) % kInFlightMax;
        if (*request != nullptr) require(weir_wait(request), "weir_wait");
      }
      start(s, in_place, slot, request);
      if (++slot == s.plan.slot_count) slot = 0;
    }
    if (grouped) require(weir_group_end(), "weir_group_end");
    if (each_us != nullptr) each_us->push_back(now_us(clock) - iteration_begin);
  }
  if (!options_.blocking) {
    require(weir_wait_all(requests, kInFlightMax), "weir_wait_all");
  }
  const double elapsed = now_us(clock) - begin;
  return elapsed / static_cast<double>(count * options_.aggregate);
}

int64_t Runner::choose_iterations(const PointSetup& s, bool in_place) {
  if (options_.iterations > 0) return options_.iterations;
  double slowest = 0;
  for (const double us : exchange(time_iterations(s, in_place, kProbeIterations, nullptr))) {
    slowest = std::max(slowest, us * options_.aggregate);
  }
  const double wanted = slowest > 0 ? kAutoTimeUs / slowest : kAutoIterationsMax;
  return std::clamp(static_cast<int64_t>(wanted), kAutoIterationsMin, kAutoIterationsMax);
}

void Runner::fill_slot(Pattern& pattern, const PointSetup& s, bool in_place, size_t slot,
                       uint64_t iteration) {
  if (in_place) {
    const size_t shift = options_.unaligned ? s.type->bytes : 0;
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
  const size_t shift = options_.unaligned ? s.type->bytes : 0;
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
  if (!in_place) {
    Mismatch first;
    const size_t here = pattern.count_wrong(send_at(s, false, slot), s.where.rank, 0,
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
  const double mine =
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
      weir_request_t request = nullptr;
      start(s, in_place, slot, options_.blocking ? nullptr : &request);
      if (request != nullptr) require(weir_wait(&request), "weir_wait");
      if (options_.corrupt_rank == job_.rank && s.geometry.recv_count > 0) {
        recv_at(s, in_place, slot)[s.geometry.recv_count * s.type->bytes / 2] ^= 0x41;
      }
      wrong += check_slot(pattern, s, in_place, slot, iteration);
    }
  }
  wrong_here_ += wrong;

  Measurement m;
  m.iterations = iterations;
  const std::vector<double> times = exchange(mine);
  double sum = 0;
  for (const double t : times) sum += t;
  m.time_us_min = *std::min_element(times.begin(), times.end());
  m.time_us_max = *std::max_element(times.begin(), times.end());
  switch (options_.average) {
    case Average::kRankZero:
      m.time_us = times[0];
      break;
    case Average::kMean:
      m.time_us = sum / static_cast<double>(times.size());
      break;
    case Average::kMin:
      m.time_us = m.time_us_min;
      break;
    case Average::kMax:
      m.time_us = m.time_us_max;
      break;
  }
  if (m.time_us > 0) {
    m.algorithm_gbs = static_cast<double>(s.geometry.table_bytes) / m.time_us * 1e-3;
    m.bus_gbs = m.algorithm_gbs * operation_.bus_factor(job_.rank_count);
  }
  if (options_.checks > 0) {
    double total = 0;
    for (const double w : exchange(static_cast<double>(wrong))) total += w;
    m.wrong = static_cast<uint64_t>(total);
  }
  if (options_.per_iteration) m.stats = iteration_stats(std::move(each_us));
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
  if (operation_.has_in_place) row.in_place = measure_place(pattern, setup, true);
  if (report_) report_->add(row);
}

void Runner::measure_series(Pattern& pattern, const Where& where, weir_redop_t op) {
  for (const size_t bytes : sweep_sizes(options_)) {
    PointSetup setup = setup_point(pattern.type(), where, bytes);
    setup.op = op;
    measure_point(pattern, setup);
  }
}

int Runner::run() {
  try {
    prepare();
    for (int cycle = 0; options_.cycles == 0 || cycle < options_.cycles; ++cycle) {
      for (const ElementType* type : options_.types) {
        for (const Reduction reduction : options_.ops) {
          Pattern pattern(*type, reduction, job_.rank_count);
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
              const uint64_t factor = pattern.factor_bits(job_.rank);
              require(weir_redop_create_premul_sum(job_.comm, &factor, type->type, &op),
                      "weir_redop_create_premul_sum");
              break;
            }
          }
          const bool all_roots = operation_.has_root && options_.root < 0;
          const int first = !operation_.has_root || all_roots ? 0 : options_.root;
          const int last = all_roots ? job_.rank_count - 1 : first;
          for (int root = first; root <= last; ++root) {
            measure_series(pattern, {job_.rank, job_.rank_count, root}, op);
          }
          if (reduction == Reduction::kMulSum) {
            require(weir_redop_destroy(job_.comm, op), "weir_redop_destroy");
          }
        }
      }
    }
    if (std::string e = buffers_.release(); !e.empty()) throw RunError{e};
  } catch (const RunError& error) {
    if (report_) report_->progress("");
    fmt::print(stderr, "{}: rank {}: {}\n", operation_.program, job_.rank, error.text);
    return kExitError;
  }
  int status = wrong_here_ > 0 ? kExitWrong : kExitOk;
  if (report_) {
    report_->print_footer();
    if (report_->wrong_total() > 0) status = kExitWrong;
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
