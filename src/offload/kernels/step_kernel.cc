// SPDX-License-Identifier: Apache-2.0
#include "offload/kernels/step_kernel.h"

#include <string>

#include "core/base/check.h"
#include "offload/kernels/step_functions.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "offload/kernels/step_kernel.cc"
#include "hwy/foreach_target.h"  // before the others, since it includes this file again
// clang-format off
#include "hwy/highway.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace weir::offload {
namespace HWY_NAMESPACE {

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace weir::offload
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weir::offload {
namespace {

bool is_float_type(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kBfloat16 || type == DataType::kFloat16;
}

Status bad(const std::string& text) { return invalid_argument("optimizer step: " + text); }

Status validate_blocks(const StepRange& range) {
  const uint64_t end = range.first + range.count;
  if (range.first % kMomentBlock == 0 &&
      (end % kMomentBlock == 0 || end == range.layout->element_count)) {
    return Status();
  }
  return bad("elements " + std::to_string(range.first) + " to " + std::to_string(end) +
             " of a chunk with 8-bit moments; both ends must be multiples of " +
             std::to_string(kMomentBlock) + " or the end of the chunk");
}

}  // namespace

HWY_EXPORT(target_name);

const char* step_kernel_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

int64_t step_kernel_targets() { return HWY_TARGETS & hwy::SupportedTargets(); }

Status validate(const StepRange& range) {
  if (range.layout == nullptr || range.source == nullptr || range.destination == nullptr) {
    return bad("layout, source and destination must be given");
  }
  const ChunkLayout& layout = *range.layout;
  if (range.first > layout.element_count || range.count > layout.element_count - range.first) {
    return bad(std::to_string(range.count) + " elements from " + std::to_string(range.first) +
               " on do not lie within a chunk of " + std::to_string(layout.element_count));
  }
  if (range.gradient == nullptr && range.count != 0) return bad("no gradient");
  if (!is_float_type(range.gradient_type)) {
    return bad(std::string("gradients of type ") + name_of(range.gradient_type) +
               "; allowed: float32, bfloat16, float16");
  }
  if (range.parameter_out != nullptr && !is_float_type(range.parameter_type)) {
    return bad(std::string("parameters of type ") + name_of(range.parameter_type) +
               "; allowed: float32, bfloat16, float16");
  }
  if (has_half_master(layout.format)) {
    if (range.copy_in == nullptr || range.copy_out == nullptr) {
      return bad(std::string("state format ") + name_of(layout.format) +
                 " needs the bf16 copy, in and out");
    }
  } else if (range.write_copy_plane) {
    return bad("state format float32 has no plane for the parameter copy");
  }
  if (layout.format == StateFormat::kHalfMaster8) return validate_blocks(range);
  return Status();
}

bool step_range(const StepFactors& factors, const StepRange& range) {
  if (range.count == 0) return true;
  WEIR_CHECK(factors.method == range.layout->method, "the factors are those of the method");
  const StateFormat format = range.layout->format;
  switch (factors.method) {
    case Method::kAdamW:
      return adamw_step(format)(factors, range);
    case Method::kAdam:
      return adam_step(format)(factors, range);
    case Method::kSgdMomentum:
      return sgd_momentum_step(format)(factors, range);
    case Method::kAdagrad:
      return adagrad_step(format)(factors, range);
    case Method::kLion:
      return lion_step(format)(factors, range);
  }
  return true;
}

}  // namespace weir::offload
#endif
