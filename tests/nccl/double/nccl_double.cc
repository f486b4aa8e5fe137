// SPDX-License-Identifier: Apache-2.0
// A library in the place of the real NCCL: see nccl_double.h. Here is all but the operations.
//
// DOUBLE_FAIL_RANK=r: rank r fails to start, as by nccl_double_fail, and the others wait for ever.
// computed.cc has more variables.
#include "nccl/double/nccl_double.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "nccl/double/work.h"

using nccl_double::Comm;
using nccl_double::comm_of;
using nccl_double::fail;
using nccl_double::kMark;

namespace {

constexpr int kNamesMax = 256;
constexpr int kPolls = 3;
constexpr char kId[] = "double ";

// How the start of communicators fails.
struct Failure {
  int rank = -1;  // none
  int code = 0;
  int hang = 0;
};

struct Calls {
  const char* name = nullptr;
  int count = 0;
};

// No objects of the standard library: their destructors, and symbols that are unique in a process,
// could keep a library that is closed.
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
Calls calls[kNamesMax];
Failure starting, making;
int started_count, alive_count, id_count;
char last_error[256];
thread_local int depth, queued;

class Locked {
 public:
  Locked() { pthread_mutex_lock(&lock); }
  ~Locked() { pthread_mutex_unlock(&lock); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;
};

// The calling thread's device, of whatever has been loaded in the place of CUDA's driver.
int current_device() {
  int device = 0;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return 0;
  int (*ask)(int*) = nullptr;
  void* found = dlsym(driver, "cuCtxGetDevice");
  std::memcpy(&ask, &found, sizeof ask);
  if (ask == nullptr || ask(&device) != 0) device = 0;
  dlclose(driver);
  return device;
}

bool is_own(const ncclUniqueId& id) { return std::strncmp(id.internal, kId, sizeof kId - 1) == 0; }

Failure failure_of(const Failure& asked) {
  const Locked locked;
  return asked;
}

// `failure` for `rank`.
ncclResult_t happen(const Failure& failure, int rank) {
  if (failure.rank == rank) {
    return fail(static_cast<ncclResult_t>(failure.code), "double: Duplicate GPU detected");
  }
  while (failure.rank >= 0 && failure.hang != 0) pause();
  return ncclSuccess;
}

ncclResult_t make(int rank, int rank_count, const char* place, const ncclConfig_t* config,
                  ncclComm_t* out) {
  auto* comm = new Comm;
  comm->rank = rank;
  comm->rank_count = rank_count;
  comm->device = current_device();
  if (config != nullptr && config->size >= sizeof(ncclConfig_t)) {
    if (config->commName != nullptr) {
      std::snprintf(comm->name, sizeof comm->name, "%s", config->commName);
    }
    if (config->blocking == 0) comm->polls = kPolls;
  }
  const ncclResult_t result = nccl_double::begin_work(*comm, place, config);
  if (result != ncclSuccess && result != ncclInProgress) {
    delete comm;
    return result;
  }
  const Locked locked;
  ++alive_count;
  *out = reinterpret_cast<ncclComm_t>(comm);
  return comm->polls > 0 ? ncclInProgress : result;
}

ncclResult_t end(ncclComm_t handle) {
  Comm& comm = comm_of(handle);
  if (comm.mark != kMark) return fail(ncclInvalidArgument, "double: corrupted comm object");
  nccl_double::end_work(comm);
  comm.mark = 0;
  delete &comm;
  const Locked locked;
  --alive_count;
  return ncclSuccess;
}

void start(int count) {
  const Locked locked;
  started_count += count;
}

}  // namespace

// ---- For the tests ------------------------------------------------------------------------------

int nccl_double_note(const char* name) {
  const Locked locked;
  for (Calls& one : calls) {
    if (one.name == nullptr) one.name = name;
    if (std::strcmp(one.name, name) != 0) continue;
    ++one.count;
    break;
  }
  return ncclSuccess;
}

DOUBLE_API int nccl_double_calls(const char* name) {
  const Locked locked;
  for (const Calls& one : calls) {
    if (one.name == nullptr) break;
    if (std::strcmp(one.name, name) == 0) return one.count;
  }
  return 0;
}

DOUBLE_API void nccl_double_fail(int rank, int code, int hang) {
  const Locked locked;
  starting = {rank, code, hang};
}

DOUBLE_API void nccl_double_fail_making(int rank, int code, int hang) {
  const Locked locked;
  making = {rank, code, hang};
}

DOUBLE_API int nccl_double_started() {
  const Locked locked;
  return started_count;
}

DOUBLE_API int nccl_double_alive() {
  const Locked locked;
  return alive_count;
}

DOUBLE_API int nccl_double_binds_to_itself() {
  Dl_info own, found;
  ncclResult_t (*const volatile get_version)(int*) = ncclGetVersion;
  const auto address = reinterpret_cast<void*>(get_version);
  const bool is_known = dladdr(calls, &own) != 0 && dladdr(address, &found) != 0;
  return is_known && own.dli_fbase == found.dli_fbase ? 1 : 0;
}

DOUBLE_API int nccl_double_device_of(void* comm) { return static_cast<Comm*>(comm)->device; }
DOUBLE_API const char* nccl_double_name_of(void* comm) { return static_cast<Comm*>(comm)->name; }

// ---- For the operations -------------------------------------------------------------------------

ncclResult_t nccl_double::fail(ncclResult_t code, const char* text) {
  const Locked locked;
  std::snprintf(last_error, sizeof last_error, "%s", text);
  return code;
}

bool nccl_double::is_in_group() { return depth > 0; }

void nccl_double::count_operation() {
  if (depth > 0) {
    ++queued;
  } else {
    start(1);
  }
}

int nccl_double::number(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : -1;
}

// ---- The library --------------------------------------------------------------------------------

DOUBLE_API ncclResult_t ncclGetVersion(int* version) {
  nccl_double_note(__func__);
  *version = DOUBLE_VERSION;
  return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  nccl_double_note(__func__);
  // NCCL, too, frees what functions of the C library allocate.
  std::free(realpath("/", nullptr));
  std::memset(id, 0, sizeof *id);
  size_t written = 0;
  {
    const Locked locked;
    written = static_cast<size_t>(
        std::snprintf(id->internal, sizeof id->internal, "%s%d ", kId, ++id_count));
  }
  return nccl_double::write_place(id->internal + written, sizeof id->internal - written);
}

DOUBLE_API const char* ncclGetErrorString(ncclResult_t result) {
  nccl_double_note(__func__);
  return result == ncclSuccess       ? "double: no error"
         : result == ncclRemoteError ? "double: remote error"
                                     : "double: error";
}

DOUBLE_API const char* ncclGetLastError(ncclComm_t) {
  nccl_double_note(__func__);
  return last_error;
}

// ---- Communicators ------------------------------------------------------------------------------

DOUBLE_API ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int rank_count, ncclUniqueId id,
                                               int rank, ncclConfig_t* config) {
  nccl_double_note(__func__);
  if (!is_own(id)) return fail(ncclInvalidArgument, "double: an id that is not mine");
  Failure failure = failure_of(starting);
  if (failure.rank < 0) failure = {nccl_double::number("DOUBLE_FAIL_RANK"), ncclInvalidUsage, 0};
  const ncclResult_t result = happen(failure, rank);
  if (result != ncclSuccess) return result;
  const char* place = std::strchr(id.internal + sizeof kId - 1, ' ') + 1;
  return make(rank, rank_count, place, config, comm);
}

