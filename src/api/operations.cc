// SPDX-License-Identifier: Apache-2.0
// weir.h: collectives, point to point, groups and requests.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "api/buffers.h"
#include "api/checks.h"
#include "api/errors.h"
#include "api/handles.h"
#include "api/reduction.h"
#include "core/base/per_thread.h"
#include "core/comm/group_fork.h"
#include "core/comm/process.h"
#include "core/comm/state/wait.h"

using weir::Collective;
using weir::DataType;
using weir::Rank;
using weir::Status;
using weir::api::check_buffers;
using weir::api::extent;
using weir::api::guarded;
using weir::api::guarded_operation;
using weir::api::invalid;
using weir::api::kBytesMax;
using weir::api::report;
using weir::api::set_reduction;
using weir::api::Sides;
using weir::api::submit;
using weir::api::valid_type;
using weir::comm::CallGroup;
using weir::comm::Communicator;
using weir::comm::in_callback;
using weir::comm::Request;
using weir::comm::RequestKind;
using weir::comm::t_call_nesting;
using weir::engine::Call;

namespace {

// ---- Groups ----------------------------------------------------------------------------------

struct Deferred {
  weir_comm_t comm;
  Request* request;
  weir_request_t* out;  // NULL: the group waits for it
};

// Its depth is in t_call_nesting.
struct Group {
  uint64_t generation = 0;  // of the process that opened it
  std::vector<Deferred> operations;
};

Group& my_group() { return weir::PerThread<Group>::get(); }

// A group that was open at a fork belongs to the parent; the child has none. Nor has a callback:
// the group around the call that runs it is another's.
[[gnu::noinline]] bool is_group_of_this_call() {
  if (in_callback()) return false;
  if (my_group().generation == weir::process_generation()) return true;
  my_group() = Group();
  t_call_nesting = 0;
  return false;
}

// Where messages of a group go directly between devices: marks all of the group that may.
std::shared_ptr<CallGroup> join_messages(const std::vector<Deferred>& operations) {
  const bool any = std::any_of(operations.begin(), operations.end(),
                               [](const Deferred& it) { return it.request->is_stream_message(); });
  if (!any) return nullptr;
  auto group = std::make_shared<CallGroup>();
  for (const Deferred& it : operations) {
    if (it.request->is_of_device_side()) it.request->device->group = group;
  }
  return group;
}

bool is_of_several_communicators(const std::vector<Deferred>& operations) {
  return std::any_of(operations.begin(), operations.end(),
                     [&](const Deferred& it) { return it.comm != operations[0].comm; });
}

std::vector<Request*> requests_of(const std::vector<Deferred>& operations) {
  std::vector<Request*> requests;
  for (const Deferred& it : operations) requests.push_back(it.request);
  return requests;
}

inline bool in_group() { return t_call_nesting != 0 && is_group_of_this_call(); }

// ---- Requests --------------------------------------------------------------------------------

// A handle is the request itself: handles need no storage of their own.
weir_request_t handle_of(Request* request) { return reinterpret_cast<weir_request_t>(request); }
Request* request_of(weir_request_t handle) { return reinterpret_cast<Request*>(handle); }

// The end of a request of `comm`.
weir_result_t report_end(const Status& status, Communicator& comm) {
  if (!status.ok()) comm.note_error(status);
  return report(status);
}

weir_result_t report_used(const char* function) {
  return report(Status(weir::Code::kInvalidUsage,
                       fmt::format("{}: the request has been completed by an earlier wait or test; "
                                   "its handle must not be used again",
                                   function)));
}

// Gives a request of the pool to `fill`, then starts it, defers it to the group, or waits for it.
template <typename Fill>
weir_result_t launch(weir_comm_t comm, weir_request_t* out, Fill fill) {
  if (out == nullptr) WEIR_REFUSE_IN_CALLBACK("an operation without a request", comm);
  Communicator& communicator = *comm->comm;
  Request* request = communicator.requests().acquire();
  request->comm = &communicator;
  fill(*request);
  if (const Status status = communicator.route(*request); !status.ok()) {
    communicator.requests().release(request);
    return report(status, comm);
  }
  if (in_group()) {
    my_group().operations.push_back({comm, request, out});
    if (out != nullptr) *out = handle_of(request);
    return WEIR_OK;
  }
  Status status = communicator.start(*request);
  if (!status.ok()) {
    communicator.requests().release(request);
    return report(status, comm);
  }
  if (out != nullptr) {
    *out = handle_of(request);
    weir::comm::request_started();
    communicator.settle(*request);
    return WEIR_OK;
  }
  return report(communicator.finish(request), comm);
}

}  // namespace

