// SPDX-License-Identifier: Apache-2.0
// Operations that compute: on the memory of Weir's stand-in for CUDA, in stream order, between
// processes and threads of one host. An operation waits for its peers for ever, as NCCL's kernels
// do, until ncclCommAbort. These are the operations that the transport `nccl` calls, in
// communicators that do not block.
//
// Variables, each read when it is needed:
//   DOUBLE_POLLS=k       an operation is enqueued after k looks at ncclCommGetAsyncError, not
//                        before
//   DOUBLE_ERROR_RANK=r  DOUBLE_ERROR_AT=k  the k-th operation of rank r (1, 2, …) fails
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "hostcuda/driver/functions.h"
#include "nccl/double/work.h"

namespace nccl_double {
namespace {

constexpr int kRanksMax = 8;
constexpr size_t kSlotBytes = 64 << 10;
constexpr size_t kMailBytes = 4096;

struct Mail {
  std::atomic<uint32_t> full;
  uint32_t bytes;
  char data[kMailBytes];
};

// What the ranks of a communicator share; zero at first.
struct Shared {
  std::atomic<uint32_t> joined, arrived, generation;
  Mail mail[kRanksMax][kRanksMax];  // from, to
  alignas(64) char slot[kRanksMax][kSlotBytes];
};

enum class Kind {
  kAllReduce,
  kReduce,
  kBroadcast,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kRecv
};

struct Op {
  Kind kind{};
  const char* send = nullptr;
  char* recv = nullptr;
  size_t count = 0;
  ncclDataType_t type{};
  int op = 0;
  int root = 0;  // or the peer
  unsigned char scale[8] = {};
};

struct Batch {
  Work* work;
  CUstream stream;
  std::vector<Op> ops;
  uint32_t* words = nullptr;  // pinned: ready, done
};

struct Scale {
  unsigned char value[8];
};

}  // namespace

// Stays when its communicator ends: a graph may still hold operations. In a list, so that a leak
// checker finds it.
struct Work {
  Work* earlier = nullptr;
  int rank = 0, count = 0, operations = 0;
  Shared* shared = nullptr;
  std::atomic<bool> aborted{false};
  std::atomic<int> in_flight{0};
  std::atomic<int> error{ncclSuccess};
  int polls = 0;
  std::vector<Batch*> waiting;  // not enqueued yet
  std::deque<std::unique_ptr<Batch>> batches;
  std::vector<Scale> scales;
};

namespace {

std::atomic<Work*> latest_work = nullptr;
thread_local std::vector<Batch> group;

void pause_a_little() { usleep(20); }

// False when the communicator was aborted.
bool barrier(Work& work) {
  Shared& s = *work.shared;
  const uint32_t generation = s.generation.load();
  if (s.arrived.fetch_add(1) + 1 == static_cast<uint32_t>(work.count)) {
    s.arrived.store(0);
    s.generation.fetch_add(1);
    return true;
  }
  while (s.generation.load() == generation) {
    if (work.aborted.load()) return false;
    pause_a_little();
  }
  return true;
}

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <typename T>
void combine(const Work& work, const Op& op, size_t elements, char* out) {
  for (size_t i = 0; i < elements; ++i) {
    T total{};
    for (int p = 0; p < work.count; ++p) {
      T value;
      std::memcpy(&value, work.shared->slot[p] + i * sizeof(T), sizeof value);
      if (p == 0) {
        total = value;
      } else if (op.op == ncclProd) {
        total = static_cast<T>(total * value);
      } else if (op.op == ncclMax) {
        total = value > total ? value : total;
      } else if (op.op == ncclMin) {
        total = value < total ? value : total;
      } else {
        total = static_cast<T>(total + value);
      }
    }
    if (op.op == ncclAvg) total = static_cast<T>(total / static_cast<T>(work.count));
    std::memcpy(out + i * sizeof(T), &total, sizeof total);
  }
}

template <typename T>
void scale(const Op& op, char* data, size_t elements) {
  T factor;
  std::memcpy(&factor, op.scale, sizeof factor);
  for (size_t i = 0; i < elements; ++i) {
    T value;
    std::memcpy(&value, data + i * sizeof(T), sizeof value);
    value = static_cast<T>(value * factor);
    std::memcpy(data + i * sizeof(T), &value, sizeof value);
  }
}

template <typename Body>
void with_type(ncclDataType_t type, Body body) {
  switch (type) {
    case ncclInt8:
      return body(int8_t{});
    case ncclUint8:
      return body(uint8_t{});
    case ncclInt32:
      return body(int32_t{});
    case ncclUint32:
      return body(uint32_t{});
    case ncclInt64:
      return body(int64_t{});
    case ncclUint64:
      return body(uint64_t{});
    case ncclFloat32:
      return body(float{});
    case ncclFloat64:
      return body(double{});
    default:
      return;  // no arithmetic of these here
  }
}

// Every rank, or the root alone, lays `from` out; then who `reads` takes what it wants.
template <typename Read>
bool exchange(Work& work, const Op& op, const char* from, size_t elements, bool lays, Read read) {
  const size_t element = bytes_of(op.type);
  const size_t most = kSlotBytes / element;
  for (size_t i = 0; i < elements; i += most) {
    const size_t now = elements - i < most ? elements - i : most;
    char* own = work.shared->slot[work.rank];
    if (lays) {
      std::memcpy(own, from + i * element, now * element);
      if (op.op >= ncclNumOps) {
        with_type(op.type, [&](auto zero) { scale<decltype(zero)>(op, own, now); });
      }
    }
    if (!barrier(work)) return false;
    read(i, now);
    if (!barrier(work)) return false;
  }
  return true;
}

bool run_one(Work& work, const Op& op) {
  const size_t element = bytes_of(op.type);
  const bool at_root = work.rank == op.root;
  const auto reduce_to = [&](char* out) {
    return [&work, &op, out, element](size_t i, size_t now) {
      if (out == nullptr) return;
      with_type(op.type,
                [&](auto zero) { combine<decltype(zero)>(work, op, now, out + i * element); });
    };
  };
  // Block b of rank p's slot, at i of the block p of `out`.
  const auto gather_to = [&](char* out) {
    return [&work, &op, out, element](size_t i, size_t now) {
      if (out == nullptr) return;
      for (int p = 0; p < work.count; ++p) {
        std::memcpy(out + (static_cast<size_t>(p) * op.count + i) * element, work.shared->slot[p],
                    now * element);
      }
    };
  };
  const auto copy_of_root = [&](char* out) {
    return [&work, &op, out, element](size_t i, size_t now) {
      if (out != nullptr) std::memcpy(out + i * element, work.shared->slot[op.root], now * element);
    };
  };
  switch (op.kind) {
    case Kind::kAllReduce:
      return exchange(work, op, op.send, op.count, true, reduce_to(op.recv));
    case Kind::kReduce:
      return exchange(work, op, op.send, op.count, true, reduce_to(at_root ? op.recv : nullptr));
    case Kind::kBroadcast:
      return exchange(work, op, op.send, op.count, at_root, copy_of_root(op.recv));
    case Kind::kAllGather:
      return exchange(work, op, op.send, op.count, true, gather_to(op.recv));
    case Kind::kGather:
      return exchange(work, op, op.send, op.count, true, gather_to(at_root ? op.recv : nullptr));
    case Kind::kReduceScatter:
    case Kind::kAllToAll:
    case Kind::kScatter:
      for (int b = 0; b < work.count; ++b) {
        const char* block = op.send + static_cast<size_t>(b) * op.count * element;
        char* out = b == work.rank ? op.recv : nullptr;
        const bool ok = op.kind == Kind::kReduceScatter
                            ? exchange(work, op, block, op.count, true, reduce_to(out))
                        : op.kind == Kind::kAllToAll
                            ? exchange(work, op, block, op.count, true, gather_to(out))
                            : exchange(work, op, block, op.count, at_root, copy_of_root(out));
        if (!ok) return false;
      }
      return true;
    default:
      return true;
  }
}

// The messages of a group, all at once.
bool run_messages(Work& work, std::vector<Op> ops) {
  std::vector<size_t> moved(ops.size());
  for (bool all = false; !all;) {
    all = true;
    bool any = false;
    // One message at a time for each peer and direction.
    bool busy[2][kRanksMax] = {};
    for (size_t k = 0; k < ops.size(); ++k) {
      const Op& op = ops[k];
      const bool sends = op.kind == Kind::kSend;
      const size_t bytes = op.count * bytes_of(op.type);
      if (moved[k] == bytes) continue;
      all = false;
      if (busy[sends][op.root]) continue;
      busy[sends][op.root] = true;
      Mail& mail =
          sends ? work.shared->mail[work.rank][op.root] : work.shared->mail[op.root][work.rank];
      if (mail.full.load() != (sends ? 0u : 1u)) continue;
      const size_t now =
          sends ? (bytes - moved[k] < kMailBytes ? bytes - moved[k] : kMailBytes) : mail.bytes;
      if (sends) {
        std::memcpy(mail.data, op.send + moved[k], now);
        mail.bytes = static_cast<uint32_t>(now);
      } else {
        std::memcpy(op.recv + moved[k], mail.data, now);
      }
      moved[k] += now;
      mail.full.store(sends ? 1 : 0);
      any = true;
    }
    if (!all && !any) {
      if (work.aborted.load()) return false;
      pause_a_little();
    }
  }
  return true;
}

void run(Batch& batch) {
  Work& work = *batch.work;
  std::vector<Op> messages;
  bool ok = true;
  for (const Op& op : batch.ops) {
    if (op.kind == Kind::kSend || op.kind == Kind::kRecv) {
      messages.push_back(op);
    } else {
      ok = ok && run_one(work, op);
    }
  }
  if (ok) run_messages(work, messages);
}

void run_on_thread(Batch* batch) {
  Work& work = *batch->work;
  std::atomic_ref<uint32_t> ready(batch->words[0]);
  while (ready.load() == 0 && !work.aborted.load()) pause_a_little();
  const int at = number("DOUBLE_ERROR_AT");
  if (number("DOUBLE_ERROR_RANK") == work.rank && at == ++work.operations) {
    work.error.store(ncclRemoteError);
    while (!work.aborted.load()) pause_a_little();
  }
  if (!work.aborted.load()) run(*batch);
  std::atomic_ref<uint32_t>(batch->words[1]).store(1);
  work.in_flight.fetch_sub(1);
}

void run_in_graph(void* batch) { run(*static_cast<Batch*>(batch)); }

ncclResult_t enqueue(Batch* batch) {
  CUstreamCaptureStatus capturing{};
  if (cuStreamIsCapturing(batch->stream, &capturing) != CUDA_SUCCESS) return ncclUnhandledCudaError;
  if (capturing != 0) {
    return cuLaunchHostFunc(batch->stream, run_in_graph, batch) == CUDA_SUCCESS
               ? ncclSuccess
               : ncclUnhandledCudaError;
  }
  void* words = nullptr;
  if (cuMemHostAlloc(&words, 2 * sizeof(uint32_t), 0) != CUDA_SUCCESS)
    return ncclUnhandledCudaError;
  std::memset(words, 0, 2 * sizeof(uint32_t));
  batch->words = static_cast<uint32_t*>(words);
  const auto at = [&](int i) { return reinterpret_cast<CUdeviceptr>(batch->words + i); };
  if (cuStreamWriteValue32_v2(batch->stream, at(0), 1, 0) != CUDA_SUCCESS ||
      cuStreamWaitValue32_v2(batch->stream, at(1), 1, 1) != CUDA_SUCCESS) {
    return ncclUnhandledCudaError;
  }
  batch->work->in_flight.fetch_add(1);
  std::thread(run_on_thread, batch).detach();
  return ncclSuccess;
}

ncclResult_t submit(Batch made) {
  Work& work = *made.work;
  work.batches.push_back(std::make_unique<Batch>(std::move(made)));
  Batch* batch = work.batches.back().get();
  const int polls = number("DOUBLE_POLLS");
  if (polls <= 0) return enqueue(batch);
  work.waiting.push_back(batch);
  work.polls = polls;
  return ncclInProgress;
}

ncclResult_t call(ncclComm_t handle, cudaStream_t stream, const Op& op) {
  Work* work = comm_of(handle).work;
  const auto s = reinterpret_cast<CUstream>(stream);
  if (work->polls > 0) return fail(ncclInvalidUsage, "double: called while another is in progress");
  count_operation();
  if (!is_in_group()) return submit({work, s, {op}});
  for (Batch& batch : group) {
    if (batch.work != work || batch.stream != s) continue;
    batch.ops.push_back(op);
    return ncclSuccess;
  }
  group.push_back({work, s, {op}});
  return ncclSuccess;
}

Op make(Kind kind, const void* send, void* recv, size_t count, ncclDataType_t type, int root = 0) {
  Op op;
  op.kind = kind;
  op.send = static_cast<const char*>(send);
  op.recv = static_cast<char*>(recv);
  op.count = count;
  op.type = type;
  op.root = root;
  return op;
}

Op make_reduction(Kind kind, const void* send, void* recv, size_t count, ncclDataType_t type,
                  ncclRedOp_t red, int root, ncclComm_t comm) {
  Op op = make(kind, send, recv, count, type, root);
  op.op = red;
  if (red >= ncclNumOps) {
    const auto index = static_cast<size_t>(red - ncclNumOps);
    std::memcpy(op.scale, comm_of(comm).work->scales[index].value, sizeof op.scale);
  }
  return op;
}

}  // namespace

// The memory of the communicator lives as long as its ranks: nothing is left when all are killed.
ncclResult_t write_place(char* text, size_t size) {
  const int memory = memfd_create("nccl_double", MFD_CLOEXEC);
  if (memory < 0 || ftruncate(memory, sizeof(Shared)) != 0) return ncclSystemError;
  std::snprintf(text, size, "/proc/%d/fd/%d", getpid(), memory);
  return ncclSuccess;
}

ncclResult_t begin_work(Comm& comm, const char* place, const ncclConfig_t* config) {
  if (place == nullptr || config == nullptr || config->magic != 0xcafebeef || config->size < 24 ||
      config->blocking != 0 || comm.rank_count > kRanksMax) {
    return fail(ncclInvalidArgument, "double: a configuration that is not expected");
  }
  const int memory = open(place, O_RDWR | O_CLOEXEC);
  if (memory < 0) return fail(ncclSystemError, "double: an id that is not mine");
  void* shared = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  close(memory);
  if (shared == MAP_FAILED) return ncclSystemError;
  comm.work = new Work;
  comm.work->earlier = latest_work.exchange(comm.work);
  comm.work->rank = comm.rank;
  comm.work->count = comm.rank_count;
  comm.work->shared = static_cast<Shared*>(shared);
  comm.work->shared->joined.fetch_add(1);
  return ncclInProgress;
}

ncclResult_t state_of_work(Comm& comm) {
  Work& work = *comm.work;
  if (work.error.load() != ncclSuccess) return static_cast<ncclResult_t>(work.error.load());
  if (work.shared->joined.load() < static_cast<uint32_t>(work.count)) return ncclInProgress;
  if (work.polls > 0 && --work.polls == 0) {
    for (Batch* batch : work.waiting) {
      if (enqueue(batch) != ncclSuccess) work.error.store(ncclUnhandledCudaError);
    }
    work.waiting.clear();
  }
  return work.polls > 0 ? ncclInProgress : ncclSuccess;
}

void abort_work(Comm& comm) { comm.work->aborted.store(true); }

void end_work(Comm& comm) {
  while (comm.work->in_flight.load() > 0) pause_a_little();
}

ncclResult_t start_group() {
  ncclResult_t result = ncclSuccess;
  std::vector<Batch> all = std::move(group);
  group.clear();
  for (Batch& batch : all) {
    const ncclResult_t one = submit(std::move(batch));
    if (one != ncclSuccess) result = one;
  }
  return result;
}

}  // namespace nccl_double

