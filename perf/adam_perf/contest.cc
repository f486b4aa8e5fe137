// SPDX-License-Identifier: Apache-2.0
#include "perf/adam_perf/contest.h"

#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>

#include "core/base/clock.h"
#include "perf/adam_perf/streaming_loop.h"

namespace weir::perf {
namespace {

using offload::Plane;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

uint64_t round_up(uint64_t bytes) {
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

volatile uint32_t zero_mask = 0;  // hides the value from the compiler

}  // namespace

double Times::best() const { return *std::min_element(seconds.begin(), seconds.end()); }

double Times::median() const { return median_of(seconds); }

double ContestResult::ratio_of_bests() const { return loop.best() / step.best(); }

double ContestResult::median_ratio() const {
  std::vector<double> ratios(step.seconds.size());
  for (size_t i = 0; i < ratios.size(); ++i) ratios[i] = loop.seconds[i] / step.seconds[i];
  return median_of(ratios);
}

Contest::Contest(const ContestCase& contest, offload::Placement placement)
    : case_(contest), placement_(std::move(placement)), elements_(placement_.element_count()) {}

Contest::~Contest() {
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

Result<std::unique_ptr<Contest>> Contest::create(const ContestCase& contest, uint64_t elements) {
  offload::ParameterGroup group;
  group.name = "all";
  group.element_count = elements;
  group.method = contest.method;
  group.format = contest.format;
  Result<offload::Placement> placement = offload::Placement::make({}, {group});
  if (!placement.ok()) return placement.status();
  std::unique_ptr<Contest> made(new Contest(contest, std::move(placement.value())));
  const Status status = made->allocate();
  if (!status.ok()) return status;
  made->fill();
  return Result<std::unique_ptr<Contest>>(std::move(made));
}

Status Contest::allocate() {
  chunk_stride_bytes_ = placement_.state_bytes_max();
  const uint64_t state_bytes = round_up(placement_.state_count() * chunk_stride_bytes_);
  const uint64_t gradient_bytes = round_up(elements_ * element_bytes(case_.gradient_type));
  const uint64_t copy_bytes = has_half_master(case_.format) ? round_up(elements_ * 2) : 0;
  const uint64_t parameter_bytes = case_.writes_copy ? round_up(elements_ * 2) : 0;
  memory_bytes_ = state_bytes + gradient_bytes + copy_bytes + parameter_bytes + kHugePageBytes;
  void* memory =
      mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return system_error("adam_perf: " + std::to_string(memory_bytes_ >> 20) +
                        " MiB of memory; measure fewer parameters");
  }
  memory_ = static_cast<unsigned char*>(memory);
  (void)madvise(memory_, memory_bytes_, MADV_HUGEPAGE);  // if this fails, the figures show it
  const auto address = reinterpret_cast<uintptr_t>(memory_);
  state_ = memory_ + (round_up(address) - address);
  gradient_ = state_ + state_bytes;
  copy_ = gradient_ + gradient_bytes;
  parameter_ = copy_ + copy_bytes;
  return Status();
}

void Contest::fill_chunk(const offload::StateChunk& chunk, unsigned char* state) {
  std::mt19937_64 random(chunk.first);
  std::normal_distribution<float> normal;
  std::vector<float> p(chunk.count), m(chunk.count), v(chunk.count);
  for (uint64_t i = 0; i < chunk.count; ++i) {
    p[i] = normal(random);
    m[i] = normal(random) * 1e-3f;
    v[i] = 1e-6f * (0.5f + std::abs(normal(random)));
    const float g = case_.idle ? 0 : normal(random) * 1e-3f;
    uint32_t bits;
    std::memcpy(&bits, &g, 4);
    const auto upper = static_cast<uint16_t>(bits >> 16);
    if (case_.gradient_type == DataType::kFloat32) {
      std::memcpy(gradient_ + (chunk.first + i) * 4, &g, 4);
    } else {
      std::memcpy(gradient_ + (chunk.first + i) * 2, &upper, 2);
    }
  }
  encode_state(
      *chunk.layout, 0, chunk.count, p.data(), m.data(), v.data(), state,
      has_half_master(case_.format) ? reinterpret_cast<uint16_t*>(copy_) + chunk.first : nullptr);
}

void Contest::fill() {
  // The other chunks repeat the first ones: random numbers for all would take minutes.
  constexpr uint64_t kFresh = 4;
  for (uint64_t c = 0; c < placement_.state_count(); ++c) {
    const offload::StateChunk chunk = placement_.state(c);
    const offload::StateChunk other = placement_.state(c % kFresh);
    if (c < kFresh || chunk.layout != other.layout) {
      fill_chunk(chunk, state(c));
      continue;
    }
    std::memcpy(state(c), state(c % kFresh), chunk.layout->state_bytes);
    const size_t width = element_bytes(case_.gradient_type);
    std::memcpy(gradient_ + chunk.first * width, gradient_ + other.first * width,
                chunk.count * width);
    if (has_half_master(case_.format)) {
      std::memcpy(copy_ + chunk.first * 2, copy_ + other.first * 2, chunk.count * 2);
    }
  }
  if (case_.writes_copy) std::memset(parameter_, 0, elements_ * 2);
}

// Set before every step: flushing makes them zero for good.
void Contest::make_idle() {
  const float tiny = 1e-40f;
  for (uint64_t c = 0; c < placement_.state_count(); ++c) {
    for (const Plane plane : {Plane::kFirstMoment, Plane::kSecondMoment}) {
      const offload::PlaneExtent& extent = placement_.state(c).layout->plane(plane);
      for (uint64_t at = 0; at < extent.bytes; at += 4) {
        std::memcpy(state(c) + extent.offset_bytes + at, &tiny, 4);
      }
    }
  }
}

double Contest::time_step(offload::WorkerPool& pool) {
  offload::StepRange range;
  range.gradient_type = case_.gradient_type;
  range.gradient_factor = case_.unscales ? 0.37f / 1024 : 1.0f;
  range.stochastic_rounding = case_.stochastic;
  offload::Hyper hyper;
  hyper.learning_rate = 1e-4;
  hyper.weight_decay = 0.01;
  const offload::StepFactors factors = step_factors(case_.method, hyper, ++step_);
  const uint64_t start_ns = now_ns();
  pool.parallel_for(placement_.state_count(), 1, [&](uint64_t c, uint64_t) {
    const offload::StateChunk chunk = placement_.state(c);
    offload::StepRange own = range;
    own.layout = chunk.layout;
    own.source = own.destination = state(c);
    own.count = chunk.count;
    own.first_index = chunk.first;
    own.gradient = gradient_ + chunk.first * element_bytes(case_.gradient_type);
    if (has_half_master(case_.format)) {
      own.copy_in = own.copy_out = reinterpret_cast<uint16_t*>(copy_) + chunk.first;
    }
    if (case_.writes_copy) own.parameter_out = parameter_ + chunk.first * 2;
    step_range(factors, own);
  });
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

double Contest::time_loop(offload::WorkerPool& pool, bool prefetch) {
  const uint32_t mask = zero_mask;
  const uint64_t start_ns = now_ns();
  pool.parallel_for(placement_.state_count(), 1, [&](uint64_t c, uint64_t) {
    const offload::StateChunk chunk = placement_.state(c);
    Stream s;
    const auto add = [&](unsigned char* data, size_t bytes) {
      s.in_place[s.in_place_count++] = {data, bytes};
    };
    if (has_half_master(case_.format)) add(copy_ + chunk.first * 2, 2);
    for (const Plane plane : {Plane::kMaster, Plane::kFirstMoment, Plane::kSecondMoment}) {
      const offload::PlaneExtent& extent = chunk.layout->plane(plane);
      if (extent.bytes != 0) add(state(c) + extent.offset_bytes, extent.bytes / chunk.count);
    }
    const size_t width = element_bytes(case_.gradient_type);
    s.read = {gradient_ + chunk.first * width, width};
    if (case_.writes_copy) s.written = {parameter_ + chunk.first * 2, 2};
    s.prefetch = prefetch;
    s.mask = mask;
    stream(s, 0, chunk.count);
  });
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

ContestResult Contest::run(offload::WorkerPool& pool, uint32_t rounds) {
  ContestResult result;
  Times plain, prefetched;
  time_loop(pool, false);
  time_step(pool);
  for (uint32_t round = 0; round < rounds; ++round) {
    if (case_.idle) make_idle();
    result.step.seconds.push_back(time_step(pool));
    plain.seconds.push_back(time_loop(pool, false));
    prefetched.seconds.push_back(time_loop(pool, true));
  }
  result.loop_prefetches = prefetched.best() < plain.best();
  result.loop = result.loop_prefetches ? prefetched : plain;
  double bytes = static_cast<double>(element_bytes(case_.gradient_type));
  for (const Plane plane : {Plane::kMaster, Plane::kFirstMoment, Plane::kSecondMoment}) {
    const offload::StateChunk chunk = placement_.state(0);
    const uint64_t plane_bytes = chunk.layout->plane(plane).bytes / chunk.count;
    bytes += 2 * static_cast<double>(plane_bytes);
  }
  if (has_half_master(case_.format)) bytes += 4;
  if (case_.writes_copy) bytes += 2;
  result.bytes_per_parameter = bytes;
  return result;
}

double Contest::huge_page_share() const {
  std::ifstream smaps("/proc/self/smaps");
  const auto from = reinterpret_cast<uintptr_t>(memory_);
  bool inside = false;
  uint64_t huge_kb = 0;
  for (std::string line; std::getline(smaps, line);) {
    uintptr_t begin = 0, end = 0;
    uint64_t kb = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR, &begin, &end) == 2) {
      inside = begin < from + memory_bytes_ && end > from;
    } else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %" SCNu64, &kb) == 1) {
      huge_kb += kb;
    }
  }
  return std::min(1.0, static_cast<double>(huge_kb << 10) / static_cast<double>(memory_bytes_));
}

}  // namespace weir::perf
