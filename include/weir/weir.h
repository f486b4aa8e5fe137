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
 * Ownership. Handles are opaque. The caller owns what `create`, `split`, `shrink`, `alloc`,
 * `register` return, and ends it with the matching `destroy`, `free`, `deregister`. Buffers belong
 * to the caller; a buffer of an operation in flight may be neither freed nor written (nor read, if
 * it receives) until the operation completes.
 *
 * Threads. Calls on one communicator may come from any thread and are serialized inside. Calls on
 * different communicators run in parallel. `weir_comm_abort`, `weir_comm_async_error` and
 * `weir_last_error` never wait for another thread. `weir_comm_destroy` is the last call: no other
 * thread may be in a call on the communicator or make one any more, just as with free(); to end the
 * calls of other threads, call `weir_comm_abort`, wait until they have returned, and destroy it. A
 * group (`weir_group_start`) belongs to the thread that opened it.
 *
 * Fork. A handle belongs to the process that made it. In a child made by fork() or clone() every
 * call with it returns WEIR_ERROR_INVALID_USAGE and has no effect on the parent and its peers. The
 * exception is weir_comm_destroy, which frees the child's copies and notifies no peer. A group that
 * was open in the parent is not open in the child. The child may make communicators of its own. See
 * docs/fork.md.
 *
 * Errors. Every function returns a weir_result_t and never throws, exits or blocks for ever: each
 * operation has a deadline. The text of the last error (`weir_last_error`) names the rank, the
 * peer, the operation, its sequence number and the remedy. After WEIR_ERROR_INVALID_ARGUMENT or
 * WEIR_ERROR_INVALID_USAGE nothing has been sent and the communicator is as before; after any other
 * error only abort, destroy, shrink and the error queries are of use.
 *
 * Blocking or not. Every operation takes a last argument `weir_request_t* request`. With NULL the
 * call returns when the operation is complete. Otherwise it returns at once, and *request (NULL if
 * the call has failed) must be given to weir_test or weir_wait until one of them has reported
 * completion, and not again afterwards.
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
typedef struct weir_arena* weir_arena_t;

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
  WEIR_ERROR_TIMEOUT = 8,   /* the deadline passed; the text names the awaited ranks */
  WEIR_ERROR_PEER_LOST = 9, /* a rank died */
  WEIR_ERROR_ABORTED = 10,  /* this rank or a peer aborted the communicator */
  WEIR_ERROR_REFUSED = 11,  /* a peer failed an identity check (credentials, cookie, version) */
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
 * weir_redop_create_premul_sum. f16, bf16 and fp8 are folded in f32 and rounded to nearest
 * even wherever a rank stores or sends a result: once per element in a deterministic communicator
 * and in algorithms that fold all contributions in one place, at each hop in rings and recursive
 * algorithms. Average is the sum divided by the number of ranks (integers:
 * truncated towards zero). Integer sums and products wrap.
 *
 * Too large a result is infinity where the type has it, and NaN in fp8-e4m3, so that an overflow
 * stays visible; a NaN among the operands gives NaN. With WEIR_COMM_NCCL_ARITHMETIC, and always on
 * memory of devices, as in libnccl.so.2: too large a result of fp8 is the largest number with its
 * sign (448, 57344), and maximum and minimum ignore NaN unless all operands are NaN.
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
  WEIR_COMM_HOST_MEMORY = 1u << 1,
  /* Reductions of floating-point numbers follow NCCL's kernels (below); the same on all ranks. */
  WEIR_COMM_NCCL_ARITHMETIC = 1u << 2
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

/* Makes an id for one communicator. At least one rank must run on the host of the process that
 * makes it, most simply rank 0: the id tells the others where to connect. Every process that holds
 * the id can join, so treat it as a password. */
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
 * for them. `*count` receives their number, `ranks` the first `capacity` of them. For shrink: ranks
 * that call this after an error get the same list unless another rank is lost between their calls;
 * in that case the shrink fails (at once if that rank died, otherwise at its deadline) and must be
 * repeated with a new list. A rank that finds itself in the list was too slow: the others go
 * on without it, and it can only destroy the communicator. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_lost_ranks(weir_comm_t comm, int* ranks,
                                                            int capacity, int* count);

