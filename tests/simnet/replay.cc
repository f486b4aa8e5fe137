// SPDX-License-Identifier: Apache-2.0
// simnet_replay SEED [COUNT] [--quiet]: runs the jobs of these seeds. Of one, prints what it is,
// its trace and what went wrong; of several, those that went wrong.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simnet/job.h"

int main(int argument_count, char** arguments) {
  if (argument_count < 2) {
    std::fprintf(stderr, "usage: simnet_replay SEED [COUNT] [--quiet]\n");
    return 2;
  }
  using namespace weir::simnet;
  const uint64_t first = std::strtoull(arguments[1], nullptr, 10);
  const bool quiet = std::strcmp(arguments[argument_count - 1], "--quiet") == 0;
  const bool many = argument_count > 2 && arguments[2][0] != '-';
  const uint64_t count = many ? std::strtoull(arguments[2], nullptr, 10) : 1;
  uint64_t failures = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Plan plan = draw_plan(seed);
    if (!many) std::fputs(plan.describe().c_str(), stdout);
    const Verdict verdict = run_job(plan, !many && !quiet);
    if (!many) {
      std::fputs(verdict.trace.c_str(), stdout);
      fmt::print("{} messages, {} ns, trace {:016x}\n", verdict.message_count, verdict.virtual_ns,
                 verdict.trace_hash);
    }
    if (verdict.wrong.empty()) continue;
    ++failures;
    std::fputs(describe(plan, verdict).c_str(), stdout);
  }
  if (many) fmt::print("{} of {} seeds went wrong\n", failures, count);
  return failures == 0 ? 0 : 1;
}
