// SPDX-License-Identifier: Apache-2.0
// The loop of every step kernel: groups of elements, each of its planes read once and written once;
// ragged ends go through a padded group. Included once per instruction set (foreach_target).

#if defined(WEIR_OFFLOAD_STEP_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEIR_OFFLOAD_STEP_LOOP_INL_H_
#undef WEIR_OFFLOAD_STEP_LOOP_INL_H_
#else
#define WEIR_OFFLOAD_STEP_LOOP_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "offload/kernels/elements-inl.h"
#include "offload/kernels/float_environment.h"
#include "offload/kernels/moments-inl.h"
#include "offload/kernels/step_functions.h"
#include "offload/kernels/step_rules-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weir::offload {
namespace HWY_NAMESPACE {
namespace {

inline constexpr size_t kLineBytes = 64;

template <size_t kAheadBytes, bool kWritten>
HWY_INLINE void prefetch_lines(const unsigned char* at, size_t bytes) {
  for (size_t line = 0; line < bytes; line += kLineBytes) {
    __builtin_prefetch(at + kAheadBytes + line, kWritten, 3);
  }
}

// Addresses of one element in every array; nullptr where there is none.
struct Arrays {
  const unsigned char* master_in = nullptr;
  const unsigned char* first_in = nullptr;
  const unsigned char* second_in = nullptr;
  const unsigned char* first_scale_in = nullptr;
  const unsigned char* second_scale_in = nullptr;
  const unsigned char* copy_in = nullptr;
  const unsigned char* gradient = nullptr;
  unsigned char* master_out = nullptr;
  unsigned char* first_out = nullptr;
  unsigned char* second_out = nullptr;
  unsigned char* first_scale_out = nullptr;
  unsigned char* second_scale_out = nullptr;
  unsigned char* copy_out = nullptr;
  unsigned char* copy_plane = nullptr;
  unsigned char* parameter = nullptr;
};

template <class Rule, StateFormat kFormat>
class Stepper {
  static constexpr bool kFirst = has_first_moment(Rule::kMethod);
  static constexpr bool kSecond = has_second_moment(Rule::kMethod);
  static constexpr bool kHalf = has_half_master(kFormat);
  static constexpr bool kBytes = kFormat == StateFormat::kHalfMaster8;
  static constexpr size_t kMasterBytes = kHalf ? 2 : 4;
  static constexpr size_t kMomentBytes = kBytes ? 1 : kHalf ? 2 : 4;
  // Whole cache lines of a 16-bit type, in which the copy is written; or the elements that share a
  // scale.
  static constexpr size_t kGroup = kBytes ? kMomentBlock : 64;
  // Vectors that go through each phase of the update together: as many as fit the registers.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
  static constexpr size_t kTogether = 4;
#else
  static constexpr size_t kTogether = 2;
#endif
  // Prefetch distance in every plane, as measured: a group of f32 state has so many lines that the
  // next group is enough, and further ahead costs up to 7 %.
  static constexpr size_t kPrefetchBytes = kHalf ? 1024 : 256;
  static constexpr size_t kStride = kTogether * kLanes;

 public:
  HWY_INLINE Stepper(const StepFactors& factors, const StepRange& range)
      : range_(range),
        factors_(factors),
        gradient_factor_(hn::Set(DFloat(), range.gradient_factor)),
        gradient_type_(range.gradient_type),
        parameter_type_(range.parameter_type),
        gradient_bytes_(element_bytes(range.gradient_type)),
        parameter_bytes_(element_bytes(range.parameter_type)),
        stochastic_(range.stochastic_rounding),
        moment_key_(random_key(range.seed, factors.step, RandomStream::kMoments)),
        parameter_key_(random_key(range.seed, factors.step, RandomStream::kParameter)) {}

