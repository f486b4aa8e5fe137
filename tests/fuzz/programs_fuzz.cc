// SPDX-License-Identifier: Apache-2.0
// Programs from elsewhere (JSON, and MSCCL's XML) are refused with a reason, or read as they are
// written: what was read is written and read again to the byte, every program prints, the verifier
// has a verdict on all of them, and what becomes an algorithm is right in place and apart, and its
// time can be predicted.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/algo/imported.h"
#include "core/algo/program_text.h"
#include "core/cost/predict.h"
#include "core/sched/json.h"
#include "core/sched/print.h"
#include "core/sched/validate.h"
#include "core/sched/verify.h"

using namespace weir;
using namespace weir::sched;

namespace {

// What the verifier is asked about here; it takes time and memory as the programs need them.
constexpr Rank kRanksMax = 16;
constexpr uint32_t kChunksMax = 512;
constexpr size_t kOpsMax = 1000;

void require(bool condition) {
  if (!condition) std::abort();
}

bool small(const ProgramSet& set) {
  size_t ops = 0;
  uint64_t chunks = 0;
  for (const Program& program : set.programs) {
    for (const Op& op : program.ops) ops += 1 + op.count;
    chunks += uint64_t{program.shape.chunk_count} + program.shape.scratch_slots +
              program.shape.staging_slots;
  }
  return set.programs.size() <= kRanksMax && ops <= kOpsMax && chunks <= kChunksMax;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), bytes);
  const Result<algo::ProgramText> read = algo::read_programs(text, "input");
  if (!read.ok()) {
    require(!read.status().text().empty());
    return 0;
  }
  const ProgramSet& set = read.value().set;
  const Flaw heads = validate_heads(set.programs);
  if (heads.found()) {
    require(!heads.text.empty());
    return 0;
  }
  if (!small(set)) return 0;
  const std::string written = to_json(set);
  const Result<ProgramSet> again = from_json(written);
  require(again.ok() && to_json(again.value()) == written);
  for (const Program& program : set.programs) require(!print(program).empty());
  for (const uint32_t credit : {1u, 8u}) {
    const Verdict verdict = verify(set.programs, {.access = set.access, .credit = credit});
    require(verdict.ok() || !verdict.flaw.text.empty());
    require(verdict.ok() || !algo::with_origins(verdict.flaw.text, read.value()).empty());
  }
  const auto imported = algo::Imported::make(set, "input");
  if (!imported.ok()) {
    require(!imported.status().text().empty());
    return 0;
  }
  for (const bool in_place : {false, true}) {
    if (in_place && set.programs[0].collective == Collective::kBarrier) continue;
    Access access = set.access;
    access.in_place = in_place;
    require(verify(imported.value()->programs(), {.access = access}).ok());
  }
  cost::Workload work;
  work.problem.collective = set.programs[0].collective;
  work.problem.rank_count = set.programs[0].rank_count;
  work.problem.root = set.programs[0].root;
  work.problem.mapped = set.access.mapped;
  work.problem.inputs_mapped = work.problem.outputs_mapped =
      set.access.inputs_mapped && set.access.outputs_mapped;
  work.slicing = {.slice_bytes = 1024, .in_flight = 4};
  if (!imported.value()->algorithm().supports(work.problem)) return 0;
  for (const uint64_t kilobytes : {0, 1, 100}) {
    work.bytes = kilobytes * 1000;
    require(cost::predict(imported.value()->algorithm(), work, cost::built_in_table()) >= 0);
  }
  return 0;
}
