// SPDX-License-Identifier: Apache-2.0
// weir.h: sums over leaves.
#include "core/base/leaves.h"

#include <fmt/format.h>

#include <vector>

#include "api/checks.h"
#include "api/errors.h"
#include "api/handles.h"
#include "api/reduction.h"
#include "core/engine/leaf_fold.h"

using weir::Collective;
using weir::DataType;
using weir::Rank;
using weir::api::guarded;
using weir::api::guarded_operation;
using weir::api::invalid;
using weir::api::valid_type;
using weir::engine::Call;

static_assert(WEIR_LEAF_COUNT_MAX == weir::kLeafCountMax);

namespace {

DataType type_of(weir_datatype_t type) { return static_cast<DataType>(type); }

std::string wrong_leaf_count(int leaf_count) {
  if (leaf_count >= 1 && leaf_count <= WEIR_LEAF_COUNT_MAX) return {};
  return fmt::format("leaf_count {} is not in 1..{}", leaf_count, WEIR_LEAF_COUNT_MAX);
}

std::string wrong_rank(int rank_count, int rank) {
  if (rank_count >= 1 && rank >= 0 && rank < rank_count) return {};
  return fmt::format("rank {} is not one of {}", rank, rank_count);
}

bool bytes_overflow(size_t count, size_t array_count, size_t element, size_t* bytes) {
  return __builtin_mul_overflow(count, array_count * element, bytes) || *bytes > PTRDIFF_MAX;
}

// ---- The local part ---------------------------------------------------------------------------

// Fills `to`, but for its state. Returns what is wrong, or "".
std::string read_fold(const weir_tree_fold_t& from, weir::engine::LeafFold* to) {
  std::string text = wrong_leaf_count(from.leaf_count);
  if (text.empty()) text = wrong_rank(from.rank_count, from.rank);
  if (!text.empty()) return text;
  if (!valid_type(from.type)) return fmt::format("data type {} is unknown", int{from.type});
  to->leaf_count = static_cast<uint32_t>(from.leaf_count);
  const auto n = static_cast<Rank>(from.rank_count);
  const auto rank = static_cast<Rank>(from.rank);
  to->share = weir::leaf_share(to->leaf_count, n, rank);
  to->type = type_of(from.type);
  to->count = from.count;
  to->nodes = from.nodes;
  Call call;
  call.type = to->type;
  if (from.op < WEIR_SUM || from.op > WEIR_AVG) {
    return fmt::format("reduction {} is not one of sum, product, maximum, minimum, average",
                       from.op);
  }
  text = weir::api::set_reduction(nullptr, from.op, call);
  if (!text.empty()) return text;
  to->fold = call.fold;
  size_t bytes = 0;
  const size_t element = weir::element_bytes(weir::partial_type(to->type));
  const uint32_t capacity = 2 * weir::kLeafLevelMax + 1;
  if (bytes_overflow(from.count, capacity, element, &bytes)) {
    return fmt::format("count {} of {} overflows the address space", from.count, name_of(to->type));
  }
  if (from.nodes == nullptr && from.count > 0 && to->share.count > 0) return "nodes is NULL";
  if (from.folded_count < 0 || static_cast<uint32_t>(from.folded_count) > to->share.count) {
    return fmt::format("folded_count {} is more than the {} leaves of rank {}", from.folded_count,
                       to->share.count, from.rank);
  }
  return {};
}

// ---- Collectives ------------------------------------------------------------------------------

struct Ask {
  const char* function;
  Collective collective;
  weir_comm_t comm;
  const void* nodes;
  void* result;
  size_t count;
  int leaf_count;
  weir_datatype_t type;
  weir_redop_t op;
  int root;
  weir_request_t* request;
};

// Of the caller's buffers, where this rank uses both; sets call.in_place.
std::string wrong_buffers(const Ask& ask, Call& call) {
  const Rank n = ask.comm->comm->rank_count();
  const Rank rank = ask.comm->comm->rank();
  const bool scatters = ask.collective == Collective::kReduceScatter;
  const bool receives = ask.collective != Collective::kReduce || call.root == rank;
  const size_t node_count =
      weir::leaf_nodes_of(static_cast<uint32_t>(ask.leaf_count), n, rank).size();
  const size_t element = weir::element_bytes(call.type);
  const size_t partial = weir::engine::input_element_bytes(call);
  size_t node_bytes = 0;
  if (bytes_overflow(ask.count, (scatters ? n : 1) * (2 * weir::kLeafLevelMax + 1), partial,
                     &node_bytes)) {
    return fmt::format("count {} of {} overflows the address space", ask.count,
                       weir::name_of(call.type));
  }
  if (ask.count == 0) return {};
  node_bytes = ask.count * (scatters ? n : 1) * partial * node_count;
  if (node_bytes > 0 && ask.nodes == nullptr) return "nodes is NULL";
  if (!receives) return {};
  if (ask.result == nullptr) return "result is NULL";
  const auto* nodes = static_cast<const char*>(ask.nodes);
  const auto* result = static_cast<const char*>(ask.result);
  const size_t block_at = scatters ? rank * ask.count * element : 0;
  if (node_bytes > 0 && element == partial && result == nodes + block_at) {
    call.in_place = true;
  } else if (node_bytes > 0 && nodes < result + ask.count * element &&
             result < nodes + node_bytes) {
    return "nodes and result overlap other than in place";
  }
  return {};
}

weir_result_t collective(const Ask& ask) {
  const auto wrong = [&](const std::string& text) {
    return invalid(fmt::format("{} on '{}': {}", ask.function, ask.comm->comm->name(), text),
                   ask.comm);
  };
  if (!valid_type(ask.type)) return wrong(fmt::format("data type {} is unknown", int{ask.type}));
  std::string text = wrong_leaf_count(ask.leaf_count);
  if (text.empty()) {
    text = wrong_rank(static_cast<int>(ask.comm->comm->rank_count()), ask.root);
    if (!text.empty()) text = "root: " + text;
  }
  if (!text.empty()) return wrong(text);
  Call call;
  call.collective = ask.collective;
  call.type = type_of(ask.type);
  call.leaf_count = static_cast<uint32_t>(ask.leaf_count);
  call.root = static_cast<Rank>(ask.root);
  call.count = ask.count;
  call.input = ask.nodes;
  call.output = ask.result;
  text = weir::api::set_reduction(ask.comm, ask.op, call);
  if (text.empty() && call.scaled) text = "a sum over leaves takes no factor";
  if (text.empty()) text = wrong_buffers(ask, call);
  if (!text.empty()) return wrong(text);
  return weir::api::submit(ask.comm, call, ask.request);
}

}  // namespace

