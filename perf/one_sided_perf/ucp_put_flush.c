/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucp_put_flush: the time of UCX itself for a put and its flush (ucp_put_nbx, ucp_ep_flush_nbx), or
 * a get, between two processes, one operation after the other. ucx_perftest measures puts without
 * their flush. The other process makes progress all the time.
 *
 *   ucp_put_flush put|get <bytes> <count> [<core>,<core>]
 *
 * Prints the median and the mean in microseconds.
 */
#define _GNU_SOURCE /* sched_setaffinity */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

enum { kBatch = 10, kPackedMax = 4096 };

static void check(ucs_status_t status, const char* what) {
  if (status == UCS_OK) return;
  fprintf(stderr, "ucp_put_flush: %s: %s\n", what, ucs_status_string(status));
  exit(1);
}

static void transfer(int socket, int sends, void* data, size_t bytes) {
  const ssize_t moved = sends ? write(socket, data, bytes) : read(socket, data, bytes);
  if (moved == (ssize_t)bytes) return;
  fprintf(stderr, "ucp_put_flush: the other process has ended\n");
  exit(1);
}

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void finish(ucp_worker_h worker, ucs_status_ptr_t request) {
  if (request == NULL) return;
  check(UCS_PTR_STATUS(request) < 0 ? UCS_PTR_STATUS(request) : UCS_OK, "operation");
  while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker);
  check(ucp_request_check_status(request), "operation");
  ucp_request_free(request);
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

struct packed {
  size_t bytes;
  unsigned char data[kPackedMax];
};

static void pack(struct packed* to, const void* from, size_t bytes) {
  if (bytes > sizeof to->data) exit(1);
  to->bytes = bytes;
  memcpy(to->data, from, bytes);
}

int main(int count, char** arguments) {
  int cores[2] = {-1, -1};
  if (count < 4 || (count > 4 && sscanf(arguments[4], "%d,%d", &cores[0], &cores[1]) != 2)) {
    const int asked = count == 2 && strcmp(arguments[1], "--help") == 0;
    fprintf(asked ? stdout : stderr,
            "usage: ucp_put_flush put|get <bytes> <count> [<core>,<core>]\n");
    return asked ? 0 : 2;
  }
  const int does_put = strcmp(arguments[1], "put") == 0;
  const size_t bytes = strtoull(arguments[2], NULL, 10);
  const size_t rounds = strtoull(arguments[3], NULL, 10) / kBatch + 1;
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
  const int rank = fork() == 0;
  if (rank == 1) prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int socket = sockets[rank];
  if (cores[rank] >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cores[rank], &set);
    sched_setaffinity(0, sizeof set, &set);
  }

  ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_RMA};
  ucp_context_h context;
  check(ucp_init(&params, NULL, &context), "ucp_init");
  ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                       .thread_mode = UCS_THREAD_MODE_SINGLE};
  ucp_worker_h worker;
  check(ucp_worker_create(context, &worker_params, &worker), "ucp_worker_create");
  ucp_address_t* address;
  size_t address_bytes;
  check(ucp_worker_get_address(worker, &address, &address_bytes), "ucp_worker_get_address");
  void* memory = aligned_alloc(4096, (bytes + 8191) / 4096 * 4096);
  void* buffer = aligned_alloc(4096, (bytes + 8191) / 4096 * 4096);
  if (memory == NULL || buffer == NULL) return 1;
  memset(memory, 0, bytes);
  memset(buffer, 1, bytes);
  ucp_mem_map_params_t map = {
      .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
      .address = memory,
      .length = bytes + 8};
  ucp_mem_h handle;
  check(ucp_mem_map(context, &map, &handle), "ucp_mem_map");
  void* key;
  size_t key_bytes;
  check(ucp_rkey_pack(context, handle, &key, &key_bytes), "ucp_rkey_pack");

  struct packed mine[2], theirs[2];
  memset(mine, 0, sizeof mine);
  pack(&mine[0], address, address_bytes);
  pack(&mine[1], key, key_bytes);
  uint64_t place = (uint64_t)(uintptr_t)memory, their_place = 0;
  for (int turn = 0; turn < 2; ++turn) {
    const int sends = turn == rank;
    transfer(socket, sends, sends ? mine : theirs, sizeof mine);
    transfer(socket, sends, sends ? &place : &their_place, sizeof place);
  }
  ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS,
                        .address = (ucp_address_t*)theirs[0].data};
  ucp_ep_h endpoint;
  check(ucp_ep_create(worker, &to, &endpoint), "ucp_ep_create");
  ucp_rkey_h remote;
  check(ucp_ep_rkey_unpack(endpoint, theirs[1].data, &remote), "ucp_ep_rkey_unpack");

  unsigned char done = 0;
  if (rank == 1) {
    while (recv(socket, &done, 1, MSG_DONTWAIT) != 1) {
      for (int i = 0; i < 1000; ++i) ucp_worker_progress(worker);
    }
    return 0;
  }
  const ucp_request_param_t none = {.op_attr_mask = 0};
  double* times = malloc(rounds * sizeof *times);
  double sum = 0;
  for (size_t warm = 0; warm < 2; ++warm) {
    sum = 0;
    for (size_t i = 0; i < (warm == 0 ? rounds / 10 + 1 : rounds); ++i) {
      const double begin = now_us();
      for (int k = 0; k < kBatch; ++k) {
        if (does_put) {
          finish(worker, ucp_put_nbx(endpoint, buffer, bytes, their_place, remote, &none));
          finish(worker, ucp_ep_flush_nbx(endpoint, &none));
        } else {
          finish(worker, ucp_get_nbx(endpoint, buffer, bytes, their_place, remote, &none));
        }
      }
      times[i] = (now_us() - begin) / kBatch;
      sum += times[i];
    }
  }
  qsort(times, rounds, sizeof *times, compare);
  printf("%s %zu bytes: median %.3f us, mean %.3f us\n", arguments[1], bytes, times[rounds / 2],
         sum / (double)rounds);
  done = 1;
  transfer(socket, 1, &done, 1);
  return 0;
}