void weir::api::leave_open_group(weir_comm_t comm) {
  if (!in_group()) return;
  std::erase_if(my_group().operations, [comm](const Deferred& it) {
    if (it.comm != comm) return false;
    // One with a handle ends with the communicator.
    if (it.out == nullptr) comm->comm->requests().release(it.request);
    return true;
  });
}

weir_result_t weir::api::submit(weir_comm_t comm, const Call& call, weir_request_t* out) {
  if (out == nullptr && t_call_nesting == 0) [[likely]] {
    const Status status = comm->comm->run(call);
    return status.ok() ? WEIR_OK : report(status, comm);
  }
  return launch(comm, out, [&](Request& request) {
    request.kind = RequestKind::kCollective;
    request.call = call;
    const auto keep = [n = comm->comm->rank_count()](const size_t* values, auto& to) {
      if (values != nullptr) to.assign(values, values + n);
    };
    keep(call.block_counts, request.block_counts);
    keep(call.block_displacements, request.block_displacements);
    keep(call.recv_counts, request.recv_counts);
    keep(call.recv_displacements, request.recv_displacements);
  });
}

namespace {

// ---- Arguments -------------------------------------------------------------------------------

bool is_right_type_and_count(weir_datatype_t type, size_t count, size_t block_count) {
  if (!valid_type(type)) return false;
  const size_t element = weir::element_bytes(static_cast<DataType>(type));
  size_t bytes = 0;
  return !__builtin_mul_overflow(count, element * block_count, &bytes) && bytes <= kBytesMax;
}

// Text of what is wrong, or empty.
std::string wrong_type_or_count(weir_datatype_t type, size_t count, size_t block_count) {
  if (is_right_type_and_count(type, count, block_count)) return {};
  if (!valid_type(type)) return fmt::format("data type {} is unknown", static_cast<int>(type));
  return fmt::format("count {} of {} ({} blocks) overflows the address space", count,
                     weir::name_of(static_cast<DataType>(type)), block_count);
}

weir_result_t wrong(weir_comm_t comm, const char* function, const std::string& text) {
  return invalid(fmt::format("{} on '{}': {}", function, comm->comm->name(), text), comm);
}

std::string check_root(weir_comm_t comm, int root) {
  const auto n = static_cast<int>(comm->comm->rank_count());
  return root >= 0 && root < n ? std::string()
                               : fmt::format("root {} is not a rank of {}", root, n);
}

// The parts that all collectives share.
struct Ask {
  const char* function;
  weir_comm_t comm;
  const void* send;
  void* recv;
  size_t count;
  weir_datatype_t type;
  weir_request_t* request;
  weir::engine::Purpose purpose = weir::engine::Purpose::kNone;
};

template <typename MakeSides>
weir_result_t collective(const Ask& ask, Collective kind, size_t block_count, int root,
                         const weir_redop_t* op, MakeSides make_sides) {
  weir_comm_t comm = ask.comm;
  if (!is_right_type_and_count(ask.type, ask.count, block_count)) [[unlikely]] {
    return wrong(comm, ask.function, wrong_type_or_count(ask.type, ask.count, block_count));
  }
  if (root != 0) {
    if (const std::string text = check_root(comm, root); !text.empty()) {
      return wrong(comm, ask.function, text);
    }
  }
  Call call;
  call.purpose = ask.purpose;
  call.collective = kind;
  call.type = static_cast<DataType>(ask.type);
  call.count = ask.count;
  call.root = static_cast<Rank>(root);
  call.input = ask.send;
  call.output = ask.recv;
  if (op != nullptr) {
    if (const std::string text = set_reduction(comm, *op, call); !text.empty()) {
      return wrong(comm, ask.function, text);
    }
  }
  const size_t one = ask.count * weir::element_bytes(call.type);
  if (const char* text = check_buffers(ask.send, ask.recv, make_sides(one), call)) {
    return wrong(comm, ask.function, text);
  }
  return submit(comm, call, ask.request);
}

weir_result_t message(const char* function, bool sends, weir_comm_t comm, void* buffer,
                      size_t count, weir_datatype_t type, int peer, weir_request_t* out,
                      int device = -1) {
  if (!is_right_type_and_count(type, count, 1)) [[unlikely]] {
    return wrong(comm, function, wrong_type_or_count(type, count, 1));
  }
  const auto n = static_cast<int>(comm->comm->rank_count());
  if (peer < 0 || peer >= n) {
    return wrong(comm, function, fmt::format("peer {} is not a rank of {}", peer, n));
  }
  const size_t bytes = count * weir::element_bytes(static_cast<DataType>(type));
  if (buffer == nullptr && bytes > 0) return wrong(comm, function, "the buffer is NULL");
  if (static_cast<Rank>(peer) == comm->comm->rank() && out == nullptr && !in_group()) {
    return report(Status(weir::Code::kInvalidUsage,
                         fmt::format("{} on '{}': a blocking message to oneself never ends; use a "
                                     "group or a request",
                                     function, comm->comm->name())),
                  comm);
  }
  return launch(comm, out, [&](Request& request) {
    request.kind = sends ? RequestKind::kSend : RequestKind::kRecv;
    request.peer = static_cast<Rank>(peer);
    request.bytes = bytes;
    request.known_device = device;
    request.call.input = buffer;
    request.call.output = buffer;
  });
}

weir_result_t tagged_message(const char* function, RequestKind kind, weir_comm_t comm, void* buffer,
                             size_t count, weir_datatype_t type, int peer, int tag,
                             weir_tag_info_t* info, weir_request_t* out) {
  std::string text = wrong_type_or_count(type, count, 1);
  if (!text.empty()) return wrong(comm, function, text);
  const bool receives = kind == RequestKind::kTagRecv;
  const auto n = static_cast<int>(comm->comm->rank_count());
  const bool is_from_any = receives && peer == WEIR_ANY_SOURCE;
  if (!is_from_any && (peer < 0 || peer >= n)) {
    return wrong(comm, function, fmt::format("peer {} is not a rank of {}", peer, n));
  }
  if (tag < 0 && !(receives && tag == WEIR_ANY_TAG)) {
    return wrong(comm, function, fmt::format("tag {} is negative", tag));
  }
  const size_t bytes = count * weir::element_bytes(static_cast<DataType>(type));
  if (buffer == nullptr && bytes > 0) return wrong(comm, function, "the buffer is NULL");
  const bool is_blocking = out == nullptr && !in_group();
  return launch(comm, out, [&](Request& request) {
    request.kind = kind;
    request.peer = is_from_any ? comm->comm->rank() : static_cast<Rank>(peer);
    request.bytes = bytes;
    request.call.input = buffer;
    request.call.output = buffer;
    request.tag = {
        .tag = tag, .is_from_any = is_from_any, .is_blocking = is_blocking, .info = info};
  });
}

}  // namespace