weir_datatype_t weir_partial_type(weir_datatype_t type) {
  return valid_type(type) ? static_cast<weir_datatype_t>(weir::partial_type(type_of(type))) : type;
}

weir_result_t weir_leaf_share(int leaf_count, int rank_count, int rank, weir_leaf_share_t* share) {
  return guarded([&] {
    if (share == nullptr || share->struct_bytes < sizeof *share) {
      return invalid("leaf_share: share is not WEIR_LEAF_SHARE_INIT");
    }
    std::string text = wrong_leaf_count(leaf_count);
    if (text.empty()) text = wrong_rank(rank_count, rank);
    if (!text.empty()) return invalid("leaf_share: " + text);
    const auto leaves = static_cast<uint32_t>(leaf_count);
    const auto n = static_cast<Rank>(rank_count);
    const auto r = static_cast<Rank>(rank);
    const weir::LeafShare own = weir::leaf_share(leaves, n, r);
    share->first_leaf = static_cast<int>(own.first);
    share->leaf_count = static_cast<int>(own.count);
    share->node_count = static_cast<int>(weir::leaf_nodes_of(leaves, n, r).size());
    share->node_capacity = static_cast<int>(weir::engine::leaf_node_capacity(leaves, n, r));
    return WEIR_OK;
  });
}

weir_result_t weir_tree_fold(weir_tree_fold_t* fold, const void* const* leaves, int leaf_count,
                             weir_datatype_t leaf_type) {
  return guarded([&] {
    if (fold == nullptr || fold->struct_bytes < sizeof *fold) {
      return invalid("tree_fold: fold is not WEIR_TREE_FOLD_INIT");
    }
    weir::engine::LeafFold work;
    std::string text = read_fold(*fold, &work);
    if (!text.empty()) return invalid("tree_fold: " + text);
    const auto folded = static_cast<uint32_t>(fold->folded_count);
    if (leaf_count < 0 || static_cast<uint32_t>(leaf_count) > work.share.count - folded) {
      return invalid(fmt::format("tree_fold: {} leaves, of which rank {} has {} left", leaf_count,
                                 fold->rank, work.share.count - folded));
    }
    const bool is_narrow = leaf_type == fold->type;
    if (!is_narrow && leaf_type != weir_partial_type(fold->type)) {
      return invalid(fmt::format("tree_fold: leaves of type {} are neither {} nor its partial type",
                                 int{leaf_type}, weir::name_of(work.type)));
    }
    work.folded_count = folded;
    work.present = folded == 0 ? 0 : fold->state;
    std::vector<const void*> next(static_cast<size_t>(leaf_count));
    if (leaves != nullptr) next.assign(leaves, leaves + leaf_count);
    work.add(next, is_narrow);
    fold->folded_count = static_cast<int>(work.folded_count);
    fold->state = work.present;
    return WEIR_OK;
  });
}

weir_result_t weir_all_reduce_leaves(weir_comm_t comm, const void* nodes, void* result,
                                     size_t count, int leaf_count, weir_datatype_t type,
                                     weir_redop_t op, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "all_reduce_leaves");
    return collective({"all_reduce_leaves", Collective::kAllReduce, comm, nodes, result, count,
                       leaf_count, type, op, 0, request});
  });
}

weir_result_t weir_reduce_leaves(weir_comm_t comm, const void* nodes, void* result, size_t count,
                                 int leaf_count, weir_datatype_t type, weir_redop_t op, int root,
                                 weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "reduce_leaves");
    return collective({"reduce_leaves", Collective::kReduce, comm, nodes, result, count, leaf_count,
                       type, op, root, request});
  });
}

weir_result_t weir_reduce_scatter_leaves(weir_comm_t comm, const void* nodes, void* result,
                                         size_t recv_count, int leaf_count, weir_datatype_t type,
                                         weir_redop_t op, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "reduce_scatter_leaves");
    return collective({"reduce_scatter_leaves", Collective::kReduceScatter, comm, nodes, result,
                       recv_count, leaf_count, type, op, 0, request});
  });
}
