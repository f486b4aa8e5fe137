/* SPDX-License-Identifier: Apache-2.0 */
/* Says which library serves NCCL's functions, and who did the work:
 *   loader_program linked               those that it is linked with
 *   loader_program name|path LIBRARY    those of dlopen(LIBRARY), now and local, as Python does
 * It prints "library weir|other, work real|own|wrong". */
#define _GNU_SOURCE
#define WEIR_NCCL_NO_CUDA
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "double/nccl_double.h"
#include "weir/nccl.h"

static void* library;

/* The address of a function, as the program reaches it. */
static void* reach(const char* name) {
  void* found = dlsym(library != NULL ? library : RTLD_DEFAULT, name);
  if (found == NULL) {
    fprintf(stderr, "no %s: %s\n", name, dlerror());
    exit(1);
  }
  return found;
}

static const char* owner_of(void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0) return "unknown";
  void* file = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (file == NULL) return "unknown";
  return dlsym(file, "weir_nccl_marker") != NULL ? "weir" : "other";
}

int main(int argc, char** argv) {
  if (argc > 2) {
    library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
  }
  __typeof__(&ncclCommInitAll) init_all;
  __typeof__(&ncclGroupStart) group_start;
  __typeof__(&ncclGroupEnd) group_end;
  __typeof__(&ncclAllReduce) all_reduce;
  __typeof__(&ncclCommDestroy) destroy;
  __typeof__(&ncclGetLastError) last_error;
  void* found[] = {reach("ncclCommInitAll"), reach("ncclGroupStart"),  reach("ncclGroupEnd"),
                   reach("ncclAllReduce"),   reach("ncclCommDestroy"), reach("ncclGetLastError")};
  memcpy(&init_all, &found[0], sizeof found[0]);
  memcpy(&group_start, &found[1], sizeof found[1]);
  memcpy(&group_end, &found[2], sizeof found[2]);
  memcpy(&all_reduce, &found[3], sizeof found[3]);
  memcpy(&destroy, &found[4], sizeof found[4]);
  memcpy(&last_error, &found[5], sizeof found[5]);
#ifdef LINKED
  /* What is called without dlsym is the same. */
  __typeof__(&ncclAllReduce) linked = ncclAllReduce;
  if (library == NULL && linked != all_reduce) return 2;
#endif

  ncclComm_t comms[2] = {NULL, NULL};
  int values[2] = {3, 4};
  ncclResult_t result = init_all(comms, 2, NULL);
  if (result == ncclSuccess) result = group_start();
  for (int r = 0; r < 2 && result == ncclSuccess; ++r) {
    result = all_reduce(&values[r], &values[r], 1, ncclInt, ncclSum, comms[r], NULL);
  }
  if (result == ncclSuccess) result = group_end();
  for (int r = 0; r < 2 && result == ncclSuccess; ++r) result = destroy(comms[r]);
  if (result != ncclSuccess) {
    fprintf(stderr, "%d: %s\n", result, last_error(NULL));
    return 1;
  }
  const int real = values[0] == NCCL_DOUBLE_SUM && values[1] == NCCL_DOUBLE_SUM + 1;
  const int own = values[0] == 7 && values[1] == 7;
  printf("library %s, work %s\n", owner_of(found[3]), real ? "real" : own ? "own" : "wrong");
  return 0;
}
