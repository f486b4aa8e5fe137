// SPDX-License-Identifier: Apache-2.0
// Reduce-scatter: rank r receives the reduction of everybody's block r.
#include "perf/harness/operation.h"

namespace weir::perf {
namespace {

class ReduceScatter final : public Operation {
 public:
  const char* program() const override { return "reduce_scatter_perf"; }
  const char* c_name() const override { return "weir_reduce_scatter"; }
  bool reduces() const override { return true; }

  Geometry geometry(size_t count_total, size_t element_bytes, const Where& where) const override {
    const auto n = static_cast<size_t>(where.rank_count);
    const size_t count = count_total / n;
    Geometry g;
    g.send_count = count * n;
    g.recv_count = count;
    g.in_place_count = count * n;
    g.in_place_recv_offset = count * static_cast<size_t>(where.rank);
    g.table_count = count;
    g.table_bytes = count * n * element_bytes;
    return g;
  }

  std::vector<ExpectedBlock> expected(const Geometry& g, const Where& where) const override {
    return {{0, g.recv_count, Pattern::kReduced, g.recv_count * static_cast<size_t>(where.rank)}};
  }

  double bus_factor(int rank_count) const override {
    return static_cast<double>(rank_count - 1) / rank_count;
  }

  weir_result_t start(const Call& c) const override {
    return weir_reduce_scatter(c.comm, c.send, c.recv, c.count, c.type, c.op, c.request);
  }
};

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) {
  return weir::perf::run_program(argc, argv, weir::perf::ReduceScatter());
}