/* Called by all ranks of `comm` except the `excluded_count` ranks listed in `excluded_ranks` (dead
 * or not), also after an error on `comm`. Ranks keep their order. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_shrink(weir_comm_t comm, const int* excluded_ranks,
                                                        int excluded_count,
                                                        const weir_comm_config_t* config,
                                                        weir_comm_t* new_comm);

/* Local and bounded (under 100 ms), whatever peers do; may be called from any thread. Operations in
 * flight on `comm` return WEIR_ERROR_ABORTED on this rank, and peers are notified. The handle stays
 * valid until destroy. */
WEIR_API weir_result_t weir_comm_abort(weir_comm_t comm);

/* Frees the communicator. Operations in flight, and those in this thread's open group, whose end
 * leaves them out, are aborted; their requests may still be given to weir_wait and weir_test. No
 * other thread may be in a call on it. After fork a parent's operations continue. NULL is fine. */
WEIR_API weir_result_t weir_comm_destroy(weir_comm_t comm);

WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_rank(weir_comm_t comm, int* rank);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_size(weir_comm_t comm, int* rank_count);

/* How long each part of making a communicator took on this rank, in nanoseconds, in their order. */
typedef struct weir_start_times {
  size_t struct_bytes;
  uint64_t rendezvous_ns; /* until this rank had its place in the bootstrap */
  uint64_t handshake_ns;  /* until all ranks had one and had proven the secret */
  uint64_t exchange_ns;   /* opening the transport and exchanging introductions */
  uint64_t connect_ns;    /* the transport's connections */
  uint64_t costs_ns;      /* agreeing on measured costs, and measuring them where none are kept */
} weir_start_times_t;

#define WEIR_START_TIMES_INIT \
  { sizeof(weir_start_times_t), 0, 0, 0, 0, 0 }

/* `times` begins as WEIR_START_TIMES_INIT. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_start_times(weir_comm_t comm,
                                                             weir_start_times_t* times);

enum {
  /* The programs are used wherever they can be, before the tuning file and predicted times; only
   * WEIR_ALGORITHM goes first. */
  WEIR_PROGRAM_PREFERRED = 1u << 0
};

/* Collective over `comm`. Adds a set of programs, one per rank of `comm`, that may then be chosen
 * for the collective that they perform, like an algorithm of Weir's own (docs/routing.md). `text`
 * holds `bytes` bytes, at most 32 MiB, of Weir's JSON or of MSCCL's XML (docs/schedules.md); `name`
 * is the algorithm's name, 1 to 64 letters, digits, '_', '-' and '.'. Both are copied. `flags`:
 * WEIR_PROGRAM_*. All ranks pass the same; all add it or none does. It stays until `comm` is
 * destroyed; communicators made of `comm` lack it. What other threads call meanwhile begins later.
 *
 * Errors, on all ranks: WEIR_ERROR_INVALID_ARGUMENT when the programs are wrong (the text names the
 * operation), are for another number of ranks, have a name that is taken, or are not the same on
 * all ranks (it names the rank); WEIR_ERROR_UNSUPPORTED when no call could run them here;
 * WEIR_ERROR_INVALID_USAGE while a collective of some rank is in flight, where one rank has begun
 * more of them than another, and after one on device memory. `comm` is as before then.
 * WEIR_ERROR_TIMEOUT when a rank does not call, WEIR_ERROR_PEER_LOST when it has died or left. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_add_program(weir_comm_t comm, const char* name,
                                                             const void* text, size_t bytes,
                                                             uint32_t flags);

/* The error that the communicator is in, WEIR_OK while it is healthy. Lock-free. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_async_error(weir_comm_t comm,
                                                             weir_result_t* error);

/* Deadline of the operations that start from now on; > 0. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_set_timeout(weir_comm_t comm, int64_t timeout_ms);

/* ---- Memory --------------------------------------------------------------------------------- */

