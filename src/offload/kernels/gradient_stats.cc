// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/gradient_stats.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/kernels/gradient_stats.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
#include "offload/kernels/elements-inl.h"
// clang-format on

#include <algorithm>
#include <mutex>

#include "offload/kernels/float_environment.h"
#include "offload/kernels/worker_pool.h"

HWY_BEFORE_NAMESPACE();
namespace weir::offload {
namespace HWY_NAMESPACE {
namespace {

constexpr size_t kSums = 32;  // element i belongs to sum i % kSums
constexpr size_t kWideLanes = hn::MaxLanes(DWide());
constexpr size_t kVectors = kSums / kWideLanes;

HWY_INLINE VecOf<DWide> add_square(VecOf<DWide> sum, VecOf<DWide> value) {
  return hn::Add(sum, hn::Mul(value, value));
}

template <size_t kVector = 0>
HWY_INLINE void add_row(VecOf<DWide> (&sums)[kVectors], DataType type, const unsigned char* from,
                        size_t at) {
  const DWide dd;
#if HWY_TARGET == HWY_SCALAR
  sums[kVector] = add_square(sums[kVector], hn::PromoteTo(dd, load_as_float(type, from, at)));
  if constexpr (kVector + 1 < kVectors) add_row<kVector + 1>(sums, type, from, at + 1);
#else
  const hn::Half<DFloat> dh;
  const auto v = load_as_float(type, from, at);
  sums[kVector] = add_square(sums[kVector], hn::PromoteTo(dd, hn::LowerHalf(dh, v)));
  sums[kVector + 1] = add_square(sums[kVector + 1], hn::PromoteTo(dd, hn::UpperHalf(dh, v)));
  if constexpr (kVector + 2 < kVectors) add_row<kVector + 2>(sums, type, from, at + kLanes);
#endif
}

}  // namespace

double sum_block(const unsigned char* from, DataType type, size_t count) {
  const DWide dd;
  VecOf<DWide> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(dd);
  const size_t whole = count / kSums * kSums;
  const size_t bytes = element_bytes(type);
  for (size_t at = 0; at < whole; at += kSums) {
    __builtin_prefetch(from + at * bytes + 2048, 0, 3);
    __builtin_prefetch(from + at * bytes + 2048 + 64, 0, 3);
    add_row(sums, type, from, at);
  }
  if (whole != count) {
    HWY_ALIGN unsigned char rest[kSums * 4] = {};
    std::memcpy(rest, from + whole * bytes, (count - whole) * bytes);
    add_row(sums, type, rest, 0);
  }
  HWY_ALIGN double lanes[kSums];
  for (size_t i = 0; i < kVectors; ++i) hn::Store(sums[i], dd, lanes + i * kWideLanes);
  for (size_t half = kSums / 2; half != 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

}  // namespace HWY_NAMESPACE
}  // namespace weir::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::offload {

HWY_EXPORT(sum_block);

double block_sum_of_squares(const void* gradient, DataType type, uint64_t count) {
  const FloatEnvironment environment;
  return HWY_DYNAMIC_DISPATCH(sum_block)(static_cast<const unsigned char*>(gradient), type, count);
}

void GradientStats::add(const void* gradient, DataType type, uint64_t count) {
  const FloatEnvironment environment;
  const auto sum_of = HWY_DYNAMIC_DISPATCH(sum_block);
  const auto* from = static_cast<const unsigned char*>(gradient);
  const size_t bytes = element_bytes(type);
  for (uint64_t at = 0; at < count; at += kStatsBlock) {
    sum_.add(sum_of(from + at * bytes, type, std::min(kStatsBlock, count - at)));
  }
}

void GradientStats::add(WorkerPool& pool, const void* gradient, DataType type, uint64_t count) {
  constexpr uint64_t kPiece = 16 * kStatsBlock;
  const auto* from = static_cast<const unsigned char*>(gradient);
  const size_t bytes = element_bytes(type);
  std::mutex mutex;
  pool.parallel_for(count, kPiece, [&](uint64_t begin, uint64_t end) {
    GradientStats part;
    part.add(from + begin * bytes, type, end - begin);
    const std::lock_guard lock(mutex);
    add(part);
  });
}

namespace {

// Not inlined, so that no operation moves out of the environment.
[[gnu::noinline]] float factor_of(double sum_of_squares, double loss_scale, double norm_max) {
  double factor = 1 / loss_scale;
  if (norm_max > 0) {
    const double norm = std::sqrt(sum_of_squares) / loss_scale;
    if (norm > norm_max && std::isfinite(norm)) factor *= norm_max / norm;
  }
  return static_cast<float>(factor);
}

}  // namespace

float gradient_factor(double sum_of_squares, double loss_scale, double norm_max) {
  const FloatEnvironment environment;
  return factor_of(sum_of_squares, loss_scale, norm_max);
}

}  // namespace weir::offload
#endif
