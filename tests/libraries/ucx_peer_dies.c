/* SPDX-License-Identifier: Apache-2.0 */
/* What happens to a process whose peer is killed while long messages go both ways over UCX: a
 * program of UCX alone, to tell UCX's faults from ours.
 *
 *   UCX_TLS=tcp,self UCX_RNDV_THRESH=inf ucx_peer_dies ROUNDS
 *
 * Each round forks two processes that send each other messages of 1 MiB without end, and kills one
 * of them. The other one's endpoint reports errors (UCP_ERR_HANDLING_MODE_PEER), so its requests
 * should end with one. Prints how it ended; the exit status is 1 when a signal ended it in any
 * round. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#define CHECK(call)                                                   \
  do {                                                                \
    const ucs_status_t status_ = (call);                              \
    if (status_ != UCS_OK) {                                          \
      fprintf(stderr, "%s: %s\n", #call, ucs_status_string(status_)); \
      _exit(2);                                                       \
    }                                                                 \
  } while (0)

enum { kBytes = 1 << 20, kRequests = 4 };

static int failed;
static void on_error(void* argument, ucp_ep_h endpoint, ucs_status_t status) {
  (void)argument;
  (void)endpoint;
  (void)status;
  failed = 1;
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Whether the request is over. */
static int is_done(ucp_worker_h worker, ucs_status_ptr_t request) {
  if (request == NULL || UCS_PTR_IS_ERR(request)) return 1;
  ucp_worker_progress(worker);
  if (ucp_request_check_status(request) == UCS_INPROGRESS) return 0;
  ucp_request_free(request);
  return 1;
}

static int take_part(int socket, double seconds) {
  ucp_config_t* config = NULL;
  CHECK(ucp_config_read(NULL, NULL, &config));
  ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
  ucp_context_h context;
  CHECK(ucp_init(&params, config, &context));
  ucp_config_release(config);
  ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                       .thread_mode = UCS_THREAD_MODE_SINGLE};
  ucp_worker_h worker;
  CHECK(ucp_worker_create(context, &worker_params, &worker));
  ucp_address_t* own;
  size_t own_bytes;
  CHECK(ucp_worker_get_address(worker, &own, &own_bytes));
  unsigned char peer[4096];
  if (own_bytes > sizeof peer || send(socket, own, own_bytes, 0) != (ssize_t)own_bytes) _exit(2);
  if (recv(socket, peer, sizeof peer, 0) <= 0) _exit(2);
  ucp_ep_params_t end = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                       UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                       UCP_EP_PARAM_FIELD_ERR_HANDLER,
                         .address = (const ucp_address_t*)peer,
                         .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                         .err_handler = {on_error, NULL}};
  ucp_ep_h endpoint;
  CHECK(ucp_ep_create(worker, &end, &endpoint));
  char* out = calloc(kRequests, kBytes);
  char* in = calloc(kRequests, kBytes);
  ucs_status_ptr_t sends[kRequests] = {0}, receives[kRequests] = {0};
  ucp_request_param_t plain = {0};
  const double until = now_s() + seconds;
  while (now_s() < until) {
    for (int i = 0; i < kRequests; ++i) {
      if (is_done(worker, receives[i]))
        receives[i] =
            failed ? NULL
                   : ucp_tag_recv_nbx(worker, in + (size_t)i * kBytes, kBytes, 1, ~0ull, &plain);
      if (is_done(worker, sends[i]))
        sends[i] =
            failed ? NULL : ucp_tag_send_nbx(endpoint, out + (size_t)i * kBytes, kBytes, 1, &plain);
    }
    ucp_worker_progress(worker);
  }
  _exit(failed ? 0 : 3);
}

int main(int count, char** arguments) {
  const int rounds = count > 1 ? atoi(arguments[1]) : 20;
  int ended_by_signal = 0;
  for (int round = 0; round < rounds; ++round) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return 2;
    pid_t processes[2];
    for (int i = 0; i < 2; ++i) {
      processes[i] = fork();
      if (processes[i] == 0) {
        close(ends[1 - i]);
        take_part(ends[i], 2);
      }
    }
    close(ends[0]);
    close(ends[1]);
    usleep(400000 + (unsigned)(rand() % 400000));
    kill(processes[1], SIGKILL);
    int status[2];
    for (int i = 0; i < 2; ++i) waitpid(processes[i], &status[i], 0);
    if (WIFSIGNALED(status[0])) {
      ++ended_by_signal;
      printf("round %d: the survivor was ended by signal %d\n", round, WTERMSIG(status[0]));
    } else {
      printf("round %d: the survivor saw %s\n", round,
             WEXITSTATUS(status[0]) == 0 ? "an error" : "none");
    }
    fflush(stdout);
  }
  printf("%d of %d survivors were ended by a signal\n", ended_by_signal, rounds);
  return ended_by_signal != 0;
}
