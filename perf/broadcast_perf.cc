// SPDX-License-Identifier: Apache-2.0
// Broadcast: every rank receives the root's input.
#include "perf/harness/operation.h"

namespace weir::perf {
namespace {

class Broadcast final : public Operation {
 public:
  const char* program() const override { return "broadcast_perf"; }
  const char* c_name() const override { return "weir_broadcast"; }
  bool has_root() const override { return true; }

  Geometry geometry(size_t count_total, size_t element_bytes, const Where& where) const override {
    Geometry g;
    g.send_count = where.rank == where.root ? count_total : 0;
    g.recv_count = count_total;
    g.in_place_count = count_total;
    g.table_count = count_total;
    g.table_bytes = count_total * element_bytes;
    return g;
  }

  std::vector<ExpectedBlock> expected(const Geometry& g, const Where& where) const override {
    return {{0, g.recv_count, where.root, 0}};
  }

  double bus_factor(int /*rank_count*/) const override { return 1; }

  weir_result_t start(const Call& c) const override {
    return weir_broadcast(c.comm, c.send, c.recv, c.count, c.type, c.where.root, c.request);
  }
};

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) {
  return weir::perf::run_program(argc, argv, weir::perf::Broadcast());
}
