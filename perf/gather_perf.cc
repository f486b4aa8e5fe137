// SPDX-License-Identifier: Apache-2.0
// Gather: the root receives everybody's input, by rank.
#include "perf/harness/operation.h"

namespace weir::perf {
namespace {

class Gather final : public Operation {
 public:
  const char* program() const override { return "gather_perf"; }
  const char* c_name() const override { return "weir_gather"; }
  bool has_root() const override { return true; }

  Geometry geometry(size_t count_total, size_t element_bytes, const Where& where) const override {
    const auto n = static_cast<size_t>(where.rank_count);
    const size_t count = count_total / n;
    const bool is_root = where.rank == where.root;
    Geometry g;
    g.send_count = count;
    g.recv_count = is_root ? count * n : 0;
    g.in_place_count = is_root ? count * n : count;
    g.in_place_send_offset = is_root ? count * static_cast<size_t>(where.root) : 0;
    g.table_count = count;
    g.table_bytes = count * n * element_bytes;
    return g;
  }

  std::vector<ExpectedBlock> expected(const Geometry& g, const Where& where) const override {
    std::vector<ExpectedBlock> blocks;
    for (int source = 0; source < where.rank_count; ++source) {
      const size_t first = g.table_count * static_cast<size_t>(source);
      blocks.push_back({first, g.table_count, source, 0});
    }
    return blocks;
  }

  double bus_factor(int rank_count) const override {
    return static_cast<double>(rank_count - 1) / rank_count;
  }

  weir_result_t start(const Call& c) const override {
    return weir_gather(c.comm, c.send, c.recv, c.count, c.type, c.where.root, c.request);
  }
};

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) {
  return weir::perf::run_program(argc, argv, weir::perf::Gather());
}
