// SPDX-License-Identifier: Apache-2.0
#include "offload/optimizer/chunk_step.h"

#include <algorithm>

#include "core/base/check.h"
#include "offload/kernels/step_kernel.h"

namespace weir::offload {
namespace {

class Stepper {
 public:
  Stepper(const GroupStep& group, const StateChunk& chunk, const unsigned char* source,
          unsigned char* destination)
      : group_(group), chunk_(chunk) {
    range_.layout = chunk.layout;
    range_.source = source;
    range_.destination = destination;
    range_.gradient_factor = group.gradient_factor;
    range_.parameter_type = group.output.type;
    range_.stochastic_rounding = group.output.stochastic;
    range_.seed = group.seed;
  }

  bool run() {
    const std::vector<GradientSegment>& segments = *group_.gradient;
    const bool blocks = chunk_.layout->format == StateFormat::kHalfMaster8;
    for (uint64_t at = 0; at < chunk_.count;) {
      const GradientSegment& segment = segments[segment_from(segments, chunk_.first + at)];
      uint64_t end = std::min(chunk_.count, segment.end() - chunk_.first);
      if (blocks && end < chunk_.count) end = end / kMomentBlock * kMomentBlock;
      if (end > at) {
        step(at, end, segment.at(chunk_.first + at), segment.type);
        at = end;
        continue;
      }
      // Two segments can meet within a block of moments, which is stepped as a whole.
      float block[kMomentBlock];
      end = std::min(chunk_.count, at + kMomentBlock);
      gather(segments, chunk_.first + at, end - at, block);
      step(at, end, block, DataType::kFloat32);
      at = end;
    }
    return finite_;
  }

 private:
  void step(uint64_t begin, uint64_t end, const void* gradient, DataType type) {
    StepRange range = range_;
    const uint64_t element = chunk_.first + begin;
    range.first = begin;
    range.count = end - begin;
    range.gradient = gradient;
    range.gradient_type = type;
    if (group_.copy_in != nullptr) {
      range.copy_in = group_.copy_in + element;
      range.copy_out = group_.copy_out + element;
    }
    if (group_.output.data != nullptr)
      range.parameter_out = static_cast<unsigned char*>(group_.output.data) +
                            element * element_bytes(group_.output.type);
    range.first_index = group_.first_element + element;
    WEIR_CHECK(validate(range).ok(), "the ranges of a chunk are valid");
    finite_ = step_range(group_.factors, range) && finite_;
  }

  const GroupStep& group_;
  const StateChunk& chunk_;
  StepRange range_;
  bool finite_ = true;
};

}  // namespace

bool step_chunk(const GroupStep& group, const StateChunk& chunk, const unsigned char* source,
                unsigned char* destination) {
  return Stepper(group, chunk, source, destination).run();
}

}  // namespace weir::offload
