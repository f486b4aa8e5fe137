/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_WEIR_H_
#define WEIR_WEIR_H_

/*
 * weir.h: collective communication for C11 and C++.
 *
 * What it is for. A *communicator* is a group of ranks (threads or processes). Every rank of the
 * group calls the same collectives in the same order; each call moves and reduces arrays of
 * `count` elements of one data type.
 *
 * Ownership. Handles are opaque. What `create`, `split`, `shrink`, `alloc`, `register` returns is
 * owned by the caller and ends with the matching `destroy`, `free`, `deregister`. Buffers belong to
 * the caller; a buffer of an operation in flight may be neither freed nor written (nor read, if it
 * receives) until the operation completes.
 *
 * Threads. Calls on one communicator may come from any thread and are serialized inside. Calls on
 * different communicators run in parallel. `weir_comm_abort`, `weir_comm_async_error` and
 * `weir_last_error` never wait for another thread. A group (`weir_group_start`) belongs to the
 * thread that opened it.
 *
 * Fork. A handle belongs to the process that made it. In a child made by fork() or clone() every
 * call with it is WEIR_ERROR_INVALID_USAGE and does nothing to the parent and its peers, but for
 * weir_comm_destroy, which frees what the child has of it and tells nobody. A group that was open
 * is not open there. The child may make communicators of its own. docs/fork.md.
 *
 * Errors. Every function returns a weir_result_t and never throws, exits or blocks for ever: each
 * operation has a deadline. The text of the last error (`weir_last_error`) names the rank, the
 * peer, the operation, its sequence number and the remedy. After WEIR_ERROR_INVALID_ARGUMENT or
 * WEIR_ERROR_INVALID_USAGE nothing has been sent and the communicator is as before; after any other
 * error only abort, destroy, shrink and the error queries are of use.
 *
 * Blocking or not. Every operation takes a last argument `weir_request_t* request`. With NULL the
 * call returns when the operation is complete. Otherwise it returns at once and *request is to be
 * given to weir_test or weir_wait exactly once until it reports completion.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_VERSION_MAJOR 0
#define WEIR_VERSION_MINOR 1
#define WEIR_VERSION_PATCH 0
#define WEIR_VERSION (WEIR_VERSION_MAJOR * 10000 + WEIR_VERSION_MINOR * 100 + WEIR_VERSION_PATCH)

#if defined(__GNUC__)
#define WEIR_API __attribute__((visibility("default")))
#define WEIR_MUST_CHECK __attribute__((warn_unused_result))
#else
#define WEIR_API
#define WEIR_MUST_CHECK
#endif

/* Enumerations are as wide as int in C++ too: a wrong number is an error there, not undefined. */
#ifdef __cplusplus
#define WEIR_INT_ENUM : int
#else
#define WEIR_INT_ENUM
#endif

typedef struct weir_comm* weir_comm_t;
typedef struct weir_request* weir_request_t;
typedef struct weir_window* weir_window_t;

/* Grouped by the largest thing that an error destroys: nothing, the operation, the communicator. */
typedef enum weir_result WEIR_INT_ENUM {
  WEIR_OK = 0,
  WEIR_IN_PROGRESS = 1,
  /* Nothing was started. */
  WEIR_ERROR_INVALID_ARGUMENT = 2, /* a value is out of range, NULL or overflows */
  WEIR_ERROR_INVALID_USAGE = 3,    /* calls in an order that is not allowed */
  WEIR_ERROR_UNSUPPORTED = 4,      /* legal, but not on this machine, transport or build */
  WEIR_ERROR_NO_MEMORY = 5,
  /* The communicator must be aborted, destroyed or shrunk. */
  WEIR_ERROR_SYSTEM = 6,    /* a system call failed; the text holds the call and errno */
  WEIR_ERROR_MISMATCH = 7,  /* ranks called different operations, sizes or types */
  WEIR_ERROR_TIMEOUT = 8,   /* the deadline passed; the text names whom it waited for */
  WEIR_ERROR_PEER_LOST = 9, /* a rank died */
  WEIR_ERROR_ABORTED = 10,  /* this rank or a peer aborted the communicator */
  WEIR_ERROR_REFUSED = 11,  /* a peer is not who it must be (credentials, cookie, version) */
  WEIR_ERROR_INTERNAL = 12
} weir_result_t;

/* Element types. Numbers are those of ncclDataType_t. fp8 types are the OCP formats. */
typedef enum weir_datatype WEIR_INT_ENUM {
  WEIR_INT8 = 0,
  WEIR_UINT8 = 1,
  WEIR_INT32 = 2,
  WEIR_UINT32 = 3,
  WEIR_INT64 = 4,
  WEIR_UINT64 = 5,
  WEIR_FLOAT16 = 6,
  WEIR_FLOAT32 = 7,
  WEIR_FLOAT64 = 8,
  WEIR_BFLOAT16 = 9,
  WEIR_FLOAT8_E4M3 = 10,
  WEIR_FLOAT8_E5M2 = 11
} weir_datatype_t;