/* Collective. `bytes` of memory on every rank that every rank's transport can reach directly: an
 * operation whose buffers lie in such memory moves data once (zero copy). 64-byte aligned at least.
 * `bytes` > 0 must be the same on every rank: else WEIR_ERROR_MISMATCH on all of them, and `comm`
 * is as before. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_mem_alloc(weir_comm_t comm, size_t bytes,
                                                      void** memory);

/* Collective, with what weir_mem_alloc returned. WEIR_ERROR_INVALID_USAGE: a window of this rank
 * (weir_window_create) lies in it; end that first. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_mem_free(weir_comm_t comm, void* memory);

/* Collective. Makes the caller's own memory known to the transports, for as long as the window
 * lives. `bytes` and the result may differ between ranks. Where a transport cannot use it, the call
 * succeeds and operations copy as before. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_register(weir_comm_t comm, void* memory, size_t bytes,
                                                     weir_window_t* window);

/* Collective. As weir_register, with the promise that all ranks pass buffers at the same offset of
 * `memory` to a collective (NCCL_WIN_COLL_SYMMETRIC). Peers then read buffers on devices where they
 * lie, in collectives of more than 128 KiB a rank: docs/device_memory.md says in which, and of what
 * memory. Elsewhere, and where a rank cannot reach another's memory, the call succeeds and
 * operations copy as before; WEIR_EXPLAIN=1 says why. `bytes` may differ: what lies behind the
 * fewest is copied. The caller keeps the memory. May wait for the device. Buffers at different
 * offsets, or registered on some ranks only, are WEIR_ERROR_MISMATCH of the collective. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_register_symmetric(weir_comm_t comm, void* memory,
                                                               size_t bytes, weir_window_t* window);

/* Ends a registration; a second call is refused. Waits for no rank, but may for the device. Each
 * rank calls it when its operations on the memory are complete and its graphs of them destroyed,
 * between the same collectives as the others, and all before one frees it. NULL is accepted. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_deregister(weir_comm_t comm, weir_window_t window);

/*
 * An arena is memory of each rank that every rank's transport reaches directly, made once by all
 * ranks. From then on each rank takes buffers from it and gives them back by itself, in any order
 * and of any size. A collective of `comm` moves data once wherever a buffer lies in an arena, at
 * whatever offset on each rank: each rank tells with the first signal of the call where its buffers
 * lie. A buffer of a rank that lies elsewhere, or not as a whole in one arena, passes through slots
 * as before, in the same call. Small calls, all_reduce and reduce always do, all_to_all_v unless
 * the send buffers of all ranks lie in arenas (docs/transports.md). Other communicators, also those
 * split from `comm` or shrunk, treat the buffers as ordinary memory.
 * Threads. weir_arena_alloc, weir_arena_free and weir_arena_info may be called from any thread,
 * also inside a callback; they take O(log n) for n buffers and wait for no rank. weir_arena_destroy
 * is the last call, as weir_comm_destroy is.
 * When a buffer may be freed. Once each operation that uses it is complete, as for any memory: no
 * rank reads it any more, and no rank ever writes the arena memory of another in a collective. It
 * may be handed out again at once. Its content then is what was there last; memory that was never
 * used is zero.
 * Pages. `bytes` is address space: memory is taken when pages are touched (up to 64 MiB a rank with
 * huge pages at once), and returned when all ranks of the host have destroyed the arena or ended.
 * The communicator may be destroyed, shrunk or aborted first: the arena is then ordinary memory, in
 * which the buffers stay as they are; alloc, free and destroy work as before.
 * Fork. In a child the functions return WEIR_ERROR_INVALID_USAGE, except weir_arena_destroy, which
 * unmaps the child's copy; until then the child may read the buffers, and must not write.
 * Errors. Texts are those of weir_last_error(NULL), from weir_arena_create also of `comm`.
 */

