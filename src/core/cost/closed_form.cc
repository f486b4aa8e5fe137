// SPDX-License-Identifier: Apache-2.0
#include "core/cost/closed_form.h"

#include <bit>

#include "core/cost/chunk_bytes.h"

namespace weir::cost {

std::optional<ClosedForm> closed_form(const algo::Algorithm& algorithm,
                                      const algo::Problem& problem, uint64_t bytes,
                                      const LinkFigures& link) {
  const algo::Formula& formula = algorithm.formula;
  const Rank n = problem.rank_count;
  if (n < 2 || formula.text == nullptr) return std::nullopt;
  const uint64_t chunk_count = algorithm.shape(problem).chunk_count;
  const ChunkBytes chunks(problem.collective, n, bytes, static_cast<uint32_t>(chunk_count));
  const algo::Symbols symbols{
      .n = static_cast<double>(n),
      .k = static_cast<double>(std::bit_width(n - 1)),
      .m = static_cast<double>(bytes),
      .c = chunk_count == 0 ? 0 : static_cast<double>(chunks.bytes_max()),
      .o = link.send_overhead_ns,
      .L = link.latency_ns,
      .r = link.recv_overhead_ns,
      .a = link.send_overhead_ns + link.latency_ns + link.recv_overhead_ns,
      .b = link.ns_per_byte,
      .s = link.signal_ns,
      .z = link.remote_ns_per_byte,
      .x = link.copy_ns_per_byte,
      .y = link.reduce_ns_per_byte,
      .p = static_cast<double>(std::bit_floor(n)),
      .h = std::bit_width(n) - 1.0,
      .power_of_two = std::has_single_bit(n),
      .root_is_first = problem.root == 0,
  };
  const uint64_t grid_bytes = problem.collective == Collective::kAllToAll ? bytes * n : bytes;
  const bool even = chunk_count == 0 || chunks.bytes_max() * chunk_count == grid_bytes;
  return ClosedForm{formula.ns(symbols), formula.text, even && formula.exact(symbols)};
}

}  // namespace weir::cost