  bool run() {
    const Arrays all = arrays();
    bool finite = true;
    const size_t end = range_.count;
    const size_t past_group = range_.first % kGroup;
    size_t at = std::min(end, past_group == 0 ? 0 : kGroup - past_group);
    if (at != 0) finite = run_ragged(all, 0, at);
    const size_t body = (end - at) / kGroup * kGroup;
    if (body != 0) {
      const Arrays from = advanced(all, at);
      streaming_ = range_.streaming && from.parameter != nullptr &&
                   reinterpret_cast<uintptr_t>(from.parameter) % kLineBytes == 0;
      finite = run_groups(from, body, range_.first_index + at) && finite;
      if (streaming_) hwy::FlushStream();
      streaming_ = false;
    }
    at += body;
    if (at != end) finite = run_ragged(all, at, end - at) && finite;
    return finite;
  }

 private:
  Arrays arrays() const {
    const ChunkLayout& layout = *range_.layout;
    const size_t first = range_.first;
    const auto in = [&](Plane plane, size_t offset) -> const unsigned char* {
      if (layout.plane(plane).bytes == 0) return nullptr;
      return range_.source + layout.plane(plane).offset_bytes + offset;
    };
    const auto out = [&](Plane plane, size_t offset) -> unsigned char* {
      if (layout.plane(plane).bytes == 0) return nullptr;
      return range_.destination + layout.plane(plane).offset_bytes + offset;
    };
    const size_t scale = first / kMomentBlock * sizeof(float);
    Arrays a;
    a.master_in = in(Plane::kMaster, first * kMasterBytes);
    a.first_in = in(Plane::kFirstMoment, first * kMomentBytes);
    a.second_in = in(Plane::kSecondMoment, first * kMomentBytes);
    a.first_scale_in = in(Plane::kFirstScale, scale);
    a.second_scale_in = in(Plane::kSecondScale, scale);
    a.copy_in = reinterpret_cast<const unsigned char*>(range_.copy_in);
    a.gradient = static_cast<const unsigned char*>(range_.gradient);
    a.master_out = out(Plane::kMaster, first * kMasterBytes);
    a.first_out = out(Plane::kFirstMoment, first * kMomentBytes);
    a.second_out = out(Plane::kSecondMoment, first * kMomentBytes);
    a.first_scale_out = out(Plane::kFirstScale, scale);
    a.second_scale_out = out(Plane::kSecondScale, scale);
    a.copy_out = reinterpret_cast<unsigned char*>(range_.copy_out);
    if (range_.write_copy_plane) a.copy_plane = out(Plane::kParameterCopy, first * 2);
    a.parameter = static_cast<unsigned char*>(range_.parameter_out);
    return a;
  }

  // Calls visit(member, element bytes) for every array of this kernel except the scales.
  template <class A, class Visit>
  HWY_INLINE void visit_inputs(A& a, Visit visit) const {
    visit(&A::master_in, kMasterBytes);
    if constexpr (kFirst) visit(&A::first_in, kMomentBytes);
    if constexpr (kSecond) visit(&A::second_in, kMomentBytes);
    if constexpr (kHalf) visit(&A::copy_in, size_t{2});
    visit(&A::gradient, gradient_bytes_);
    (void)a;
  }
  template <class A, class Visit>
  HWY_INLINE void visit_outputs(A& a, Visit visit) const {
    visit(&A::master_out, kMasterBytes);
    if constexpr (kFirst) visit(&A::first_out, kMomentBytes);
    if constexpr (kSecond) visit(&A::second_out, kMomentBytes);
    if constexpr (kHalf) visit(&A::copy_out, size_t{2});
    if (a.copy_plane != nullptr) visit(&A::copy_plane, size_t{2});
    if (a.parameter != nullptr) visit(&A::parameter, parameter_bytes_);
  }