/* Collective. `bytes` on each rank, at least 64, the same on every rank: else WEIR_ERROR_MISMATCH
 * on all of them, and `comm` is as before. Where no transport reaches another rank's memory, the
 * arena is ordinary memory, and operations copy as before. At most 1024 arenas per communicator,
 * destroyed ones included: WEIR_ERROR_NO_MEMORY for more; a large arena serves as many buffers. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_arena_create(weir_comm_t comm, size_t bytes,
                                                         weir_arena_t* arena);

/* Local. *memory has `bytes` > 0 bytes, aligned to 64. WEIR_ERROR_NO_MEMORY when no free piece is
 * that long (*memory is NULL then): the text says how many bytes were asked for, how many are in
 * use, and how long the largest free piece is. The communicator is as before. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_arena_alloc(weir_arena_t arena, size_t bytes,
                                                        void** memory);

/* Local, with what weir_arena_alloc returned; NULL is accepted. WEIR_ERROR_INVALID_ARGUMENT: the
 * memory is not of this arena, is no buffer's beginning, or was freed already; nothing has changed
 * then. One-sided windows in the buffer must have ended. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_arena_free(weir_arena_t arena, void* memory);

typedef struct weir_arena_usage {
  size_t struct_bytes;
  size_t bytes;              /* of this rank's memory */
  size_t used_bytes;         /* in buffers, each rounded up to 64 */
  size_t largest_free_bytes; /* the longest buffer that can be had now */
  size_t buffer_count;
  int is_shared; /* 1: other ranks reach the memory; 0: it is ordinary memory */
  /* What this rank has read and written in collectives of the arena's communicator in which ranks
   * use each other's buffers where they lie, since the arena was made: 2 bytes for a byte that is
   * copied, n + 1 for one that is folded from n. To find out whether a program's buffers are
   * used. */
  uint64_t touched_bytes;
} weir_arena_usage_t;

#define WEIR_ARENA_USAGE_INIT \
  { sizeof(weir_arena_usage_t), 0, 0, 0, 0, 0, 0 }

/* Local. `usage` begins as WEIR_ARENA_USAGE_INIT. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_arena_info(weir_arena_t arena,
                                                       weir_arena_usage_t* usage);

/* Ends the arena on this rank; waits for no other. Each rank calls it at a time of its own, once no
 * rank passes a buffer of the arena to a collective any more: a rank that meets one there after
 * this call returns WEIR_ERROR_MISMATCH. WEIR_ERROR_INVALID_USAGE, and the arena is as before: some
 * of its buffers are in use, or a one-sided window of this rank lies in it. NULL is accepted. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_arena_destroy(weir_arena_t arena);

/* ---- Memory of devices ---------------------------------------------------------------------- */
/*
 * Collectives accept memory of a CUDA device or of the host, one kind per call: the buffers that a
 * call uses, on every rank, lie either all on devices or all in memory that the host can read
 * (managed and pinned memory included). Operations on device memory go directly between the devices
 * of one machine; else collectives (and the v-variants) go to the real NCCL, and messages, both
 * ends of which lie on devices, to the transport if it takes them. If neither is possible, they
 * return WEIR_ERROR_UNSUPPORTED, collectives on every rank, and the communicator stays as it was.
 * Barriers run on the host. See docs/device_memory.md.
 * What the direct way needs is made with the communicator if every rank has a CUDA context in the
 * calling thread then, whose device is the rank's; otherwise by the first collective on device
 * memory, before which messages are WEIR_ERROR_UNSUPPORTED.
 * Without a stream the buffers must be ready when an operation is called, and it is complete when
 * the device has finished it. With weir_comm_set_stream operations are work of the stream: a call
 * returns once the operation is on the stream. Messages on a stream that must not wait for each
 * other belong in one group. A message of the transport's begins when the stream reaches its call;
 * the stream does not wait for it.
 */

#define WEIR_NO_STREAM ((void*)(intptr_t)-1)

/* Operations on device memory that are called from now on use `stream`, a cudaStream_t or CUstream
 * of their device (NULL: the default stream), which the caller continues to own; WEIR_NO_STREAM: no
 * stream, as initially. Ranks may choose differently. WEIR_ERROR_UNSUPPORTED without a CUDA driver.
 * Also looks for a driver that the program has started since the communicator was made. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_comm_set_stream(weir_comm_t comm, void* stream);

/* ---- Reductions with a factor --------------------------------------------------------------- */

/* A sum in which each rank's input is multiplied by its *scalar (one element of `type`, read within
 * this call; it may differ between ranks). */
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
 * follow each other; that of an empty block is ignored). The caller sends counts[r]. Same `counts`
 * on every rank. */
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
 * NULL: blocks follow each other; that of an empty block is ignored. send and recv must be
 * different buffers. */
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

