/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_NCCL_OPTIONS_H_
#define WEIR_NCCL_OPTIONS_H_

/*
 * nccl_options.h: Weir's options of one NCCL call, for C and C++.
 *
 * What it is for. The `Config` forms of NCCL 2.31's collectives take a list of vendors' options,
 * `ncclCollConfig_t.ext`, which NCCL itself ignores. A program that sets Weir's there runs on both.
 *
 *   ncclConfigExt_t deadline = weir_nccl_timeout_ms(5000, NULL);
 *   ncclConfigExt_t exact = weir_nccl_deterministic(1, &deadline);
 *   ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
 *   config.ext = &exact;
 *   ncclAllReduceConfig(send, recv, count, ncclFloat, ncclSum, comm, stream, &config);
 *
 * As NCCL asks of the whole configuration, determinism and transport must be the same on every
 * rank. The first call with a combination of the two that is new to the communicator makes further
 * connections between its ranks, which later calls with that combination use. Deadlines may differ.
 * If an option is given twice, the first one applies. An unknown option number of Weir's is
 * ncclInvalidArgument.
 *
 * The list stays the caller's and is read before the call returns. Threads: values only.
 *
 * Include NCCL's header, of 2.31 or later, before this one, or none.
 */

#include "weir/nccl.h"

#define WEIR_NCCL_VENDOR_ID 0x57454952 /* "WEIR" */

enum {
  WEIR_NCCL_TIMEOUT_MS = 1,    /* val.i > 0: deadline of this call, milliseconds */
  WEIR_NCCL_DETERMINISTIC = 2, /* val.i 1: the result is one fold in rank order; 0: as usual */
  WEIR_NCCL_TRANSPORT = 3      /* val.s: which may carry it, as WEIR_TRANSPORT: "shm", "tcp,ofi" */
};

static inline ncclConfigExt_t weir_nccl_option(int option, ncclConfigExt_t* next) {
  ncclConfigExt_t it;
  it.next = next;
  it.key.vendorId = WEIR_NCCL_VENDOR_ID;
  it.key.optionId = option;
  it.val.raw = NULL;
  return it;
}

static inline ncclConfigExt_t weir_nccl_timeout_ms(int timeout_ms, ncclConfigExt_t* next) {
  ncclConfigExt_t it = weir_nccl_option(WEIR_NCCL_TIMEOUT_MS, next);
  it.val.i = timeout_ms;
  return it;
}

static inline ncclConfigExt_t weir_nccl_deterministic(int on, ncclConfigExt_t* next) {
  ncclConfigExt_t it = weir_nccl_option(WEIR_NCCL_DETERMINISTIC, next);
  it.val.i = on;
  return it;
}

static inline ncclConfigExt_t weir_nccl_transport(const char* names, ncclConfigExt_t* next) {
  ncclConfigExt_t it = weir_nccl_option(WEIR_NCCL_TRANSPORT, next);
  it.val.s = names;
  return it;
}

#endif /* WEIR_NCCL_OPTIONS_H_ */