weir_result_t weir::device_message(bool sends, weir_comm_t comm, void* buffer, size_t count,
                                   weir_datatype_t type, int peer, int device,
                                   weir_request_t* request) {
  return guarded_operation(request, [&] {
    return message(sends ? "send" : "recv", sends, comm, buffer, count, type, peer, request,
                   device);
  });
}

weir_result_t weir::gather_for_setup(weir_comm_t comm, const void* send, void* recv, size_t bytes) {
  return guarded([&] {
    WEIR_CHECK_COMM(comm, "all_gather");
    const size_t n = comm->comm->rank_count();
    return collective(
        {"all_gather", comm, send, recv, bytes, WEIR_UINT8, nullptr, weir::engine::Purpose::kSetup},
        Collective::kAllGather, n, 0, nullptr,
        [n](size_t one) { return Sides{.send_bytes = one, .recv_bytes = n * one}; });
  });
}

weir_result_t weir_all_reduce(weir_comm_t comm, const void* send, void* recv, size_t count,
                              weir_datatype_t type, weir_redop_t op, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "all_reduce");
    return collective({"all_reduce", comm, send, recv, count, type, request},
                      Collective::kAllReduce, 1, 0, &op,
                      [](size_t bytes) { return Sides{.send_bytes = bytes, .recv_bytes = bytes}; });
  });
}

