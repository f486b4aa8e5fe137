/* SPDX-License-Identifier: Apache-2.0 */
/* A library in the place of the real NCCL: see fake_nccl.h. FAKE_VERSION is the version it plays. */
#define WEIR_NCCL_NO_CUDA
#include "fake_nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weir/nccl.h"

#define MARK 0x0280028002800280ull
#define NAMES_MAX 256
#define POLLS 3

struct fake_comm {
  unsigned long long mark;
  int rank, rank_count, device, polls;
  char name[64];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
  const char* name;
  int count;
} calls[NAMES_MAX];
static int fail_rank = -1, fail_code, fail_hang, started, alive, ids;
static int making_rank = -1, making_code, making_hang;
static char last_error[256];
static __thread int depth, queued;

__attribute__((visibility("hidden"))) int fake_note(const char* name) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < NAMES_MAX; ++i) {
    if (calls[i].name == NULL) calls[i].name = name;
    if (strcmp(calls[i].name, name) != 0) continue;
    ++calls[i].count;
    break;
  }
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

int fake_calls(const char* name) {
  int count = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < NAMES_MAX && calls[i].name != NULL; ++i) {
    if (strcmp(calls[i].name, name) == 0) count = calls[i].count;
  }
  pthread_mutex_unlock(&lock);
  return count;
}

void fake_fail(int rank, int code, int hang) {
  pthread_mutex_lock(&lock);
  fail_rank = rank;
  fail_code = code;
  fail_hang = hang;
  pthread_mutex_unlock(&lock);
}

void fake_fail_making(int rank, int code, int hang) {
  pthread_mutex_lock(&lock);
  making_rank = rank;
  making_code = code;
  making_hang = hang;
  pthread_mutex_unlock(&lock);
}

int fake_started(void) {
  pthread_mutex_lock(&lock);
  const int count = started;
  pthread_mutex_unlock(&lock);
  return count;
}

int fake_alive(void) {
  pthread_mutex_lock(&lock);
  const int count = alive;
  pthread_mutex_unlock(&lock);
  return count;
}

int fake_binds_to_itself(void) {
  Dl_info own, found;
  ncclResult_t (*const volatile get_version)(int*) = ncclGetVersion;
  void* address = NULL;
  memcpy(&address, (const void*)&get_version, sizeof address);
  return dladdr((void*)calls, &own) != 0 && dladdr(address, &found) != 0 &&
         own.dli_fbase == found.dli_fbase;
}

int fake_device_of(void* comm) { return ((struct fake_comm*)comm)->device; }
const char* fake_name_of(void* comm) { return ((struct fake_comm*)comm)->name; }

static ncclResult_t fail(ncclResult_t code, const char* text) {
  pthread_mutex_lock(&lock);
  snprintf(last_error, sizeof last_error, "%s", text);
  pthread_mutex_unlock(&lock);
  return code;
}

/* The calling thread's device, of the driver that plays CUDA's. */
static int current_device(void) {
  int device = 0;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == NULL) return 0;
  int (*ask)(int*) = NULL;
  void* found = dlsym(driver, "cuCtxGetDevice");
  memcpy(&ask, &found, sizeof ask);
  if (ask == NULL || ask(&device) != 0) device = 0;
  dlclose(driver);
  return device;
}

static ncclComm_t make(int rank, int rank_count, const ncclConfig_t* config) {
  struct fake_comm* comm = calloc(1, sizeof *comm);
  comm->mark = MARK;
  comm->rank = rank;
  comm->rank_count = rank_count;
  comm->device = current_device();
  if (config != NULL && config->size >= sizeof(ncclConfig_t)) {
    if (config->commName != NULL) snprintf(comm->name, sizeof comm->name, "%s", config->commName);
    if (config->blocking == 0) comm->polls = POLLS;
  }
  pthread_mutex_lock(&lock);
  ++alive;
  pthread_mutex_unlock(&lock);
  return (ncclComm_t)comm;
}

/* ---- The library -------------------------------------------------------------------------------- */

ncclResult_t ncclGetVersion(int* version) {
  fake_note(__func__);
  *version = FAKE_VERSION;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  fake_note(__func__);
  memset(id, 0, sizeof *id);
  pthread_mutex_lock(&lock);
  snprintf(id->internal, sizeof id->internal, "fakeid %d", ++ids);
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  fake_note(__func__);
  return result == ncclSuccess ? "fake: no error" : "fake: error";
}

const char* ncclGetLastError(ncclComm_t comm) {
  (void)comm;
  fake_note(__func__);
  return last_error;
}

/* ---- Communicators ------------------------------------------------------------------------------ */

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int rank_count, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  fake_note(__func__);
  if (strncmp(id.internal, "fakeid ", 7) != 0) {
    return fail(ncclInvalidArgument, "fake: an id that is not mine");
  }
  pthread_mutex_lock(&lock);
  const int failing = fail_rank, code = fail_code, hang = fail_hang;
  pthread_mutex_unlock(&lock);
  if (failing == rank) return fail((ncclResult_t)code, "fake: Duplicate GPU detected");
  if (failing >= 0 && hang) {
    for (;;) pause();
  }
  *comm = make(rank, rank_count, config);
  return ((struct fake_comm*)*comm)->polls > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int rank_count, ncclUniqueId id, int rank) {
  fake_note(__func__);
  return ncclCommInitRankConfig(comm, rank_count, id, rank, NULL);
}