  Arrays advanced(const Arrays& from, size_t elements) const {
    Arrays a = from;
    const auto move = [&](auto member, size_t bytes) { a.*member += elements * bytes; };
    visit_inputs(a, move);
    visit_outputs(a, move);
    if constexpr (kBytes) {
      const size_t scale = elements / kMomentBlock * sizeof(float);
      if constexpr (kFirst) a.first_scale_in += scale, a.first_scale_out += scale;
      if constexpr (kSecond) a.second_scale_in += scale, a.second_scale_out += scale;
    }
    return a;
  }

  // Steps `count` < kGroup elements through a copy padded with zeros to a whole group.
  HWY_NOINLINE bool run_ragged(const Arrays& all, size_t begin, size_t count) {
    constexpr size_t kSlotBytes = kGroup * 4;
    HWY_ALIGN unsigned char in[5][kSlotBytes] = {};
    HWY_ALIGN unsigned char out[6][kSlotBytes];
    const Arrays real = advanced(all, begin);
    Arrays padded = real;
    size_t slot = 0;
    visit_inputs(real, [&](auto member, size_t bytes) {
      std::memcpy(in[slot], real.*member, count * bytes);
      padded.*member = in[slot++];
    });
    slot = 0;
    visit_outputs(real, [&](auto member, size_t) { padded.*member = out[slot++]; });
    const bool finite = run_groups(padded, kGroup, range_.first_index + begin);
    visit_outputs(real, [&](auto member, size_t bytes) {
      std::memcpy(real.*member, padded.*member, count * bytes);
    });
    return finite;
  }

  HWY_NOINLINE bool run_groups(const Arrays& arrays, size_t count, uint64_t index) const {
    // Copies, because a store through a byte pointer may alias any object whose address is known.
    const Stepper self(*this);
    const Arrays a = arrays;
    const Factors factors(factors_);
    bool finite = true;
    for (size_t at = 0; at < count; at += kGroup) {
      self.prefetch_group(a, at);
      if constexpr (kBytes) {
        self.step_block(factors, a, at, index + at, finite);
      } else {
        for (size_t i = 0; i < kGroup; i += kStride) {
          self.step_vectors(factors, a, at + i, index + at + i, finite);
        }
      }
    }
    return finite;
  }

  // Takes values, not references: an object whose address is known is read again after each store.
  static HWY_NOINLINE bool all_finite(const unsigned char* gradient, DataType type, float factor,
                                      size_t count) {
    auto sum = hn::Zero(DFloat());
    for (size_t at = 0; at < count; at += kLanes) {
      const auto g = hn::Mul(load_as_float(type, gradient, at), hn::Set(DFloat(), factor));
      sum = plus_nothing(sum, g);
    }
    return hn::AllFalse(DFloat(), hn::IsNaN(sum));
  }

  // State is nearly always stepped in place.
  HWY_INLINE void prefetch_group(const Arrays& a, size_t at) const {
    const auto state = [&](const unsigned char* plane, size_t element_bytes) HWY_ATTR {
      prefetch_lines<kPrefetchBytes, true>(plane + at * element_bytes, kGroup * element_bytes);
    };
    state(a.master_in, kMasterBytes);
    if constexpr (kFirst) state(a.first_in, kMomentBytes);
    if constexpr (kSecond) state(a.second_in, kMomentBytes);
    if constexpr (kHalf) state(a.copy_in, 2);
    if (gradient_bytes_ == 2) {
      prefetch_lines<kPrefetchBytes, false>(a.gradient + at * 2, kGroup * 2);
    } else {
      prefetch_lines<kPrefetchBytes, false>(a.gradient + at * 4, kGroup * 4);
    }
  }

  HWY_INLINE void load_gradients(const Arrays& a, size_t at, VFloat* g) const {
    switch (gradient_type_) {
      case DataType::kBfloat16:
        return unrolled<kTogether>([&](auto i) HWY_ATTR {
          g[i] = from_bf16(load(DHalf(), a.gradient + (at + i * kLanes) * 2));
        });
      case DataType::kFloat16:
        return unrolled<kTogether>([&](auto i) HWY_ATTR {
          g[i] = from_f16(load(DHalf(), a.gradient + (at + i * kLanes) * 2));
        });
      default:
        return unrolled<kTogether>(
            [&](auto i) HWY_ATTR { g[i] = load(DFloat(), a.gradient + (at + i * kLanes) * 4); });
    }
  }