/*
 * Reductions. Numbers are those of ncclRedOp_t; values of 16 and above are made by
 * weir_redop_create_premul_sum. f16, bf16 and fp8 are accumulated in f32 within one reduction and
 * rounded to nearest even once. Average is the sum divided by the number of ranks (integers:
 * truncated towards zero). Integer sums and products wrap.
 */
typedef int weir_redop_t;
enum { WEIR_SUM = 0, WEIR_PROD = 1, WEIR_MAX = 2, WEIR_MIN = 3, WEIR_AVG = 4 };

/* Made by one rank, given to the others by any means (a file, a broadcast, an argument). */
typedef struct weir_unique_id {
  unsigned char bytes[128];
} weir_unique_id_t;

enum {
  /* Results are bit-identical whatever algorithm, chunk size and transport are used: every element
   * is one fold over the ranks in rank order. */
  WEIR_COMM_DETERMINISTIC = 1u << 0,
  /* All buffers are memory that the host can read and write: no call asks the CUDA driver. */
  WEIR_COMM_HOST_MEMORY = 1u << 1
};

/* Start from WEIR_COMM_CONFIG_INIT; fields may be appended in later versions. */
typedef struct weir_comm_config {
  size_t struct_bytes;
  int64_t timeout_ms; /* deadline of each operation; 0: WEIR_TIMEOUT_MS */
  uint32_t flags;     /* WEIR_COMM_* */
  const char* name;   /* appears in errors and logs; NULL: a number. Copied. */
} weir_comm_config_t;

#define WEIR_COMM_CONFIG_INIT \
  { sizeof(weir_comm_config_t), 0, 0, NULL }

/* ---- The library ---------------------------------------------------------------------------- */

/* WEIR_VERSION of the library that is loaded. */
WEIR_API int weir_version(void);

/* A static English name of the result, never NULL. */
WEIR_API const char* weir_result_string(weir_result_t result);

/* Text of the last error on `comm`, or of the calling thread's last failed call when comm is NULL.
 * Empty when there was none. Valid until the same thread asks again. */
WEIR_API const char* weir_last_error(weir_comm_t comm);

/* ---- Communicators -------------------------------------------------------------------------- */

/* Makes an id that is good for one communicator. At least one rank must run on the host of the
 * process that makes it, most simply rank 0: the id tells the others where to look. Whoever holds
 * it can join, so hand it on as you would a password. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_get_unique_id(weir_unique_id_t* id);

/* Collective over `rank_count` callers with distinct `rank` in [0, rank_count). Blocks until all
 * have arrived or the deadline passes (then the missing ranks are named). config may be NULL. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_create(weir_comm_t* comm, int rank_count,
                                                        const weir_unique_id_t* id, int rank,
                                                        const weir_comm_config_t* config);

/* The same with rank, size and meeting point from the launcher's environment: WEIR_RANK and
 * WEIR_SIZE, torchrun, Open MPI, MPICH (PMI), Slurm; between machines see docs/startup.md. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_create_from_env(weir_comm_t* comm,
                                                                 const weir_comm_config_t* config);

/* Collective over `comm`. Ranks with the same `color` >= 0 form a new communicator, ordered by
 * (key, old rank). color -1 takes part and receives NULL. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_split(weir_comm_t comm, int color, int key,
                                                       const weir_comm_config_t* config,
                                                       weir_comm_t* new_comm);

/* The ranks of `comm` that are lost, in ascending order: their process has ended, they have
 * destroyed the communicator, or an operation's deadline passed here or on a peer while it waited
 * for them.
 * `*count` receives their number, `ranks` the first `capacity` of them. For shrink: ranks that call
 * this after an error get the same list unless another rank is lost between their calls; then the
 * shrink fails, at once where the other one died and else at its deadline, and is to be repeated
 * with a new list. A rank that finds itself in the list was too slow for the others. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_lost_ranks(weir_comm_t comm, int* ranks,
                                                            int capacity, int* count);

/* Called by all ranks of `comm` but the `excluded_count` ranks listed in `excluded_ranks` (dead or
 * not), also after an error on `comm`. Ranks keep their order. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_shrink(weir_comm_t comm, const int* excluded_ranks,
                                                        int excluded_count,
                                                        const weir_comm_config_t* config,
                                                        weir_comm_t* new_comm);

/* Local and bounded (under 100 ms), from any thread, whatever peers do: operations in flight on
 * `comm` return WEIR_ERROR_ABORTED here; peers are told. The handle stays valid until destroy. */