weir_result_t weir_reduce(weir_comm_t comm, const void* send, void* recv, size_t count,
                          weir_datatype_t type, weir_redop_t op, int root,
                          weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "reduce");
    const bool at_root = static_cast<int>(comm->comm->rank()) == root;
    return collective({"reduce", comm, send, recv, count, type, request}, Collective::kReduce, 1,
                      root, &op, [&](size_t bytes) {
                        return Sides{.send_bytes = bytes, .recv_bytes = bytes, .receives = at_root};
                      });
  });
}

weir_result_t weir_broadcast(weir_comm_t comm, const void* send, void* recv, size_t count,
                             weir_datatype_t type, int root, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "broadcast");
    const bool at_root = static_cast<int>(comm->comm->rank()) == root;
    return collective({"broadcast", comm, send, recv, count, type, request}, Collective::kBroadcast,
                      1, root, nullptr, [&](size_t bytes) {
                        return Sides{.send_bytes = bytes, .recv_bytes = bytes, .sends = at_root};
                      });
  });
}

weir_result_t weir_reduce_scatter(weir_comm_t comm, const void* send, void* recv, size_t recv_count,
                                  weir_datatype_t type, weir_redop_t op, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "reduce_scatter");
    const Rank n = comm->comm->rank_count();
    const Rank r = comm->comm->rank();
    return collective({"reduce_scatter", comm, send, recv, recv_count, type, request},
                      Collective::kReduceScatter, n, 0, &op, [&](size_t bytes) {
                        return Sides{
                            .send_bytes = bytes * n, .recv_bytes = bytes, .in_place_at = bytes * r};
                      });
  });
}

weir_result_t weir_all_gather(weir_comm_t comm, const void* send, void* recv, size_t send_count,
                              weir_datatype_t type, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "all_gather");
    const Rank n = comm->comm->rank_count();
    const Rank r = comm->comm->rank();
    return collective({"all_gather", comm, send, recv, send_count, type, request},
                      Collective::kAllGather, n, 0, nullptr, [&](size_t bytes) {
                        return Sides{.send_bytes = bytes,
                                     .recv_bytes = bytes * n,
                                     .in_place_at = bytes * r,
                                     .offset_in_recv = true};
                      });
  });
}

weir_result_t weir_all_to_all(weir_comm_t comm, const void* send, void* recv, size_t count,
                              weir_datatype_t type, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "all_to_all");
    const Rank n = comm->comm->rank_count();
    return collective({"all_to_all", comm, send, recv, count, type, request}, Collective::kAllToAll,
                      n, 0, nullptr, [&](size_t bytes) {
                        return Sides{.send_bytes = bytes * n, .recv_bytes = bytes * n};
                      });
  });
}

weir_result_t weir_gather(weir_comm_t comm, const void* send, void* recv, size_t send_count,
                          weir_datatype_t type, int root, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "gather");
    const Rank n = comm->comm->rank_count();
    const bool at_root = static_cast<int>(comm->comm->rank()) == root;
    return collective({"gather", comm, send, recv, send_count, type, request}, Collective::kGather,
                      n, root, nullptr, [&](size_t bytes) {
                        return Sides{.send_bytes = bytes,
                                     .recv_bytes = bytes * n,
                                     .receives = at_root,
                                     .in_place_at = bytes * static_cast<size_t>(root),
                                     .offset_in_recv = true};
                      });
  });
}

weir_result_t weir_scatter(weir_comm_t comm, const void* send, void* recv, size_t recv_count,
                           weir_datatype_t type, int root, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "scatter");
    const Rank n = comm->comm->rank_count();
    const bool at_root = static_cast<int>(comm->comm->rank()) == root;
    return collective({"scatter", comm, send, recv, recv_count, type, request},
                      Collective::kScatter, n, root, nullptr, [&](size_t bytes) {
                        return Sides{.send_bytes = bytes * n,
                                     .recv_bytes = bytes,
                                     .sends = at_root,
                                     .in_place_at = bytes * static_cast<size_t>(root)};
                      });
  });
}

weir_result_t weir_barrier(weir_comm_t comm, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "barrier");
    Call call;
    call.collective = Collective::kBarrier;
    return submit(comm, call, request);
  });
}