/* ---- Sums over leaves ----------------------------------------------------------------------- */
/*
 * A reduction over a fixed number L of operands, the *leaves*, whose bits do not depend on the
 * number of ranks: not on n, nor on size, transport, algorithm and instruction set. Leaves are, for
 * example, L parts of the inner dimension of a matrix product, of which each of n ranks computes
 * L / n products (tensor parallelism), or L microbatches (data parallelism).
 *
 * Order. Every element is folded as a balanced binary tree:
 *   node(0, k) = leaf k
 *   node(l, k) = node(l - 1, 2k) op node(l - 1, 2k + 1)
 *   result     = node(ceil(log2(L)), 0)
 * A node without one of its two operands is the other one, unchanged, and without both it is
 * absent; leaves from L on are absent, and the caller may leave out others. So an absent leaf never
 * turns -0 into +0.
 *
 * Arithmetic. Leaves are of `type`, or *partial results* already: f32 for f16, bf16 and fp8, else
 * of the type itself. All folds are in partial results; the result is divided, if it is an average,
 * by L, whether or not all leaves are present, and then rounded once, to nearest even. Otherwise as
 * weir_redop_t says, without WEIR_COMM_NCCL_ARITHMETIC; a NaN in a result is the positive quiet
 * one. If no leaf is present the result is the neutral value: of sum and average -0 (integers 0),
 * of product 1, of maximum the least value of a partial result (-infinity), of minimum the
 * greatest. The bits are those of a thread in the default floating-point environment. Reductions:
 * WEIR_SUM, WEIR_AVG, WEIR_PROD, WEIR_MAX, WEIR_MIN; not those of weir_redop_create_premul_sum.
 *
 * Shares. Rank r of n holds consecutive leaves (weir_leaf_share), as many as the others or one
 * more. It folds them to *nodes* of the tree (weir_tree_fold, which needs no communicator) and
 * gives these to a collective, where they meet those of the other ranks. A share of 2^k leaves that
 * begins at a multiple of 2^k is one node; others are several, so L and n should be powers of two
 * where speed counts: then each rank sends as much as in weir_all_reduce of partial results.
 * Docs: docs/leaves.md.
 */

#define WEIR_LEAF_COUNT_MAX 32768

/* The type of partial results of `type`; `type` itself for an unknown one. */
WEIR_API weir_datatype_t weir_partial_type(weir_datatype_t type);

/* What a rank holds. It begins as WEIR_LEAF_SHARE_INIT. */
typedef struct weir_leaf_share_t {
  size_t struct_bytes;
  int first_leaf;
  int leaf_count;    /* of this rank; 0 for some ranks if there are fewer leaves than ranks */
  int node_count;    /* that its leaves are folded to: at most 1 + 2 log2(leaf_count) */
  int node_capacity; /* arrays that weir_tree_fold needs, at least node_count */
} weir_leaf_share_t;

#define WEIR_LEAF_SHARE_INIT \
  { sizeof(weir_leaf_share_t), 0, 0, 0, 0 }

/* The share of `rank` of `rank_count`, of `leaf_count` leaves in all (1 to WEIR_LEAF_COUNT_MAX).
 * The first leaf_count % rank_count ranks have one leaf more than the others. Thread-safe. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_leaf_share(int leaf_count, int rank_count, int rank,
                                                       weir_leaf_share_t* share);

/* The leaves of a rank on their way to nodes. It begins as WEIR_TREE_FOLD_INIT with the fields up
 * to `nodes` set; these stay as they are until the last leaf. Used by one thread at a time. */
typedef struct weir_tree_fold_t {
  size_t struct_bytes;
  int leaf_count; /* of all ranks */
  int rank_count;
  int rank;
  weir_datatype_t type;
  weir_redop_t op; /* WEIR_AVG: sums, which the collective divides */
  size_t count;    /* elements of a leaf */
  /* The caller's memory: node_capacity arrays of `count` partial results, one after the other. */
  void* nodes;
  /* Written by weir_tree_fold. 0 begins again. */
  int folded_count; /* leaves of this rank so far */
  uint64_t state;
} weir_tree_fold_t;

#define WEIR_TREE_FOLD_INIT \
  { sizeof(weir_tree_fold_t), 0, 0, 0, WEIR_FLOAT32, WEIR_SUM, 0, NULL, 0, 0 }