WEIR_API weir_result_t weir_comm_abort(weir_comm_t comm);

/* Frees the communicator. Operations in flight are aborted; their requests still take weir_wait and
 * weir_test. In a child made by fork those of the parent go on. NULL is accepted. */
WEIR_API weir_result_t weir_comm_destroy(weir_comm_t comm);

WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_rank(weir_comm_t comm, int* rank);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_size(weir_comm_t comm, int* rank_count);

/* How long the parts of making a communicator took on this rank, in nanoseconds, in the order in which
 * they happen. */
typedef struct weir_start_times {
  size_t struct_bytes;
  uint64_t rendezvous_ns; /* until this rank had its place among the others */
  uint64_t handshake_ns;  /* until all ranks had one, each proven */
  uint64_t exchange_ns;   /* opening the transport and telling each other about ourselves */
  uint64_t connect_ns;    /* the transport's connections */
  uint64_t costs_ns;      /* agreeing on measured costs, and measuring them where none are kept */
} weir_start_times_t;

#define WEIR_START_TIMES_INIT \
  { sizeof(weir_start_times_t), 0, 0, 0, 0, 0 }

/* `times` begins as WEIR_START_TIMES_INIT. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_start_times(weir_comm_t comm,
                                                             weir_start_times_t* times);

/* The error that the communicator is in, WEIR_OK while it is healthy. Lock-free. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_async_error(weir_comm_t comm,
                                                             weir_result_t* error);

/* Deadline of the operations that start from now on; > 0. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_set_timeout(weir_comm_t comm, int64_t timeout_ms);

/* ---- Memory --------------------------------------------------------------------------------- */

/* Collective. `bytes` of memory on every rank that every rank's transport can reach directly: an
 * operation whose buffers lie in such memory moves data once (zero copy). 64-byte aligned at least.
 * `bytes` must be the same on every rank. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_mem_alloc(weir_comm_t comm, size_t bytes,
                                                      void** memory);

/* Collective, with what weir_mem_alloc returned. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_mem_free(weir_comm_t comm, void* memory);

/* Collective. Makes the caller's own memory known to the transports, for as long as the window
 * lives. `bytes` and the result may differ between ranks. Where a transport cannot use it, the call
 * succeeds and operations copy as before. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_register(weir_comm_t comm, void* memory, size_t bytes,
                                                     weir_window_t* window);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_deregister(weir_comm_t comm, weir_window_t window);

/* ---- Memory of devices ---------------------------------------------------------------------- */
/*
 * Collectives take memory of a CUDA device as they take that of the host, one kind per call: all
 * buffers that a call uses, on every rank, lie on devices, or all in memory that the host can read
 * (managed and pinned memory are). They go to the real NCCL as whole collectives; what is missing
 * for that is WEIR_ERROR_UNSUPPORTED on every rank, and the communicator stays as it was. The first
 * such call makes an NCCL communicator of all ranks. docs/nccl_plugin.md. Messages (weir_send, weir_recv) go by
 * a transport that takes such memory, else they are WEIR_ERROR_UNSUPPORTED. Barriers are the host's.
 *
 * Without a stream the buffers must be ready when an operation is called, and it is complete when
 * the device is done with it. With weir_comm_set_stream operations are ordered behind what the stream
 * holds. A collective's call returns once it is on the stream, its request is complete when the device
 * is done. A message begins when the stream has come to its call; the stream does not wait for it.
 */

#define WEIR_NO_STREAM ((void*)(intptr_t)-1)

/* Operations on device memory that are called from now on go by `stream`, a cudaStream_t or CUstream of
 * their device (NULL: the default stream), which stays the caller's; WEIR_NO_STREAM: as at the
 * beginning. Each rank may have its own choice. WEIR_ERROR_UNSUPPORTED without a CUDA driver. Also
 * looks for a driver that the program has started since the communicator was made. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_set_stream(weir_comm_t comm, void* stream);

/* ---- Reductions with a factor --------------------------------------------------------------- */

/* Sum of *scalar (one element of `type`, read now; each rank may have its own) times its input. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_redop_create_premul_sum(weir_comm_t comm,
                                                                    const void* scalar,
                                                                    weir_datatype_t type,
                                                                    weir_redop_t* op);
/* Operations already started keep their own copy of the factor. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_redop_destroy(weir_comm_t comm, weir_redop_t op);

/* ---- Collectives ---------------------------------------------------------------------------- */
/* n is the number of ranks, r the calling rank. Counts are elements; zero is legal. */