// ---- v-variants ------------------------------------------------------------------------------

weir_result_t weir_reduce_scatter_v(weir_comm_t comm, const void* send, void* recv,
                                    const size_t* counts, weir_datatype_t type, weir_redop_t op,
                                    weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "reduce_scatter_v");
    constexpr const char* kFunction = "reduce_scatter_v";
    if (counts == nullptr) return wrong(comm, kFunction, "counts is NULL");
    std::string text = wrong_type_or_count(type, 0, 1);
    if (!text.empty()) return wrong(comm, kFunction, text);
    const Rank n = comm->comm->rank_count();
    const Rank r = comm->comm->rank();
    Call call;
    call.collective = Collective::kReduceScatter;
    call.type = static_cast<DataType>(type);
    const size_t element = weir::element_bytes(call.type);
    if (!extent(counts, nullptr, n, element, &call.count)) {
      return wrong(comm, kFunction, "the sum of counts overflows the address space");
    }
    call.block_counts = counts;
    call.input = send;
    call.output = recv;
    if (!(text = set_reduction(comm, op, call)).empty()) return wrong(comm, kFunction, text);
    size_t before = 0;
    for (Rank i = 0; i < r; ++i) before += counts[i];
    const char* why = check_buffers(send, recv,
                                    Sides{.send_bytes = call.count * element,
                                          .recv_bytes = counts[r] * element,
                                          .in_place_at = before * element},
                                    call);
    if (why != nullptr) return wrong(comm, kFunction, why);
    return submit(comm, call, request);
  });
}

weir_result_t weir_all_gather_v(weir_comm_t comm, const void* send, void* recv,
                                const size_t* counts, const size_t* displacements,
                                weir_datatype_t type, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "all_gather_v");
    constexpr const char* kFunction = "all_gather_v";
    if (counts == nullptr) return wrong(comm, kFunction, "counts is NULL");
    std::string text = wrong_type_or_count(type, 0, 1);
    if (!text.empty()) return wrong(comm, kFunction, text);
    const Rank n = comm->comm->rank_count();
    const Rank r = comm->comm->rank();
    Call call;
    call.collective = Collective::kAllGather;
    call.type = static_cast<DataType>(type);
    const size_t element = weir::element_bytes(call.type);
    size_t end = 0;
    if (!extent(counts, displacements, n, element, &end)) {
      return wrong(comm, kFunction, "counts and displacements overflow the address space");
    }
    // Displacements may differ between ranks; ranks must agree only on the sum of the counts.
    size_t before = 0;
    for (Rank i = 0; i < n; ++i) {
      if (i == r) before = call.count;
      call.count += counts[i];
    }
    if (displacements != nullptr) before = displacements[r];
    call.block_counts = counts;
    call.block_displacements = displacements;
    call.input = send;
    call.output = recv;
    const char* why = check_buffers(send, recv,
                                    Sides{.send_bytes = counts[r] * element,
                                          .recv_bytes = end * element,
                                          .in_place_at = before * element,
                                          .offset_in_recv = true,
                                          .recv_blocks = {counts, displacements}},
                                    call, n, element);
    if (why != nullptr) return wrong(comm, kFunction, why);
    return submit(comm, call, request);
  });
}