/* Folds the next leaves of the rank, in their order: all in one call, or one by one as they are
 * computed. leaves[i]: `count` elements of `leaf_type` (fold->type or its partial type) outside of
 * fold->nodes, only read, and free again when the call returns; NULL: this leaf is absent. `leaves`
 * NULL: all of these are. After the last leaf of the share the first node_count arrays of `nodes`
 * are the rank's nodes; absent ones are filled with a value that changes no other. Local; makes no
 * use of a communicator. WEIR_ERROR_INVALID_ARGUMENT: a field or an argument is out of range, or
 * these are more leaves than are left; nothing was folded. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_tree_fold(weir_tree_fold_t* fold,
                                                      const void* const* leaves, int leaf_count,
                                                      weir_datatype_t leaf_type);

/* Collective. result[i] of every rank = the tree over all `leaf_count` leaves, i < count. `nodes`:
 * node_count arrays of `count` partial results, as weir_tree_fold leaves them (NULL if there are
 * none). leaf_count, count, type and op are the same on all ranks, else WEIR_ERROR_MISMATCH on all.
 * In place: result == nodes, if the type is its own partial type. Host memory only. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_all_reduce_leaves(weir_comm_t comm, const void* nodes,
                                                              void* result, size_t count,
                                                              int leaf_count, weir_datatype_t type,
                                                              weir_redop_t op,
                                                              weir_request_t* request);

/* Likewise; only `root` receives. result may be NULL elsewhere. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_reduce_leaves(weir_comm_t comm, const void* nodes,
                                                          void* result, size_t count,
                                                          int leaf_count, weir_datatype_t type,
                                                          weir_redop_t op, int root,
                                                          weir_request_t* request);

/* Likewise, of leaves that hold n blocks of recv_count: rank r receives block r. In place:
 * result == nodes + r * recv_count elements. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_reduce_scatter_leaves(
    weir_comm_t comm, const void* nodes, void* result, size_t recv_count, int leaf_count,
    weir_datatype_t type, weir_redop_t op, weir_request_t* request);

/* ---- Point to point ------------------------------------------------------------------------- */
/* The k-th send of rank a to rank b meets the k-th recv of b from a; types and counts must agree.
 * Different numbers of bytes are WEIR_ERROR_MISMATCH; types of the same size are not compared.
 * Sending to oneself is legal inside a group or with a request. */

WEIR_API WEIR_MUST_CHECK weir_result_t weir_send(weir_comm_t comm, const void* buffer, size_t count,
                                                 weir_datatype_t type, int peer,
                                                 weir_request_t* request);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_recv(weir_comm_t comm, void* buffer, size_t count,
                                                 weir_datatype_t type, int peer,
                                                 weir_request_t* request);

/* ---- Messages with tags ---------------------------------------------------------------------- */

/* A receive takes a message by its sender and tag, or from any sender, or with any tag, as MPI
 * matches them (MPI-4.1, 3.5): a message goes to the first of the receives that were posted and
 * fit; a receive takes the first of the messages that have come and fit; of two messages from one
 * rank that fit one receive, the one that was sent first. They do not meet weir_send and weir_recv,
 * and neither wait for each other.
 *
 * A send is complete when the buffer may be used again. Up to 16 KiB that may be before the receive
 * is posted, and need not be: it may wait until the receiver is in a call for a message with a tag.
 * A longer one waits for its receive.
 *
 * tag: 0 to INT_MAX. Types of the two ends are not compared. A message longer than the buffer is
 * WEIR_ERROR_MISMATCH on both ranks. Host memory only. A rank that has left or died ends the
 * operations that need it; a receive from any rank ends when no rank is left. The transports
 * `nccl` and others with fewer than three lanes have none: WEIR_ERROR_UNSUPPORTED. */

enum { WEIR_ANY_SOURCE = -1, WEIR_ANY_TAG = -1 };

/* Of a message that was received. */
typedef struct weir_tag_info {
  int source;
  int tag;
  size_t bytes; /* of the message */
} weir_tag_info_t;

