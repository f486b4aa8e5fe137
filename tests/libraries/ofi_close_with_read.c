/* SPDX-License-Identifier: Apache-2.0 */
/* Closes an endpoint while reads of a peer's memory are under way: a program of libfabric alone, to
 * tell libfabric's faults from ours.
 *
 *   ofi_close_with_read PROVIDER ROUNDS       for example "tcp;ofi_rxm" 100
 *
 * Two endpoints of one process, a target and an origin that reads. The operations under way should
 * be lost and nothing else happen; exit status 0. */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                              \
  do {                                                           \
    const int result_ = (int)(call);                             \
    if (result_ != 0) {                                          \
      fprintf(stderr, "%s: %s\n", #call, fi_strerror(-result_)); \
      exit(2);                                                   \
    }                                                            \
  } while (0)

enum { kBytes = 64 << 20 };

struct end {
  struct fid_fabric* fabric;
  struct fid_domain* domain;
  struct fid_ep* endpoint;
  struct fid_cq* queue;
  struct fid_av* addresses;
  struct fid_mr* memory;
  char* bytes;
  char name[256];
  size_t name_bytes;
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
  end->bytes = malloc(kBytes);
  memset(end->bytes, 1, kBytes);
  CHECK(fi_mr_reg(end->domain, end->bytes, kBytes,
                  FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 7, 0, &end->memory,
                  NULL));
  end->name_bytes = sizeof end->name;
  CHECK(fi_getname(&end->endpoint->fid, end->name, &end->name_bytes));
}

static int progress(struct end* end) {
  struct fi_cq_entry entry;
  return fi_cq_read(end->queue, &entry, 1) == 1;
}

int main(int count, char** arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: ofi_close_with_read PROVIDER ROUNDS\n");
    return 1;
  }
  struct fi_info* hints = fi_allocinfo();
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA;
  hints->fabric_attr->prov_name = strdup(arguments[1]);
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  struct fi_info* info = NULL;
  CHECK(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &info));
  printf("libfabric %u.%u, provider %s\n", FI_MAJOR(fi_version()), FI_MINOR(fi_version()),
         info->fabric_attr->prov_name);
  const int rounds = atoi(arguments[2]);
  for (int round = 0; round < rounds; ++round) {
    struct end target, origin;
    open_end(info, &target);
    open_end(info, &origin);
    fi_addr_t peer = FI_ADDR_UNSPEC;
    if (fi_av_insert(origin.addresses, target.name, 1, &peer, 0, NULL) != 1) return 2;
    const uint64_t base =
        (info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) ? (uint64_t)(uintptr_t)target.bytes : 0;
    struct fi_context2 contexts[4];
    for (int i = 0; i < 4; ++i) {
      ssize_t posted;
      while ((posted = fi_read(origin.endpoint, origin.bytes, kBytes, fi_mr_desc(origin.memory),
                               peer, base, fi_mr_key(target.memory), &contexts[i])) == -FI_EAGAIN) {
        progress(&origin);
        progress(&target);
      }
      CHECK(posted);
    }
    /* So many looks at both queues that the reads have begun and are not done. */
    int done = 0;
    for (int look = 0; look < round * 7 % 400; ++look) {
      done += progress(&origin);
      progress(&target);
    }
    /* The origin goes, then the target. */
    CHECK(fi_close(&origin.endpoint->fid));
    for (int look = 0; look < 50; ++look) progress(&target);
    CHECK(fi_close(&target.endpoint->fid));
    struct end* ends[] = {&origin, &target};
    for (int i = 0; i < 2; ++i) {
      CHECK(fi_close(&ends[i]->memory->fid));
      CHECK(fi_close(&ends[i]->addresses->fid));
      CHECK(fi_close(&ends[i]->queue->fid));
      CHECK(fi_close(&ends[i]->domain->fid));
      CHECK(fi_close(&ends[i]->fabric->fid));
      free(ends[i]->bytes);
    }
    printf("round %d: closed with %d of 4 reads done\n", round, done);
    fflush(stdout);
  }
  return 0;
}
