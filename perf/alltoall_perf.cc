// SPDX-License-Identifier: Apache-2.0
// All-to-all: block i of the result is block r of rank i's input.
#include "perf/harness/operation.h"

namespace weir::perf {
namespace {

class AllToAll final : public Operation {
 public:
  const char* program() const override { return "alltoall_perf"; }
  const char* c_name() const override { return "weir_all_to_all"; }

  Geometry geometry(size_t count_total, size_t element_bytes, const Where& where) const override {
    const auto n = static_cast<size_t>(where.rank_count);
    const size_t count = count_total / n;
    Geometry g;
    g.send_count = count * n;
    g.recv_count = count * n;
    g.in_place_count = count * n;
    g.table_count = count;
    g.table_bytes = count * n * element_bytes;
    return g;
  }

  std::vector<ExpectedBlock> expected(const Geometry& g, const Where& where) const override {
    std::vector<ExpectedBlock> blocks;
    for (int source = 0; source < where.rank_count; ++source) {
      const size_t first = g.table_count * static_cast<size_t>(source);
      blocks.push_back(
          {first, g.table_count, source, g.table_count * static_cast<size_t>(where.rank)});
    }
    return blocks;
  }

  double bus_factor(int rank_count) const override {
    return static_cast<double>(rank_count - 1) / rank_count;
  }

  weir_result_t start(const Call& c) const override {
    return weir_all_to_all(c.comm, c.send, c.recv, c.count, c.type, c.request);
  }
};

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) {
  return weir::perf::run_program(argc, argv, weir::perf::AllToAll());
}