weir_result_t weir_all_to_all_v(weir_comm_t comm, const void* send, const size_t* send_counts,
                                const size_t* send_displacements, void* recv,
                                const size_t* recv_counts, const size_t* recv_displacements,
                                weir_datatype_t type, weir_request_t* out) {
  return guarded_operation(out, [&] {
    WEIR_CHECK_COMM(comm, "all_to_all_v");
    constexpr const char* kFunction = "all_to_all_v";
    if (send_counts == nullptr) return wrong(comm, kFunction, "send_counts is NULL");
    if (recv_counts == nullptr) return wrong(comm, kFunction, "recv_counts is NULL");
    std::string text = wrong_type_or_count(type, 0, 1);
    if (!text.empty()) return wrong(comm, kFunction, text);
    const Rank n = comm->comm->rank_count();
    const Rank r = comm->comm->rank();
    const size_t element = weir::element_bytes(static_cast<DataType>(type));
    size_t send_end = 0;
    size_t recv_end = 0;
    if (!extent(send_counts, send_displacements, n, element, &send_end) ||
        !extent(recv_counts, recv_displacements, n, element, &recv_end)) {
      return wrong(comm, kFunction, "counts and displacements overflow the address space");
    }
    if (send_counts[r] != recv_counts[r]) {
      return wrong(comm, kFunction,
                   fmt::format("send_counts[{0}] is {1} but recv_counts[{0}] is {2} on rank {0}", r,
                               send_counts[r], recv_counts[r]));
    }
    Call call;
    call.collective = Collective::kAllToAll;
    call.type = static_cast<DataType>(type);
    call.block_counts = send_counts;
    call.block_displacements = send_displacements;
    call.recv_counts = recv_counts;
    call.recv_displacements = recv_displacements;
    call.input = send;
    call.output = recv;
    const char* why = check_buffers(send, recv,
                                    Sides{.send_bytes = send_end * element,
                                          .recv_bytes = recv_end * element,
                                          .send_blocks = {send_counts, send_displacements},
                                          .recv_blocks = {recv_counts, recv_displacements}},
                                    call, n, element);
    if (call.in_place) why = "send and recv must not be the same buffer";
    if (why != nullptr) return wrong(comm, kFunction, why);
    return submit(comm, call, out);
  });
}

weir_result_t weir_send(weir_comm_t comm, const void* buffer, size_t count, weir_datatype_t type,
                        int peer, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "send");
    return message("send", true, comm, const_cast<void*>(buffer), count, type, peer, request);
  });
}

weir_result_t weir_recv(weir_comm_t comm, void* buffer, size_t count, weir_datatype_t type,
                        int peer, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "recv");
    return message("recv", false, comm, buffer, count, type, peer, request);
  });
}

weir_result_t weir_tag_send(weir_comm_t comm, const void* buffer, size_t count,
                            weir_datatype_t type, int peer, int tag, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "tag_send");
    return tagged_message("tag_send", RequestKind::kTagSend, comm, const_cast<void*>(buffer), count,
                          type, peer, tag, nullptr, request);
  });
}

weir_result_t weir_tag_recv(weir_comm_t comm, void* buffer, size_t count, weir_datatype_t type,
                            int source, int tag, weir_tag_info_t* info, weir_request_t* request) {
  return guarded_operation(request, [&] {
    WEIR_CHECK_COMM(comm, "tag_recv");
    return tagged_message("tag_recv", RequestKind::kTagRecv, comm, buffer, count, type, source, tag,
                          info, request);
  });
}

// ---- Groups and requests -----------------------------------------------------------------------

weir_result_t weir_group_start(void) {
  WEIR_REFUSE_IN_CALLBACK("group_start", nullptr);
  if (!in_group()) my_group().generation = weir::process_generation();
  ++t_call_nesting;
  return WEIR_OK;
}

weir_result_t weir_group_end(void) {
  return guarded([&] {
    if (!in_group()) {
      return report(
          Status(weir::Code::kInvalidUsage, "group_end without group_start (in this process)"));
    }
    if (--t_call_nesting > 0) return WEIR_OK;
    // Callbacks, which may open groups of their own, can run meanwhile.
    std::vector<Deferred> operations;
    operations.swap(my_group().operations);
    weir_result_t first = WEIR_OK;
    bool background = false;
    const std::shared_ptr<CallGroup> group = join_messages(operations);
    weir::comm::GroupFork fork;
    if (is_of_several_communicators(operations)) fork.begin(requests_of(operations));
    for (Deferred& deferred : operations) {
      const Status status = deferred.comm->comm->start(*deferred.request, group.get());
      if (status.ok()) {
        background = background || deferred.out != nullptr;
        continue;
      }
      const weir_result_t result = report(status, deferred.comm);
      if (first == WEIR_OK) first = result;
      // The holder of the handle gets the same error from it.
      deferred.comm->comm->requests().end_unstarted(*deferred.request, status);
    }
    if (background) weir::comm::request_started();
    if (group != nullptr) {
      group->all_started.store(true, std::memory_order_release);
      const Communicator* advanced = nullptr;
      for (Deferred& deferred : operations) {
        if (deferred.comm->comm.get() == advanced) continue;
        advanced = deferred.comm->comm.get();
        deferred.comm->comm->advance();
      }
    }
    for (Deferred& deferred : operations) {
      if (deferred.out != nullptr) {
        deferred.comm->comm->settle(*deferred.request);
        continue;
      }
      // While it waits for one, the other communicators of this thread progress, too
      // (progress_others).
      const Status status = deferred.comm->comm->finish(deferred.request);
      const weir_result_t result = report(status, deferred.comm);
      if (first == WEIR_OK) first = result;
    }
    const weir_result_t joined = report(fork.end());
    if (first == WEIR_OK) first = joined;
    // The next group needs no memory.
    operations.clear();
    if (my_group().operations.empty()) my_group().operations.swap(operations);
    return first;
  });
}