// ---- The library --------------------------------------------------------------------------------

using nccl_double::call;
using nccl_double::comm_of;
using nccl_double::Kind;
using nccl_double::make;
using nccl_double::make_reduction;

DOUBLE_API ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                                 ncclScalarResidence_t residence,
                                                 ncclComm_t handle) {
  nccl_double_note(__func__);
  if (residence != ncclScalarHostImmediate) return ncclInvalidArgument;
  nccl_double::Scale scale{};
  std::memcpy(scale.value, scalar, nccl_double::bytes_of(type));
  auto& scales = comm_of(handle).work->scales;
  scales.push_back(scale);
  *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(scales.size()) - 1);
  return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count,
                                      ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                      cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream, make_reduction(Kind::kAllReduce, send, recv, count, type, op, 0, comm));
}
DOUBLE_API ncclResult_t ncclReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                                   ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream, make_reduction(Kind::kReduce, send, recv, count, type, op, root, comm));
}
DOUBLE_API ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count,
                                          ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                          cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream,
              make_reduction(Kind::kReduceScatter, send, recv, count, type, op, 0, comm));
}
DOUBLE_API ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count,
                                      ncclDataType_t type, int root, ncclComm_t comm,
                                      cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream, make(Kind::kBroadcast, send, recv, count, type, root));
}
DOUBLE_API ncclResult_t ncclAllGather(const void* send, void* recv, size_t count,
                                      ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream, make(Kind::kAllGather, send, recv, count, type));
}
DOUBLE_API ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                                 ncclComm_t comm, cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream, make(Kind::kSend, send, nullptr, count, type, peer));
}
DOUBLE_API ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer,
                                 ncclComm_t comm, cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream, make(Kind::kRecv, nullptr, recv, count, type, peer));
}
#if DOUBLE_VERSION >= 22803
DOUBLE_API ncclResult_t ncclAlltoAll(const void* send, void* recv, size_t count,
                                     ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream, make(Kind::kAllToAll, send, recv, count, type));
}
DOUBLE_API ncclResult_t ncclGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                                   int root, ncclComm_t comm, cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream, make(Kind::kGather, send, recv, count, type, root));
}
DOUBLE_API ncclResult_t ncclScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                                    int root, ncclComm_t comm, cudaStream_t stream) {
  nccl_double_note(__func__);
  return call(comm, stream, make(Kind::kScatter, send, recv, count, type, root));
}
#endif