/* To oneself, too; a blocking one of more than 16 KiB only after its receive was posted. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_tag_send(weir_comm_t comm, const void* buffer,
                                                     size_t count, weir_datatype_t type, int peer,
                                                     int tag, weir_request_t* request);
/* count: the room in `buffer`. source: a rank or WEIR_ANY_SOURCE. tag: or WEIR_ANY_TAG. info: NULL,
 * or written when the operation is complete, not before. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_tag_recv(weir_comm_t comm, void* buffer, size_t count,
                                                     weir_datatype_t type, int source, int tag,
                                                     weir_tag_info_t* info,
                                                     weir_request_t* request);

/* ---- Groups and requests -------------------------------------------------------------------- */

/* Operations called by this thread between start and end are started together by the outermost end,
 * whatever their order: a group cannot deadlock within itself. Operations with request == NULL are
 * complete when the outermost end returns. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_group_start(void);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_group_end(void);

/* Makes progress. *done becomes 1 and *request NULL when the operation is complete or has failed.
 * WEIR_ERROR_INVALID_ARGUMENT: *request is NULL. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_test(weir_request_t* request, int* done);
/* Blocks until complete or the operation's deadline. *request, which is no NULL, becomes NULL. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_wait(weir_request_t* request);
/* Waits for all; returns the first error. NULL entries are skipped. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_wait_all(weir_request_t* requests,
                                                     size_t request_count);

typedef void (*weir_completion_t)(void* context, weir_result_t result);

/* Calls `callback` once, with the result, when the operation is complete or has failed, also by
 * abort and by destroy. If that is already so, the callback runs within this call. Otherwise a
 * thread that makes progress calls it (one that waits, tests or starts an operation, or Weir's
 * progress thread, which this call starts), with no lock of Weir's held. The request must still be
 * given to weir_test or weir_wait, which may return before the callback is called.
 * weir_comm_destroy returns when the callbacks of its requests have returned.
 *
 * Inside a callback these may be called: operations with a request, weir_request_on_complete,
 * weir_test of a request that is known to be complete, weir_comm_rank, weir_comm_size,
 * weir_comm_async_error, weir_comm_abort, weir_last_error, weir_result_string. What would wait is
 * WEIR_ERROR_INVALID_USAGE there: other callbacks wait for this one. One callback per request. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_request_on_complete(weir_request_t request,
                                                                weir_completion_t callback,
                                                                void* context);

/* ---- One-sided operations ------------------------------------------------------------------- */
/*
 * An operation accesses memory of another rank, the *target*, which need not call anything for it.
 * The memory lies in a *window*: in weir_window_create each rank opens memory of its own, of its
 * own size, to all others. Offsets and sizes are bytes; words are 64 bits at an address that is a
 * multiple of 8, in the byte order of the machine. An operation on the caller's own rank is legal.
 *
 * When an operation is complete (the call has returned, or its request is):
 *   put, put_signal, signal    the caller may reuse the buffer; its bytes may not have arrived
 *   get                        the bytes are in the caller's buffer
 *   fetch_add, compare_swap    the word has been changed, and its previous value is at `old`
 *   wait_signal                the word has reached the value; what its signal covers can be read
 *   flush                      all earlier operations of this rank on the target are done there
 *
 * Order. Operations are unordered, also between the same two ranks, with these exceptions:
 *   weir_fence       operations called before it are done at the target before later ones
 *   completed get, fetch_add, compare_swap, flush    before whatever is called afterwards
 *   put_signal       its own bytes are in the target's memory before its value is added
 * A signal covers its own put and all that a fence, a flush or the completion of an operation has
 * ordered before it. Operations on one word by fetch_add, compare_swap and signals are atomic with
 * each other, from any number of ranks. With loads and stores of the target's own code they are
 * atomic where that code uses C11 or C++ atomics of 64 bits, but not with puts and gets.
 *
 * Progress. In memory that all ranks map (weir_mem_alloc on shared memory) and on the own rank the
 * caller performs an operation by loads and stores. Elsewhere the target's process takes part:
 * through any of its threads that waits or tests in Weir, and through Weir's progress thread, which
 * runs in every process with a window that needs it. docs/one_sided.md has a table by transport.
 *
 * Errors. An access outside of the target's window is WEIR_ERROR_INVALID_ARGUMENT, and nothing was
 * sent. Each operation has the communicator's deadline. When a rank dies, operations that need it
 * fail with WEIR_ERROR_PEER_LOST; in mapped memory they may still succeed. After such an error the
 * communicator is broken, as after an error of a collective. Abort and destroy end operations in
 * flight with WEIR_ERROR_ABORTED; bytes that they had not put by then may or may not be put, and
 * nothing is read or written once their call or request has returned.
 *
 * Threads. These functions, too, may be called from any thread. A fence or flush covers the
 * operations that any thread called before it. Groups do not defer one-sided operations: they start
 * at once, also between group_start and group_end. Windows and buffers lie in memory of the host:
 * one on a device is WEIR_ERROR_UNSUPPORTED.
 */