  HWY_INLINE VFloat load_master(const Arrays& a, size_t at) const {
    if constexpr (!kHalf) {
      return load(DFloat(), a.master_in + at * 4);
    } else {
      // The low half is signed: adding it undoes the rounding of the copy.
      const hn::RebindToSigned<DHalf> signed_half;
      const auto low = hn::PromoteTo(DInt(), load(signed_half, a.master_in + at * 2));
      const auto copy = hn::PromoteTo(DUint(), load(DHalf(), a.copy_in + at * 2));
      const auto bits = hn::Add(hn::ShiftLeft<16>(copy), hn::BitCast(DUint(), low));
      return hn::BitCast(DFloat(), bits);
    }
  }

  HWY_INLINE void store_masters(const Arrays& a, size_t at, const Element* e) const {
    const DUint du;
    unrolled<kTogether / 2>([&](auto pair) HWY_ATTR {
      const size_t i = 2 * pair, here = at + i * kLanes;
      if constexpr (!kHalf) {
        store(DFloat(), e[i].p, a.master_out + here * 4);
        store(DFloat(), e[i + 1].p, a.master_out + (here + kLanes) * 4);
      } else {
        const auto ties_away = hn::Set(du, uint32_t{0x8000});
        const auto b0 = hn::BitCast(du, e[i].p), b1 = hn::BitCast(du, e[i + 1].p);
        const auto c0 = hn::Add(b0, ties_away), c1 = hn::Add(b1, ties_away);
        store_halves<false>(b0, b1, a.master_out + here * 2);
        store_halves<true>(c0, c1, a.copy_out + here * 2);
        if (a.copy_plane != nullptr) store_halves<true>(c0, c1, a.copy_plane + here * 2);
      }
    });
  }

  HWY_INLINE void store_parameters(const Arrays& a, size_t at, uint64_t index,
                                   const Element* e) const {
    if (parameter_type_ == DataType::kFloat32) {
      unrolled<kTogether>([&](auto i) HWY_ATTR {
        unsigned char* const to = a.parameter + (at + i * kLanes) * 4;
        streaming_ ? store_streaming(DFloat(), e[i].p, to) : store(DFloat(), e[i].p, to);
      });
    } else if (parameter_type_ == DataType::kBfloat16) {
      unrolled<kTogether / 2>([&](auto pair) HWY_ATTR {
        const size_t i = 2 * pair, here = at + i * kLanes;
        VUint b0, b1;
        if (stochastic_) {
          b0 = bf16_above_random(e[i].p, parameter_random(index + i * kLanes));
          b1 = bf16_above_random(e[i + 1].p, parameter_random(index + (i + 1) * kLanes));
        } else {
          b0 = bf16_above(e[i].p);
          b1 = bf16_above(e[i + 1].p);
        }
        store_halves<true>(b0, b1, a.parameter + here * 2, streaming_);
      });
    } else {
      unrolled<kTogether>([&](auto i) HWY_ATTR {
        unsigned char* const to = a.parameter + (at + i * kLanes) * 2;
        VecOf<DHalf> rounded;
        if (stochastic_) {
          const auto random = parameter_random(index + i * kLanes);
          rounded = to_f16_random(e[i].p, hn::ShiftRight<3>(random));
        } else {
          rounded = to_f16(e[i].p);
        }
        streaming_ ? store_streaming(DHalf(), rounded, to) : store(DHalf(), rounded, to);
      });
    }
  }

  HWY_INLINE VUint parameter_random(uint64_t index) const {
    return hn::ShiftRight<16>(random_lanes(parameter_key_, index));
  }