weir_result_t weir_test(weir_request_t* handle, int* done) {
  return guarded([&] {
    if (handle == nullptr || *handle == nullptr) return invalid("test: the request is NULL");
    if (done == nullptr) return invalid("test: done is NULL");
    *done = 0;
    Request* request = request_of(*handle);
    Communicator* comm = request->comm;
    if (comm == nullptr) [[unlikely]] {
      *done = 1;
      *handle = nullptr;
      return report(weir::comm::Requests::end_of_left(request));
    }
    if (!comm->maker().is_this()) [[unlikely]] {
      *handle = nullptr;
      return weir::api::of_parent(*comm, "test");
    }
    if (!request->is_alive.load(std::memory_order_relaxed)) [[unlikely]] {
      *handle = nullptr;
      return report_used("test");
    }
    if (!comm->test(*request)) return WEIR_OK;
    *done = 1;
    const Status status = request->status;
    *handle = nullptr;
    comm->requests().release(request);
    return report_end(status, *comm);
  });
}

weir_result_t weir_request_on_complete(weir_request_t handle, weir_completion_t callback,
                                       void* context) {
  return guarded([&] {
    if (handle == nullptr) return invalid("request_on_complete: the request is NULL");
    if (callback == nullptr) return invalid("request_on_complete: the callback is NULL");
    Request* request = request_of(handle);
    Communicator* comm = request->comm;
    if (comm == nullptr) [[unlikely]] {  // destroyed
      weir::comm::call_back({callback, context}, request->status.code());
      return WEIR_OK;
    }
    if (!comm->maker().is_this()) [[unlikely]] {
      return weir::api::of_parent(*comm, "request_on_complete");
    }
    if (!request->is_alive.load(std::memory_order_relaxed)) [[unlikely]] {
      return report_used("request_on_complete");
    }
    const auto done = comm->requests().call_back(*request, {callback, context});
    if (!done.ok()) return report(done.status());
    if (done.value()) {
      weir::comm::call_back({callback, context}, request->status.code());
    } else {
      weir::comm::watch_requests();
    }
    return WEIR_OK;
  });
}

weir_result_t weir_wait(weir_request_t* handle) {
  return guarded([&] {
    if (handle == nullptr || *handle == nullptr) return invalid("wait: the request is NULL");
    WEIR_REFUSE_IN_CALLBACK("wait", nullptr);
    if (in_group()) {
      return report(Status(weir::Code::kInvalidUsage,
                           "wait inside a group: its operations have not started; end the group"));
    }
    Request* request = request_of(*handle);
    Communicator* comm = request->comm;
    if (comm == nullptr) [[unlikely]] {
      *handle = nullptr;
      return report(weir::comm::Requests::end_of_left(request));
    }
    if (!comm->maker().is_this()) [[unlikely]] {
      *handle = nullptr;
      return weir::api::of_parent(*comm, "wait");
    }
    if (!request->is_alive.load(std::memory_order_relaxed)) [[unlikely]] {
      *handle = nullptr;
      return report_used("wait");
    }
    const Status status = comm->wait(*request);
    *handle = nullptr;
    comm->requests().release(request);
    return report_end(status, *comm);
  });
}

weir_result_t weir_wait_all(weir_request_t* requests, size_t request_count) {
  return guarded([&] {
    if (requests == nullptr && request_count > 0) return invalid("wait_all: requests is NULL");
    weir_result_t first = WEIR_OK;
    for (size_t i = 0; i < request_count; ++i) {
      if (requests[i] == nullptr) continue;
      const weir_result_t result = weir_wait(&requests[i]);
      if (first == WEIR_OK) first = result;
    }
    return first;
  });
}
