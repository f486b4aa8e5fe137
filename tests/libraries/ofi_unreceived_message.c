/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a long message that nobody receives stops other messages of a provider: a program of
 * libfabric alone, to tell libfabric's faults from ours.
 *
 *   ofi_unreceived_message PROVIDER      for example shm, "tcp;ofi_rxm"
 *
 * Three endpoints of one process. The first one sends the second a tagged message of 4 MiB for
 * which there is no receive. Then first and third, and second and third, send each other messages
 * of 8, 5000 and 300,000 bytes, for which there are. Prints which of them arrive within 5 s; exit
 * status 1 when one does not. */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(call)                                              \
  do {                                                           \
    const int result_ = (int)(call);                             \
    if (result_ != 0) {                                          \
      fprintf(stderr, "%s: %s\n", #call, fi_strerror(-result_)); \
      exit(2);                                                   \
    }                                                            \
  } while (0)

enum { kEnds = 3, kLong = 4 << 20 };

struct end {
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_ep* endpoint;
  struct fid_cq* queue;
  struct fid_av* addresses;
  fi_addr_t peers[kEnds];
  char name[512];
  size_t name_bytes;
};

/* One operation; libfabric keeps `context`. */
struct operation {
  struct fi_context2 context;
  int is_done;
};

static void open_end(struct fi_info* info, struct end* end) {
  memset(end, 0, sizeof *end);
  CHECK(fi_fabric(info->fabric_attr, &end->fabric, NULL));
  CHECK(fi_domain(end->fabric, info, &end->domain, NULL));
  struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_CONTEXT, .size = 128};
  CHECK(fi_cq_open(end->domain, &queue, &end->queue, NULL));
  struct fi_av_attr addresses = {.type = FI_AV_TABLE};
  CHECK(fi_av_open(end->domain, &addresses, &end->addresses, NULL));
  CHECK(fi_endpoint(end->domain, info, &end->endpoint, NULL));
  CHECK(fi_ep_bind(end->endpoint, &end->queue->fid, FI_TRANSMIT | FI_RECV));
  CHECK(fi_ep_bind(end->endpoint, &end->addresses->fid, 0));
  CHECK(fi_enable(end->endpoint));
  end->name_bytes = sizeof end->name;
  CHECK(fi_getname(&end->endpoint->fid, end->name, &end->name_bytes));
}

static void progress(struct end* ends) {
  for (int i = 0; i < kEnds; ++i) {
    struct fi_cq_entry entry;
    struct fi_cq_err_entry error = {0};
    const ssize_t count = fi_cq_read(ends[i].queue, &entry, 1);
    if (count == 1) ((struct operation*)entry.op_context)->is_done = 1;
    if (count == -FI_EAVAIL && fi_cq_readerr(ends[i].queue, &error, 0) == 1)
      fprintf(stderr, "endpoint %d: %s\n", i, fi_strerror(error.err));
  }
}

static double now_s(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int send_to(struct end* ends, int from, int to, const void* data, size_t bytes, uint64_t tag,
                   struct operation* operation) {
  operation->is_done = 0;
  const double until = now_s() + 5;
  ssize_t posted = -FI_EAGAIN;
  while (posted == -FI_EAGAIN && now_s() < until) {
    posted = fi_tsend(ends[from].endpoint, data, bytes, NULL, ends[from].peers[to], tag,
                      &operation->context);
    if (posted == -FI_EAGAIN) progress(ends);
  }
  return posted == 0;
}

int main(int count, char** arguments) {
  if (count != 2) {
    fprintf(stderr, "usage: ofi_unreceived_message PROVIDER\n");
    return 2;
  }
  struct fi_info* hints = fi_allocinfo();
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV;
  hints->fabric_attr->prov_name = strdup(arguments[1]);
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  struct fi_info* info = NULL;
  CHECK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
  printf("libfabric %u.%u, provider %s\n", FI_MAJOR(fi_version()), FI_MINOR(fi_version()),
         info->fabric_attr->prov_name);
  static struct end ends[kEnds];
  for (int i = 0; i < kEnds; ++i) open_end(info, &ends[i]);
  for (int i = 0; i < kEnds; ++i)
    for (int k = 0; k < kEnds; ++k)
      if (fi_av_insert(ends[i].addresses, ends[k].name, 1, &ends[i].peers[k], 0, NULL) != 1)
        return 2;
  static char out[kLong], in[kLong];
  struct operation unreceived;
  if (!send_to(ends, 0, 1, out, kLong, 1, &unreceived))
    printf("the long message cannot be posted\n");
  for (int i = 0; i < 1000; ++i) progress(ends);
  static const int ways[][2] = {{0, 2}, {2, 0}, {1, 2}, {2, 1}};
  static const size_t lengths[] = {8, 5000, 300000};
  int missing = 0;
  for (size_t w = 0; w < sizeof ways / sizeof ways[0]; ++w) {
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; ++l) {
      const int from = ways[w][0], to = ways[w][1];
      struct operation* receive = calloc(1, sizeof *receive);
      struct operation* send = calloc(1, sizeof *send);
      CHECK(fi_trecv(ends[to].endpoint, in, lengths[l], NULL, ends[to].peers[from], 2, 0,
                     &receive->context));
      const int posted = send_to(ends, from, to, out, lengths[l], 2, send);
      const double until = now_s() + 5;
      while (posted && !(receive->is_done && send->is_done) && now_s() < until) progress(ends);
      if (receive->is_done && send->is_done) continue;
      printf("%zu bytes from %d to %d: %s\n", lengths[l], from, to,
             !posted             ? "cannot be posted"
             : !receive->is_done ? "have not arrived after 5 s"
                                 : "have arrived; the send is not complete after 5 s");
      ++missing;
    }
  }
  printf("%d of 12 messages did not complete\n", missing);
  return missing != 0;
}