#if FAKE_VERSION >= 22304
/* The ids are different ones of this library's. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int rank_count, int rank, int id_count,
                                      ncclUniqueId* ids, ncclConfig_t* config) {
  fake_note(__func__);
  for (int i = 1; i < id_count; ++i) {
    for (int j = 0; j < i; ++j) {
      if (strncmp(ids[i].internal, "fakeid ", 7) != 0 ||
          memcmp(&ids[i], &ids[j], sizeof ids[i]) == 0) {
        return fail(ncclInvalidArgument, "fake: an id that is not mine, or twice the same");
      }
    }
  }
  return ncclCommInitRankConfig(comm, rank_count, ids[0], rank, config);
}
#endif

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  (void)devices;
  fake_note(__func__);
  ncclUniqueId id;
  ncclResult_t result = ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int rank = 0; rank < count && result == ncclSuccess; ++rank) {
    result = ncclCommInitRank(&comms[rank], count, id, rank);
  }
  ncclGroupEnd();
  return result;
}

/* What fake_fail_making asks for, of `rank` of the parent. */
static ncclResult_t making(int rank) {
  pthread_mutex_lock(&lock);
  const int failing = making_rank, code = making_code, hang = making_hang;
  pthread_mutex_unlock(&lock);
  if (failing == rank) return fail((ncclResult_t)code, "fake: Duplicate GPU detected");
  if (failing >= 0 && hang) {
    for (;;) pause();
  }
  return ncclSuccess;
}

/* Numbers are the parent's, as nobody asks for those of the new communicator. */
static ncclResult_t make_from(const struct fake_comm* parent, int makes_one, int rank_count,
                              ncclComm_t* out, const ncclConfig_t* config) {
  if (parent->mark != MARK) return fail(ncclInvalidArgument, "fake: corrupted comm object");
  const ncclResult_t result = making(parent->rank);
  if (result != ncclSuccess) return result;
  *out = makes_one ? make(parent->rank, rank_count, config) : NULL;
  return *out != NULL && ((struct fake_comm*)*out)->polls > 0 ? ncclInProgress : ncclSuccess;
}

#if FAKE_VERSION >= 21801
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out,
                           ncclConfig_t* config) {
  (void)key;
  fake_note(__func__);
  const struct fake_comm* parent = (struct fake_comm*)comm;
  return make_from(parent, color >= 0, parent->rank_count, out, config);
}
#endif

#if FAKE_VERSION >= 22902
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* out,
                            ncclConfig_t* config, int flags) {
  (void)excluded, (void)flags;
  fake_note(__func__);
  const struct fake_comm* parent = (struct fake_comm*)comm;
  return make_from(parent, 1, parent->rank_count - excluded_count, out, config);
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  (void)comm;
  fake_note(__func__);
  return ncclGetUniqueId(id);
}

/* Of the old ranks, number 0 alone passes the id; a new one passes it and its number. */
ncclResult_t ncclCommGrow(ncclComm_t comm, int rank_count, const ncclUniqueId* id, int rank,
                          ncclComm_t* out, ncclConfig_t* config) {
  fake_note(__func__);
  const struct fake_comm* parent = (struct fake_comm*)comm;
  if ((id != NULL) != (parent == NULL || parent->rank == 0) || (parent != NULL) != (rank == -1) ||
      (id != NULL && strncmp(id->internal, "fakeid ", 7) != 0)) {
    return fail(ncclInvalidArgument, "fake: not how one grows");
  }
  if (parent != NULL) return make_from(parent, 1, rank_count, out, config);
  const ncclResult_t result = making(rank);
  if (result == ncclSuccess) *out = make(rank, rank_count, config);
  return result;
}
#endif

static ncclResult_t end(ncclComm_t comm) {
  struct fake_comm* it = (struct fake_comm*)comm;
  if (it->mark != MARK) return fail(ncclInvalidArgument, "fake: corrupted comm object");
  it->mark = 0;
  pthread_mutex_lock(&lock);
  --alive;
  pthread_mutex_unlock(&lock);
  free(it);
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  fake_note(__func__);
  return end(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  fake_note(__func__);
  return end(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  fake_note(__func__);
  struct fake_comm* it = (struct fake_comm*)comm;
  *error = it->polls > 0 ? ncclInProgress : ncclSuccess;
  if (it->polls > 0) --it->polls;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  fake_note(__func__);
  *count = ((struct fake_comm*)comm)->rank_count;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  fake_note(__func__);
  *rank = ((struct fake_comm*)comm)->rank;
  return ncclSuccess;
}

/* ---- Operations --------------------------------------------------------------------------------- */

static void start(int count) {
  pthread_mutex_lock(&lock);
  started += count;
  pthread_mutex_unlock(&lock);
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  (void)send, (void)op, (void)stream;
  fake_note(__func__);
  const struct fake_comm* it = (struct fake_comm*)comm;
  if (it->mark != MARK) return fail(ncclInvalidArgument, "fake: corrupted comm object");
  if (type != ncclInt) return fail(ncclInvalidArgument, "fake: only ints");
  for (size_t i = 0; i < count; ++i) ((int*)recv)[i] = FAKE_SUM + it->rank;
  if (depth > 0) {
    ++queued;
  } else {
    start(1);
  }
  return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
  fake_note(__func__);
  ++depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
  fake_note(__func__);
  if (depth == 0) return fail(ncclInvalidUsage, "fake: ncclGroupEnd without ncclGroupStart");
  if (--depth == 0) {
    start(queued);
    queued = 0;
  }
  return ncclSuccess;
}

#if FAKE_VERSION >= 21901
ncclResult_t ncclMemAlloc(void** memory, size_t bytes) {
  fake_note(__func__);
  *memory = malloc(bytes);
  return *memory != NULL ? ncclSuccess : ncclSystemError;
}

ncclResult_t ncclMemFree(void* memory) {
  fake_note(__func__);
  free(memory);
  return ncclSuccess;
}
#endif