DOUBLE_API ncclResult_t ncclCommInitRank(ncclComm_t* comm, int rank_count, ncclUniqueId id,
                                         int rank) {
  nccl_double_note(__func__);
  return ncclCommInitRankConfig(comm, rank_count, id, rank, nullptr);
}

#if DOUBLE_VERSION >= 22304
// The ids are different ones of this library's.
DOUBLE_API ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int rank_count, int rank,
                                                 int count, ncclUniqueId* ids,
                                                 ncclConfig_t* config) {
  nccl_double_note(__func__);
  for (int i = 1; i < count; ++i) {
    for (int j = 0; j < i; ++j) {
      if (!is_own(ids[i]) || std::memcmp(&ids[i], &ids[j], sizeof ids[i]) == 0) {
        return fail(ncclInvalidArgument, "double: an id that is not mine, or twice the same");
      }
    }
  }
  return ncclCommInitRankConfig(comm, rank_count, ids[0], rank, config);
}
#endif

DOUBLE_API ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int*) {
  nccl_double_note(__func__);
  ncclUniqueId id;
  ncclResult_t result = ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int rank = 0; rank < count && result == ncclSuccess; ++rank) {
    result = ncclCommInitRank(&comms[rank], count, id, rank);
  }
  ncclGroupEnd();
  return result;
}