/* recv[i] = op over ranks of send[i], i < count. In place: send == recv. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_all_reduce(weir_comm_t comm, const void* send,
                                                       void* recv, size_t count,
                                                       weir_datatype_t type, weir_redop_t op,
                                                       weir_request_t* request);

/* As all-reduce; only `root` receives. recv may be NULL elsewhere. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_reduce(weir_comm_t comm, const void* send, void* recv,
                                                   size_t count, weir_datatype_t type,
                                                   weir_redop_t op, int root,
                                                   weir_request_t* request);

/* recv of every rank = send of root. send may be NULL elsewhere. In place: send == recv. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_broadcast(weir_comm_t comm, const void* send,
                                                      void* recv, size_t count,
                                                      weir_datatype_t type, int root,
                                                      weir_request_t* request);

/* send holds n blocks of recv_count; recv = op over ranks of block r.
 * In place: recv == send + r * recv_count elements. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_reduce_scatter(weir_comm_t comm, const void* send,
                                                           void* recv, size_t recv_count,
                                                           weir_datatype_t type, weir_redop_t op,
                                                           weir_request_t* request);

/* Block i has counts[i] elements; blocks follow each other in send. `counts` has n entries, the
 * same on every rank, and is read before the call returns. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_reduce_scatter_v(weir_comm_t comm, const void* send,
                                                             void* recv, const size_t* counts,
                                                             weir_datatype_t type, weir_redop_t op,
                                                             weir_request_t* request);

/* recv holds n blocks of send_count; block i = send of rank i.
 * In place: send == recv + r * send_count elements. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_all_gather(weir_comm_t comm, const void* send,
                                                       void* recv, size_t send_count,
                                                       weir_datatype_t type,
                                                       weir_request_t* request);

/* Block i has counts[i] elements and starts at element displacements[i] of recv (NULL: blocks
 * follow each other). The caller sends counts[r]. Same `counts` on every rank. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_all_gather_v(weir_comm_t comm, const void* send,
                                                         void* recv, const size_t* counts,
                                                         const size_t* displacements,
                                                         weir_datatype_t type,
                                                         weir_request_t* request);

/* send and recv hold n blocks of `count`; block i of recv = block r of rank i's send.
 * In place: send == recv. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_all_to_all(weir_comm_t comm, const void* send,
                                                       void* recv, size_t count,
                                                       weir_datatype_t type,
                                                       weir_request_t* request);

/* send_counts[i] of rank r must equal recv_counts[r] of rank i. Displacements are in elements;
 * NULL: blocks follow each other. */
WEIR_API WEIR_MUST_CHECK weir_result_t
weir_all_to_all_v(weir_comm_t comm, const void* send, const size_t* send_counts,
                  const size_t* send_displacements, void* recv, const size_t* recv_counts,
                  const size_t* recv_displacements, weir_datatype_t type, weir_request_t* request);

/* recv of root holds n blocks of send_count. In place at root: send == recv + root * send_count. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_gather(weir_comm_t comm, const void* send, void* recv,
                                                   size_t send_count, weir_datatype_t type,
                                                   int root, weir_request_t* request);

/* send of root holds n blocks of recv_count. In place at root: recv == send + root * recv_count. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_scatter(weir_comm_t comm, const void* send, void* recv,
                                                    size_t recv_count, weir_datatype_t type,
                                                    int root, weir_request_t* request);

/* Returns on every rank after every rank has called it. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_barrier(weir_comm_t comm, weir_request_t* request);

/* ---- Point to point ------------------------------------------------------------------------- */
/* The k-th send of rank a to rank b meets the k-th recv of b from a; types and counts must agree.
 * Sending to oneself is legal inside a group or with a request. */

WEIR_API WEIR_MUST_CHECK weir_result_t weir_send(weir_comm_t comm, const void* buffer, size_t count,
                                                 weir_datatype_t type, int peer,
                                                 weir_request_t* request);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_recv(weir_comm_t comm, void* buffer, size_t count,
                                                 weir_datatype_t type, int peer,
                                                 weir_request_t* request);

/* ---- Groups and requests -------------------------------------------------------------------- */

/* Operations called by this thread between start and end are started together by the outermost end,
 * whatever their order: a group cannot deadlock within itself. Operations with request == NULL are
 * complete when the outermost end returns. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_group_start(void);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_group_end(void);

/* Makes progress. *done becomes 1 and *request NULL when the operation is complete or has failed.
 */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_test(weir_request_t* request, int* done);
/* Blocks until complete or the operation's deadline. *request becomes NULL. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_wait(weir_request_t* request);
/* Waits for all; returns the first error. NULL entries are skipped. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_wait_all(weir_request_t* requests,
                                                     size_t request_count);

#ifdef __cplusplus
}
#endif

#endif /* WEIR_WEIR_H_ */