#define WEIR_ALL_RANKS (-1)

/* Collective. Opens `bytes` of the caller's `memory` (0: none, and memory may be NULL) to the other
 * ranks until the window ends. It may be ordinary memory or any part of memory from weir_mem_alloc;
 * the latter is reached without the target's help where the ranks share memory. Windows may
 * overlap. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_window_create(weir_comm_t comm, void* memory,
                                                          size_t bytes, weir_window_t* window);

/* Collective. Returns when all ranks have called it and all their operations in the window are
 * done. Must be called before the communicator is destroyed; destroying the communicator first ends
 * its windows without waiting, and operations that were not flushed may be lost. NULL is
 * accepted. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_window_destroy(weir_window_t window);

/* Local: ends this rank's part of the window and its use of it; the other ranks need not call
 * anything. Returns when this rank's operations in the window are complete and no other rank reads
 * or writes its memory any more, which is then the caller's. Operations of others on this part are
 * WEIR_ERROR_INVALID_USAGE from then on, with a text that names the window and the rank. Where all
 * ranks map the memory, this call does not wait for them, and their loads and stores reach the
 * memory as long as it exists. Each rank calls this at a time of its own, instead of
 * weir_window_destroy. NULL is accepted. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_window_retire(weir_window_t window);

/* How many bytes `rank` has in the window. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_window_bytes(weir_window_t window, int rank,
                                                         size_t* bytes);

/* Copies `bytes` of `data` to `offset` of the target's memory. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_put(weir_window_t window, int target, size_t offset,
                                                const void* data, size_t bytes,
                                                weir_request_t* request);

/* Copies `bytes` at `offset` of the target's memory to `data`. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_get(weir_window_t window, int target, size_t offset,
                                                void* data, size_t bytes, weir_request_t* request);

/* As weir_put; then adds `value` to the word at `signal_offset` of the target's memory in
 * `signal_window`, a window of the same communicator, which may be the same one. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_put_signal(weir_window_t window, int target,
                                                       size_t offset, const void* data,
                                                       size_t bytes, weir_window_t signal_window,
                                                       size_t signal_offset, uint64_t value,
                                                       weir_request_t* request);

/* Adds `value` to a word of the target. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_signal(weir_window_t window, int target,
                                                   size_t signal_offset, uint64_t value,
                                                   weir_request_t* request);

/* Complete when the word at `signal_offset` of the caller's own memory has reached `value`: the
 * difference, wrapped at 2^64, is less than 2^63. The word keeps its value, so that counters which
 * only grow can be waited for again and again. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_wait_signal(weir_window_t window, size_t signal_offset,
                                                        uint64_t value, weir_request_t* request);

/* Adds `value` to a word of the target; *old (may be NULL) receives its previous value. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_fetch_add(weir_window_t window, int target,
                                                      size_t offset, uint64_t value, uint64_t* old,
                                                      weir_request_t* request);

/* Sets a word of the target to `desired` if it is `expected`; *old (may be NULL) receives its
 * previous value. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_compare_swap(weir_window_t window, int target,
                                                         size_t offset, uint64_t expected,
                                                         uint64_t desired, uint64_t* old,
                                                         weir_request_t* request);

/* Orders this rank's operations on `target`, or on each rank (WEIR_ALL_RANKS), in all windows of
 * `comm`: those called before are done before those called from now on. Does not wait. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_fence(weir_comm_t comm, int target);

/* Complete when all operations that this rank has called on `target`, or on all ranks, in all
 * windows of `comm` are done there; every rank that learns of it afterwards can read their
 * results. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_flush(weir_comm_t comm, int target,
                                                  weir_request_t* request);

#ifdef __cplusplus
}
#endif

#endif /* WEIR_WEIR_H_ */
