// SPDX-License-Identifier: Apache-2.0
// Send-receive: every rank sends to the next one and receives from the one before.
#include "perf/harness/operation.h"

namespace weir::perf {
namespace {

class SendRecv final : public Operation {
 public:
  const char* program() const override { return "sendrecv_perf"; }
  const char* c_name() const override { return "weir_send and weir_recv"; }
  bool has_in_place() const override { return false; }

  Geometry geometry(size_t count_total, size_t element_bytes,
                    const Where& /*where*/) const override {
    Geometry g;
    g.send_count = count_total;
    g.recv_count = count_total;
    g.table_count = count_total;
    g.table_bytes = count_total * element_bytes;
    return g;
  }

  std::vector<ExpectedBlock> expected(const Geometry& g, const Where& where) const override {
    return {{0, g.recv_count, (where.rank + where.rank_count - 1) % where.rank_count, 0}};
  }

  double bus_factor(int /*rank_count*/) const override { return 1; }

  weir_result_t start(const Call& c) const override {
    const int next = (c.where.rank + 1) % c.where.rank_count;
    const int previous = (c.where.rank + c.where.rank_count - 1) % c.where.rank_count;
    weir_result_t result = weir_group_start();
    if (result != WEIR_OK) return result;
    const weir_result_t sent = weir_send(c.comm, c.send, c.count, c.type, next, nullptr);
    const weir_result_t received = weir_recv(c.comm, c.recv, c.count, c.type, previous, nullptr);
    result = weir_group_end();
    if (sent != WEIR_OK) return sent;
    return received != WEIR_OK ? received : result;
  }
};

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) {
  return weir::perf::run_program(argc, argv, weir::perf::SendRecv());
}
