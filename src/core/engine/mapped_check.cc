// SPDX-License-Identifier: Apache-2.0
#include "core/engine/mapped_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/engine/mapped_plan.h"

namespace weir::engine {

Status check_mapped(const algo::Imported& imported) {
  if (algo::uses_messages(imported.algorithm())) return {};
  for (const sched::Program& program : imported.programs()) {
    Call call;
    call.collective = program.collective;
    call.root = program.root;
    call.count = program.shape.chunk_count;
    Slicing slicing;
    slicing.slice_bytes = 64;
    slicing.entry_bytes = slicing.slice_bytes * std::max(1u, program.shape.staging_slots);
    slicing.ring_bytes = slicing.entry_bytes;
    const auto bound = MappedPlan::bind(program, call, slicing, Arithmetic::kIeee);
    if (!bound.ok()) {
      return bound.status().with_context(
          fmt::format("rank {}: the programs are right, but cannot run", program.rank));
    }
  }
  return {};
}

}  // namespace weir::engine
