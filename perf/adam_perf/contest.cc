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

volatile uint32_t zero_mask = 0;  // what the compiler cannot know

}  // namespace

double Times::best() const { return *std::min_element(seconds.begin(), seconds.end()); }

double Times::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2];
}

Contest::Contest(const ContestCase& contest, uint64_t elements)
    : case_(contest),
      elements_(elements),
      layout_(offload::chunk_layout(contest.method, contest.format, elements)) {}

Contest::~Contest() {
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

Result<std::unique_ptr<Contest>> Contest::create(const ContestCase& contest, uint64_t elements) {
  std::unique_ptr<Contest> made(new Contest(contest, elements));
  const Status status = made->allocate();
  if (!status.ok()) return status;
  made->fill();
  return Result<std::unique_ptr<Contest>>(std::move(made));
}

Status Contest::allocate() {
  const uint64_t chunk_bytes = round_up(layout_.chunk_bytes);
  const uint64_t gradient_bytes = round_up(elements_ * element_bytes(case_.gradient_type));
  const uint64_t half_bytes = round_up(elements_ * 2);
  memory_bytes_ = chunk_bytes + gradient_bytes + 2 * half_bytes + kHugePageBytes;
  void* memory =
      mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return system_error("adam_perf: " + std::to_string(memory_bytes_ >> 20) +
                        " MiB of memory; measure fewer parameters");
  }
  memory_ = static_cast<unsigned char*>(memory);
  (void)madvise(memory_, memory_bytes_, MADV_HUGEPAGE);  // without, the figures say so
  const auto address = reinterpret_cast<uintptr_t>(memory_);
  chunk_ = memory_ + (round_up(address) - address);
  gradient_ = chunk_ + chunk_bytes;
  copy_ = gradient_ + gradient_bytes;
  parameter_ = copy_ + half_bytes;
  return Status();
}

void Contest::fill() {
  constexpr uint64_t kPiece = 1 << 16;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> p(kPiece), m(kPiece), v(kPiece), g(kPiece);
  for (uint64_t i = 0; i < kPiece; ++i) {
    p[i] = normal(random);
    m[i] = normal(random) * 1e-3f;
    v[i] = 1e-6f * (0.5f + std::abs(normal(random)));
    g[i] = case_.idle ? 0 : normal(random) * 1e-3f;
  }
  const bool half = has_half_master(case_.format);
  for (uint64_t at = 0; at < elements_; at += kPiece) {
    encode_state(layout_, at, kPiece, p.data(), m.data(), v.data(), chunk_,
                 half ? reinterpret_cast<uint16_t*>(copy_) + at : nullptr);
    for (uint64_t i = 0; i < kPiece; ++i) {
      if (case_.gradient_type == DataType::kFloat32) {
        std::memcpy(gradient_ + (at + i) * 4, &g[i], 4);
      } else {
        uint32_t bits;
        std::memcpy(&bits, &g[i], 4);
        const auto upper = static_cast<uint16_t>(bits >> 16);
        std::memcpy(gradient_ + (at + i) * 2, &upper, 2);
      }
    }
  }
  std::memset(parameter_, 0, elements_ * 2);
}

// Before every step: flushing makes them zero for good.
void Contest::make_idle() {
  const float tiny = 1e-40f;
  for (const Plane plane : {Plane::kFirstMoment, Plane::kSecondMoment}) {
    const offload::PlaneExtent& extent = layout_.plane(plane);
    for (uint64_t at = 0; at < extent.bytes; at += 4) {
      std::memcpy(chunk_ + extent.offset_bytes + at, &tiny, 4);
    }
  }
}

double Contest::time_step(offload::WorkerPool& pool) {
  offload::StepRange range;
  range.layout = &layout_;
  range.source = range.destination = chunk_;
  range.count = elements_;
  range.gradient = gradient_;
  range.gradient_type = case_.gradient_type;
  range.gradient_factor = case_.unscales ? 0.37f / 1024 : 1.0f;
  if (has_half_master(case_.format)) {
    range.copy_in = range.copy_out = reinterpret_cast<uint16_t*>(copy_);
  }
  if (case_.writes_copy) range.parameter_out = parameter_;
  range.stochastic_rounding = case_.stochastic;
  offload::Hyper hyper;
  hyper.learning_rate = 1e-4;
  hyper.weight_decay = 0.01;
  const offload::StepFactors factors = step_factors(case_.method, hyper, ++step_);
  const uint64_t start_ns = now_ns();
  parallel_step(pool, factors, range);
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

double Contest::time_loop(offload::WorkerPool& pool, bool prefetch) {
  Stream s;
  const auto add = [&](unsigned char* data, size_t bytes) {
    s.in_place[s.in_place_count++] = {data, bytes};
  };
  const bool half = has_half_master(case_.format);
  if (half) add(copy_, 2);
  for (const Plane plane : {Plane::kMaster, Plane::kFirstMoment, Plane::kSecondMoment}) {
    const offload::PlaneExtent& extent = layout_.plane(plane);
    if (extent.bytes != 0) add(chunk_ + extent.offset_bytes, extent.bytes / elements_);
  }
  s.read = {gradient_, element_bytes(case_.gradient_type)};
  if (case_.writes_copy) s.written = {parameter_, 2};
  s.prefetch = prefetch;
  s.mask = zero_mask;
  const uint64_t start_ns = now_ns();
  pool.parallel_for(elements_, offload::kStepBlock,
                    [&](uint64_t begin, uint64_t end) { stream(s, begin, end); });
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
    bytes += 2 * static_cast<double>(layout_.plane(plane).bytes / elements_);
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