#if DOUBLE_VERSION >= 21801
namespace {

// Numbers are the parent's, as nobody asks for those of the new communicator.
ncclResult_t make_from(ncclComm_t handle, bool makes_one, int rank_count, ncclComm_t* out,
                       const ncclConfig_t* config) {
  const Comm& parent = comm_of(handle);
  if (parent.mark != kMark) return fail(ncclInvalidArgument, "double: corrupted comm object");
  const ncclResult_t result = happen(failure_of(making), parent.rank);
  if (result != ncclSuccess) return result;
  *out = nullptr;
  return makes_one ? make(parent.rank, rank_count, nullptr, config, out) : ncclSuccess;
}

}  // namespace

DOUBLE_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int, ncclComm_t* out,
                                      ncclConfig_t* config) {
  nccl_double_note(__func__);
  return make_from(comm, color >= 0, comm_of(comm).rank_count, out, config);
}
#endif

#if DOUBLE_VERSION >= 22902
DOUBLE_API ncclResult_t ncclCommShrink(ncclComm_t comm, int*, int excluded_count, ncclComm_t* out,
                                       ncclConfig_t* config, int) {
  nccl_double_note(__func__);
  return make_from(comm, true, comm_of(comm).rank_count - excluded_count, out, config);
}

DOUBLE_API ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId* id) {
  nccl_double_note(__func__);
  return ncclGetUniqueId(id);
}

// Of the old ranks, number 0 alone passes the id; a new one passes it and its number.
DOUBLE_API ncclResult_t ncclCommGrow(ncclComm_t comm, int rank_count, const ncclUniqueId* id,
                                     int rank, ncclComm_t* out, ncclConfig_t* config) {
  nccl_double_note(__func__);
  const bool passes_id = comm == nullptr || comm_of(comm).rank == 0;
  if ((id != nullptr) != passes_id || (comm != nullptr) != (rank == -1) ||
      (id != nullptr && !is_own(*id))) {
    return fail(ncclInvalidArgument, "double: not how one grows");
  }
  if (comm != nullptr) return make_from(comm, true, rank_count, out, config);
  const ncclResult_t result = happen(failure_of(making), rank);
  if (result != ncclSuccess) return result;
  return make(rank, rank_count, nullptr, config, out);
}
#endif

DOUBLE_API ncclResult_t ncclCommDestroy(ncclComm_t handle) {
  nccl_double_note(__func__);
  return end(handle);
}

DOUBLE_API ncclResult_t ncclCommAbort(ncclComm_t handle) {
  nccl_double_note(__func__);
  Comm& comm = comm_of(handle);
  if (comm.mark == kMark) nccl_double::abort_work(comm);
  return end(handle);
}

DOUBLE_API ncclResult_t ncclCommGetAsyncError(ncclComm_t handle, ncclResult_t* error) {
  nccl_double_note(__func__);
  Comm& comm = comm_of(handle);
  if (comm.polls > 0) {
    --comm.polls;
    *error = ncclInProgress;
  } else {
    *error = nccl_double::state_of_work(comm);
  }
  return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  nccl_double_note(__func__);
  *count = comm_of(comm).rank_count;
  return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  nccl_double_note(__func__);
  *rank = comm_of(comm).rank;
  return ncclSuccess;
}

// ---- Groups and memory --------------------------------------------------------------------------

DOUBLE_API ncclResult_t ncclGroupStart() {
  nccl_double_note(__func__);
  ++depth;
  return ncclSuccess;
}

DOUBLE_API ncclResult_t ncclGroupEnd() {
  nccl_double_note(__func__);
  if (depth == 0) return fail(ncclInvalidUsage, "double: ncclGroupEnd without ncclGroupStart");
  if (--depth > 0) return ncclSuccess;
  start(queued);
  queued = 0;
  return nccl_double::start_group();
}

#if DOUBLE_VERSION >= 21901
DOUBLE_API ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  nccl_double_note(__func__);
  *memory = std::malloc(bytes);
  return *memory != nullptr ? ncclSuccess : ncclSystemError;
}

DOUBLE_API ncclResult_t ncclMemFree(void* memory) {
  nccl_double_note(__func__);
  std::free(memory);
  return ncclSuccess;
}
#endif
