// SPDX-License-Identifier: Apache-2.0
// All-to-all with uneven counts: from rank r to rank p go between half and one and a half times the
// mean, more the farther p is behind r. Every rank sends and receives the same total.
#include "perf/harness/operation.h"

namespace weir::perf {
namespace {

size_t count_between(size_t mean, int from, int to, int rank_count) {
  if (rank_count == 1) return mean;
  const auto distance = static_cast<size_t>((to - from + rank_count) % rank_count);
  return mean / 2 + mean * distance / static_cast<size_t>(rank_count - 1);
}

// Where the block for `to` starts in the send buffer of `from`.
size_t send_offset(size_t mean, int from, int to, int rank_count) {
  size_t offset = 0;
  for (int i = 0; i < to; ++i) offset += count_between(mean, from, i, rank_count);
  return offset;
}

struct Counts {
  size_t mean = 0;
  Where where;
  std::vector<size_t> send;
  std::vector<size_t> recv;
};

// Made once per size, so that the timed loop neither computes nor allocates.
const Counts& counts_of(size_t mean, const Where& where) {
  thread_local Counts cached;
  if (cached.send.empty() || cached.mean != mean || cached.where.rank != where.rank ||
      cached.where.rank_count != where.rank_count) {
    cached = {mean, where, {}, {}};
    for (int peer = 0; peer < where.rank_count; ++peer) {
      cached.send.push_back(count_between(mean, where.rank, peer, where.rank_count));
      cached.recv.push_back(count_between(mean, peer, where.rank, where.rank_count));
    }
  }
  return cached;
}

class AllToAllV final : public Operation {
 public:
  const char* program() const override { return "alltoallv_perf"; }
  const char* c_name() const override { return "weir_all_to_all_v"; }
  bool has_in_place() const override { return false; }

  Geometry geometry(size_t count_total, size_t element_bytes, const Where& where) const override {
    const size_t mean = count_total / static_cast<size_t>(where.rank_count);
    const size_t total = send_offset(mean, where.rank, where.rank_count, where.rank_count);
    Geometry g;
    g.send_count = total;
    g.recv_count = total;
    g.table_count = mean;
    g.table_bytes = total * element_bytes;
    return g;
  }

  std::vector<ExpectedBlock> expected(const Geometry& g, const Where& where) const override {
    std::vector<ExpectedBlock> blocks;
    size_t first = 0;
    for (int source = 0; source < where.rank_count; ++source) {
      const size_t count = count_between(g.table_count, source, where.rank, where.rank_count);
      blocks.push_back(
          {first, count, source, send_offset(g.table_count, source, where.rank, where.rank_count)});
      first += count;
    }
    return blocks;
  }

  double bus_factor(int rank_count) const override {
    return static_cast<double>(rank_count - 1) / rank_count;
  }

  weir_result_t start(const Call& c) const override {
    const Counts& counts = counts_of(c.count, c.where);
    return weir_all_to_all_v(c.comm, c.send, counts.send.data(), nullptr, c.recv,
                             counts.recv.data(), nullptr, c.type, c.request);
  }
};

}  // namespace
}  // namespace weir::perf

int main(int argc, char** argv) {
  return weir::perf::run_program(argc, argv, weir::perf::AllToAllV());
}
