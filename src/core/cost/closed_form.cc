// SPDX-License-Identifier: Apache-2.0
#include "core/cost/closed_form.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>

#include "core/cost/chunk_bytes.h"

namespace weir::cost {

namespace {

// The symbols of the header comment.
struct Symbols {
  double n, k, m, c;
  double o, L, r, a, b, s, z, x, y;
  double p, h;  // the largest power of two <= n, and its logarithm
  bool power_of_two;
  bool root_is_first;
};

struct Row {
  Collective collective;
  std::string_view algorithm;
  const char* formula;
  double (*ns)(const Symbols& q);
  // Beyond an even division into chunks.
  bool (*exact)(const Symbols& q);
};

bool always(const Symbols&) { return true; }
bool never(const Symbols&) { return false; }
bool powers_of_two(const Symbols& q) { return q.power_of_two; }
bool root_first(const Symbols& q) { return q.root_is_first; }

double rest(const Symbols& q) { return q.c * (q.n - 1); }  // all blocks but one

// What the rounds before and after cost where n is no power of two; see RecursiveGroup.
double pairs(const Symbols& q, double before_ns, double after_ns) {
  return q.power_of_two ? 0 : 2 * q.a + before_ns + after_ns;
}

double bruck_all_to_all(const Symbols& q) {
  double sum = q.n * q.c * q.x;
  const uint32_t n = static_cast<uint32_t>(q.n);
  for (uint32_t bit = 1; bit < n; bit *= 2) {
    uint32_t moved = 0;
    for (uint32_t block = 0; block < n; ++block) moved += (block & bit) != 0;
    sum += q.a + moved * q.c * (q.b + q.x);
  }
  return sum;
}

double linear_gather(const Symbols& q) {
  const double first = q.o + q.L;
  return std::max({first + rest(q) * q.b + q.r, first + q.c * q.b + (q.n - 1) * q.r,
                   q.c * q.x + (q.n - 1) * q.r});
}

// Messages of `bytes` each leave the root one after another; at the end it copies.
double linear_send(const Symbols& q, double bytes) {
  const double last_leaves = q.o + (q.n - 2) * std::max(q.o, bytes * q.b);
  return std::max(last_leaves + q.L + bytes * q.b + q.r, (q.n - 1) * q.o + bytes * q.x);
}

using C = Collective;
using Q = const Symbols&;

constexpr std::array kRows = {
    Row{C::kAllReduce, "ring", "(n-1) (2(a + c b) + c y)",
        [](Q q) { return (q.n - 1) * (2 * (q.a + q.c * q.b) + q.c * q.y); }, always},
    Row{C::kReduceScatter, "ring", "(n-1) (a + c b + c y)",
        [](Q q) { return (q.n - 1) * (q.a + q.c * (q.b + q.y)); }, always},
    Row{C::kAllGather, "ring", "(n-1) (a + c b) + max(0, c x - L - c b)",
        [](Q q) {
          return (q.n - 1) * (q.a + q.c * q.b) + std::max(0.0, q.c * q.x - q.L - q.c * q.b);
        },
        always},
    Row{C::kAllReduce, "recursive_doubling", "k (a + m b + m y)",
        [](Q q) {
          return q.h * (q.a + q.m * (q.b + q.y)) + pairs(q, q.m * (q.b + q.y), q.m * q.b);
        },
        powers_of_two},
    Row{C::kAllReduce, "recursive_halving_doubling", "2 k a + (n-1)/n (2 m b + m y)",
        [](Q q) {
          return 2 * q.h * q.a + (q.p - 1) / q.p * q.m * (2 * q.b + q.y) +
                 pairs(q, q.m * (q.b + q.y), q.m * q.b);
        },
        powers_of_two},
    Row{C::kReduceScatter, "recursive_halving", "k a + (n-1) c (b + y)",
        [](Q q) {
          return q.h * q.a + rest(q) * (q.b + q.y) + pairs(q, q.m * (q.b + q.y), q.c * q.b);
        },
        powers_of_two},
    Row{C::kAllGather, "recursive_doubling", "c x + k a + (n-1) c b",
        [](Q q) {
          return q.c * q.x + q.h * q.a + rest(q) * q.b + pairs(q, q.c * q.b, rest(q) * q.b);
        },
        powers_of_two},
    Row{C::kAllGather, "bruck", "c x + k a + (n-1) c b",
        [](Q q) { return q.c * q.x + q.k * q.a + rest(q) * q.b; }, never},
    Row{C::kAllToAll, "bruck", "sum over rounds i < k (a + n_i c (b + x)) + n c x",
        bruck_all_to_all, always},
    Row{C::kAllToAll, "pairwise", "(n-1) (a + c b) + c x",
        [](Q q) { return (q.n - 1) * (q.a + q.c * q.b) + q.c * q.x; }, never},
    Row{C::kReduceScatter, "pairwise", "(n-1) (a + c b + c y)",
        [](Q q) { return (q.n - 1) * (q.a + q.c * (q.b + q.y)); }, always},
    Row{C::kAllReduce, "ordered", "(n-1) (2(a + c b) + c y)",
        [](Q q) { return (q.n - 1) * (2 * (q.a + q.c * q.b) + q.c * q.y); }, always},
    Row{C::kBroadcast, "binomial", "max(k (a + m b), k o + m x)",
        [](Q q) { return std::max(q.k * (q.a + q.m * q.b), q.k * q.o + q.m * q.x); },
        powers_of_two},
    Row{C::kReduce, "binomial", "k (a + m b + m y)",
        [](Q q) { return q.k * (q.a + q.m * (q.b + q.y)); }, powers_of_two},
    Row{C::kGather, "binomial", "k a + (n-1) c b + max(0, c x - o - L - c b)",
        [](Q q) {
          return q.k * q.a + rest(q) * q.b + std::max(0.0, q.c * q.x - q.o - q.L - q.c * q.b);
        },
        powers_of_two},
    Row{C::kScatter, "binomial", "(k-1) a + (n-2) c b + max(a + c b, o + c x)",
        [](Q q) {
          return (q.k - 1) * q.a + (q.n - 2) * q.c * q.b +
                 std::max(q.a + q.c * q.b, q.o + q.c * q.x);
        },
        powers_of_two},
    Row{C::kBroadcast, "chain", "(n-1) (a + m b)",
        [](Q q) { return std::max((q.n - 1) * (q.a + q.m * q.b), q.o + q.m * q.x); }, always},
    Row{C::kReduce, "chain", "(n-1) (a + m b + m y)",
        [](Q q) { return (q.n - 1) * (q.a + q.m * (q.b + q.y)); }, always},
    Row{C::kBroadcast, "linear", "o + (n-2) max(o, m b) + L + m b + r",
        [](Q q) { return linear_send(q, q.m); }, always},
    Row{C::kScatter, "linear", "o + (n-2) max(o, c b) + L + c b + r",
        [](Q q) { return linear_send(q, q.c); }, always},
    Row{C::kGather, "linear", "o + L + max((n-1) c b + r, c b + (n-1) r)", linear_gather,
        root_first},
    Row{C::kBarrier, "dissemination", "k a", [](Q q) { return q.k * q.a; }, always},
    Row{C::kAllReduce, "direct", "m x + s + (n-1) m (y + z)",
        [](Q q) { return q.m * q.x + q.s + (q.n - 1) * q.m * (q.y + q.z); }, always},
    Row{C::kReduce, "direct", "m x + s + (n-1) m (y + z)",
        [](Q q) { return q.m * q.x + q.s + (q.n - 1) * q.m * (q.y + q.z); }, always},
    Row{C::kReduceScatter, "direct", "(n-1) c x + s + (n-1) c (y + z)",
        [](Q q) { return q.s + rest(q) * (q.x + q.y + q.z); }, always},
    Row{C::kAllReduce, "direct_two_phase", "n c x + 2 s + (n-1) c (y + z + x + z)",
        [](Q q) { return q.n * q.c * q.x + 2 * q.s + rest(q) * (q.y + q.x + 2 * q.z); }, always},
    Row{C::kAllGather, "direct", "c x + max(s, c x) + (n-1) c (x + z)",
        [](Q q) { return q.c * q.x + std::max(q.s, q.c * q.x) + rest(q) * (q.x + q.z); }, always},
    Row{C::kAllToAll, "direct", "(n-1) c x + max(s, c x) + (n-1) c (x + z)",
        [](Q q) { return std::max(q.s, q.c * q.x) + rest(q) * (2 * q.x + q.z); }, always},
    Row{C::kBroadcast, "direct", "m x + max(m x, s + m (x + z))",
        [](Q q) { return q.m * q.x + std::max(q.m * q.x, q.s + q.m * (q.x + q.z)); }, always},
    Row{C::kGather, "direct", "c x + s + (n-1) c (x + z)",
        [](Q q) { return q.c * q.x + q.s + rest(q) * (q.x + q.z); }, always},
    Row{C::kScatter, "direct", "(n-1) c x + max(s + c (x + z), c x)",
        [](Q q) { return rest(q) * q.x + std::max(q.s + q.c * (q.x + q.z), q.c * q.x); }, always},
    Row{C::kBarrier, "direct", "s", [](Q q) { return q.s; }, always},
};

}  // namespace

std::optional<ClosedForm> closed_form(const algo::Algorithm& algorithm,
                                      const algo::Problem& problem, uint64_t bytes,
                                      const LinkFigures& link) {
  const Rank n = problem.rank_count;
  if (n < 2) return std::nullopt;
  for (const Row& row : kRows) {
    if (row.collective != algorithm.collective || row.algorithm != algorithm.name) continue;
    const uint64_t chunk_count = algorithm.shape(problem).chunk_count;
    const ChunkBytes chunks(problem.collective, n, bytes, static_cast<uint32_t>(chunk_count));
    const double chunk_bytes = chunk_count == 0 ? 0 : static_cast<double>(chunks.bytes_max());
    const double k = std::bit_width(n - 1);
    const Symbols symbols{
        .n = static_cast<double>(n),
        .k = k,
        .m = static_cast<double>(bytes),
        .c = chunk_bytes,
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
    return ClosedForm{row.ns(symbols), row.formula, even && row.exact(symbols)};
  }
  return std::nullopt;
}

}  // namespace weir::cost