  // The step of kTogether vectors whose moments have been read. `finite` becomes false where a
  // gradient is not; gradients are looked at only where the results leave a doubt.
  HWY_INLINE void apply(const Factors& factors, const Arrays& a, size_t at, Element* e,
                        bool& finite) const {
    VFloat g[kTogether];
    load_gradients(a, at, g);
    unrolled<kTogether>([&](auto i) HWY_ATTR {
      e[i].p = load_master(a, at + i * kLanes);
      Rule::begin(factors, hn::Mul(g[i], gradient_factor_), e[i]);
    });
    unrolled<kTogether>([&](auto i) HWY_ATTR { Rule::divide(factors, e[i]); });
    unrolled<kTogether>([&](auto i) HWY_ATTR { Rule::finish(factors, e[i]); });
    if (HWY_UNLIKELY(!hn::AllFalse(DFloat(), Rule::template doubtful<kTogether>(e)))) {
      finite = all_finite(a.gradient + at * gradient_bytes_, gradient_type_, range_.gradient_factor,
                          kStride) &&
               finite;
      unrolled<kTogether>([&](auto i) HWY_ATTR {
        e[i].p = canonical(e[i].p);
        if constexpr (kFirst) e[i].m = canonical(e[i].m);
        if constexpr (kSecond) e[i].v = canonical(e[i].v);
      });
    }
  }

  HWY_INLINE void step_vectors(const Factors& factors, const Arrays& a, size_t at, uint64_t index,
                               bool& finite) const {
    const DFloat df;
    Element e[kTogether];
    unrolled<kTogether>([&](auto i) HWY_ATTR {
      const size_t here = at + i * kLanes;
      if constexpr (kFirst) e[i].m = load_moment_float(kFormat, a.first_in, here);
      if constexpr (kSecond) e[i].v = load_moment_float(kFormat, a.second_in, here);
    });
    apply(factors, a, at, e, finite);
    store_masters(a, at, e);
    if constexpr (kHalf) {
      unrolled<kTogether / 2>([&](auto pair) HWY_ATTR {
        const size_t i = 2 * pair, here = at + i * kLanes;
        const auto r0 = random_lanes(moment_key_, index + i * kLanes);
        const auto r1 = random_lanes(moment_key_, index + (i + 1) * kLanes);
        if constexpr (kFirst) {
          store_halves<true>(bf16_above_random(e[i].m, FirstMoment::random(r0)),
                             bf16_above_random(e[i + 1].m, FirstMoment::random(r1)),
                             a.first_out + here * 2);
        }
        if constexpr (kSecond) {
          store_halves<true>(bf16_above_random(e[i].v, SecondMoment::random(r0)),
                             bf16_above_random(e[i + 1].v, SecondMoment::random(r1)),
                             a.second_out + here * 2);
        }
      });
    } else {
      unrolled<kTogether>([&](auto i) HWY_ATTR {
        const size_t here = at + i * kLanes;
        if constexpr (kFirst) store(df, e[i].m, a.first_out + here * 4);
        if constexpr (kSecond) store(df, e[i].v, a.second_out + here * 4);
      });
    }
    if (a.parameter != nullptr) store_parameters(a, at, index, e);
  }

  // 8-bit moments: the scale is known only when the whole block has been stepped.
  HWY_INLINE void step_block(const Factors& factors, const Arrays& a, size_t at, uint64_t index,
                             bool& finite) const {
    const DFloat df;
    const DInt di;
    HWY_ALIGN float first[kMomentBlock];
    HWY_ALIGN float second[kMomentBlock];
    const size_t scale_at = at / kMomentBlock * sizeof(float);
    const float first_scale = kFirst ? load_scale(a.first_scale_in, scale_at) : 0;
    const float second_scale = kSecond ? load_scale(a.second_scale_in, scale_at) : 0;
    const auto magnitude = hn::Set(di, 0x7fffffff);
    auto first_largest = hn::Zero(di);
    auto second_largest = hn::Zero(di);
    for (size_t i = 0; i < kMomentBlock; i += kStride) {
      Element e[kTogether];
      unrolled<kTogether>([&](auto j) HWY_ATTR {
        const size_t here = at + i + j * kLanes;
        if constexpr (kFirst) {
          e[j].m = decode_moments<FirstMoment>(load(DByte(), a.first_in + here), first_scale);
        }
        if constexpr (kSecond) {
          e[j].v = decode_moments<SecondMoment>(load(DByte(), a.second_in + here), second_scale);
        }
      });
      apply(factors, a, at + i, e, finite);
      store_masters(a, at + i, e);
      unrolled<kTogether>([&](auto j) HWY_ATTR {
        const size_t here = i + j * kLanes;
        if constexpr (kFirst) {
          first_largest = hn::Max(first_largest, hn::And(hn::BitCast(di, e[j].m), magnitude));
          hn::Store(e[j].m, df, first + here);
        }
        if constexpr (kSecond) {
          second_largest = hn::Max(second_largest, hn::And(hn::BitCast(di, e[j].v), magnitude));
          hn::Store(e[j].v, df, second + here);
        }
      });
      if (a.parameter != nullptr) store_parameters(a, at + i, index + i, e);
    }
    MomentScale first_new{}, second_new{};
    if constexpr (kFirst) first_new = new_scale(first_largest, a.first_scale_out, scale_at);
    if constexpr (kSecond) second_new = new_scale(second_largest, a.second_scale_out, scale_at);
    for (size_t i = 0; i < kMomentBlock; i += kLanes) {
      const auto random = random_lanes(moment_key_, index + i);
      if constexpr (kFirst) {
        store(DByte(),
              encode_moments<FirstMoment>(hn::Load(df, first + i), first_new.inverse,
                                          FirstMoment::random(random)),
              a.first_out + at + i);
      }
      if constexpr (kSecond) {
        store(DByte(),
              encode_moments<SecondMoment>(hn::Load(df, second + i), second_new.inverse,
                                           SecondMoment::random(random)),
              a.second_out + at + i);
      }
    }
  }

  static HWY_INLINE float load_scale(const unsigned char* scales, size_t at) {
    float scale;
    std::memcpy(&scale, scales + at, sizeof(scale));
    return scale;
  }

  static HWY_INLINE MomentScale new_scale(VecOf<DInt> largest, unsigned char* scales, size_t at) {
    const int32_t bits = hn::GetLane(hn::MaxOfLanes(DInt(), largest));
    const MomentScale scale = moment_scale(static_cast<uint32_t>(bits));
    std::memcpy(scales + at, &scale.scale, sizeof(float));
    return scale;
  }

  const StepRange& range_;
  const StepFactors& factors_;
  const VFloat gradient_factor_;
  const DataType gradient_type_;
  const DataType parameter_type_;
  const size_t gradient_bytes_;
  const size_t parameter_bytes_;
  const bool stochastic_;
  bool streaming_ = false;
  const RandomKey moment_key_;
  const RandomKey parameter_key_;
};

template <class Rule, StateFormat kFormat>
bool step(const StepFactors& factors, const StepRange& range) {
  const FloatEnvironment environment;
  return Stepper<Rule, kFormat>(factors, range).run();
}

template <class Rule>
StepFunction step_of(StateFormat format) {
  switch (format) {
    case StateFormat::kFloat32:
      return &step<Rule, StateFormat::kFloat32>;
    case StateFormat::kHalfMaster:
      return &step<Rule, StateFormat::kHalfMaster>;
    case StateFormat::kHalfMaster8:
      return &step<Rule, StateFormat::kHalfMaster8>;
  }
  return nullptr;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace weir::offload
HWY_AFTER_NAMESPACE();

#endif  // WEIR_OFFLOAD_STEP_LOOP_INL_H_
