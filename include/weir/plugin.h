/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_PLUGIN_H_
#define WEIR_PLUGIN_H_

/*
 * plugin.h: the C ABI of a transport, and all that a transport may include of Weir.
 *
 * What it is for. A transport moves bytes between the ranks of one communicator. It is a struct of
 * functions and of capabilities as data; a shared object exports it as `weir_transport_plugin`.
 * What a transport can do chooses both the plans that run over it and the tests that it must pass.
 *
 * Life of an instance: `open` makes one per communicator; `address` tells what peers need to reach
 * it; the core gathers all addresses; `connect` joins them; then send, recv, test, progress;
 * `close`.
 *
 * Messages are FIFO per (sender, receiver, lane): the k-th send meets the k-th recv, and both name
 * the same number of bytes (a shorter or longer message is WEIR_ERROR_MISMATCH). No tags, no
 * wildcard.
 *
 * Threads. The core calls the functions of one instance from one thread at a time; instances are
 * independent. Nothing blocks but `connect` (bounded by the given deadline). Completion is polled.
 * After `connect` nothing may allocate, lock or log on a path that succeeds, but once to connect two ranks.
 *
 * Ownership. Addresses are copied. Buffers given to send and recv stay the caller's, and stay put
 * until the operation has completed, or the instance was closed or has returned from quiesce. Errors are weir_result_t values; the
 * text goes to `error` of the host functions.
 */

#include <stddef.h>
#include <stdint.h>

#include "weir/weir.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_PLUGIN_ABI_VERSION 1u
#define WEIR_TRANSPORT_ADDRESS_BYTES_MAX 512u
#define WEIR_TRANSPORT_LANES_MAX 16u
#define WEIR_TRANSPORT_NOTICE_BYTES_MAX 1024u
#define WEIR_TRANSPORT_KEY_BYTES_MAX 1024u

/* Capability bits. */
enum {
  WEIR_CAP_SEND_RECV = 1u << 0, /* send, recv, test */
  WEIR_CAP_SEGMENT =
      1u << 1, /* `segment`: memory of every rank that every rank can load and store */
  WEIR_CAP_WINDOW = 1u << 2, /* `window_open`: further such memory, made after connect */
  WEIR_CAP_PEER_FAILURE =
      1u << 3,               /* `peer_alive` sees a dead process without waiting for a deadline */
  WEIR_CAP_SELF = 1u << 4,   /* a rank may send to itself */
  WEIR_CAP_NOTICE = 1u << 5, /* `notice_show`, `notice_read`: words beside all messages */
  /* `quiesce`. Needed where posted buffers are read or written also outside of calls of send, recv,
   * test and progress (by a network card, by a thread, by close). */
  WEIR_CAP_QUIESCE = 1u << 6,
  WEIR_CAP_PUT = 1u << 7,    /* `memory_register` to `remote_close`, and `put` */
  WEIR_CAP_GET = 1u << 8,    /* the same, and `get` */
  WEIR_CAP_SIGNAL = 1u << 9, /* the same, and `put_signal`, `signal_read` */
  /* With WEIR_TLS=all no message leaves the host but encrypted and authenticated by the transport.
   * Without this bit the core seals the messages, and asks the transport, with WEIR_TLS=control,
   * for what else it sends; one-sided operations are then not used. */
  WEIR_CAP_SEALED = 1u << 10,
  WEIR_CAP_COLLECTIVES =
      1u << 11, /* `collectives`: whole collectives, such as on memory of devices */
  WEIR_CAP_DEVICE_MEMORY = 1u << 12 /* `device_viable`, `device_send`, `device_recv` */
};

/* Kinds of memory that a transport takes. send, recv and one-sided operations take that of the host, which
 * includes what the host reads itself, such as pinned and managed memory of CUDA. */
enum { WEIR_MEMORY_HOST = 1u << 0, WEIR_MEMORY_CUDA = 1u << 1 };

typedef struct weir_transport_caps {
  uint64_t bits;         /* WEIR_CAP_* */
  uint32_t memory_kinds; /* WEIR_MEMORY_* */
  uint32_t lane_count;   /* 1 to WEIR_TRANSPORT_LANES_MAX */
  uint64_t message_bytes_max;
  uint32_t rank_count_max;
  uint32_t credit; /* sends of up to 1 KiB that complete per (peer, lane) before a recv */
} weir_transport_caps_t;

/* What has been appended is NULL in a table that does not name it, in C++ without a warning, too.
 */
#ifdef __cplusplus
#define WEIR_PLUGIN_NULL = nullptr
#else
#define WEIR_PLUGIN_NULL
#endif

/* What the core offers to a transport; valid as long as the instance. */
typedef struct weir_host {
  size_t struct_bytes;
  void* context;
  /* Keeps `text` as the reason for the error that the function is about to return. */
  void (*error)(void* context, const char* text);
  /* level: 0 error, 1 warning, 2 information, 3 debug */
  void (*log)(void* context, int level, const char* text);
  /* Value of a WEIR_* or NCCL_* variable, or NULL. */
  const char* (*setting)(void* context, const char* name);
  /* Asked by `connect`, in its thread, every few milliseconds while it waits for peers: WEIR_OK, or
   * an error when the caller has heard that not all of them will come. `connect` then fails with it
   * at once, and leaves the reason as this call has kept it. Never waits. Not in a host of fewer
   * struct_bytes; may be NULL. */
  weir_result_t (*look)(void* context) WEIR_PLUGIN_NULL;
} weir_host_t;

typedef struct weir_transport_config {
  size_t struct_bytes;
  uint32_t rank;
  uint32_t rank_count;
  uint64_t comm_id;            /* the same on all ranks, random */
  const unsigned char* secret; /* job secret, `secret_bytes` long, the same on all ranks */
  size_t secret_bytes;
  uint64_t segment_bytes; /* wanted per rank; rounded up to pages by the transport */
  int huge_pages;         /* use them where they can be had */
} weir_transport_config_t;

/* Memory that all ranks map: rank i's part begins at base + i * stride. */
typedef struct weir_segment {
  unsigned char* base;
  uint64_t stride_bytes;
  uint64_t bytes_per_rank;
} weir_segment_t;

/* An operation in flight: memory of the caller. Zeroed before posting. The words mean what the
 * transport makes of them; the last member belongs to a wrapper around it. */
typedef struct weir_transport_op {
  uint64_t word[8];
  uint64_t wrapper;
} weir_transport_op_t;

typedef struct weir_transport weir_transport_t;               /* an instance */
typedef struct weir_transport_memory weir_transport_memory_t; /* the caller's, registered */
typedef struct weir_transport_remote weir_transport_remote_t; /* a peer's, from its key */

/* ---- Whole collectives ------------------------------------------------------------------------- */

/* Which collective; shapes and buffers as in weir.h. */
enum {
  WEIR_COLLECTIVE_ALL_REDUCE = 0,
  WEIR_COLLECTIVE_REDUCE = 1,
  WEIR_COLLECTIVE_BROADCAST = 2,
  WEIR_COLLECTIVE_REDUCE_SCATTER = 3,
  WEIR_COLLECTIVE_ALL_GATHER = 4,
  WEIR_COLLECTIVE_ALL_TO_ALL = 5,
  WEIR_COLLECTIVE_GATHER = 6,
  WEIR_COLLECTIVE_SCATTER = 7,
  WEIR_COLLECTIVE_REDUCE_SCATTER_V = 8, /* recv_counts */
  WEIR_COLLECTIVE_ALL_GATHER_V = 9,     /* recv_counts, recv_displacements */
  WEIR_COLLECTIVE_ALL_TO_ALL_V = 10     /* all four */
};

/* Beside WEIR_SUM to WEIR_AVG: the sum of what each rank has multiplied by its factor. */
enum { WEIR_COLLECTIVE_SCALED_SUM = 16 };

typedef struct weir_collective_call {
  size_t struct_bytes;
  uint32_t kind; /* WEIR_COLLECTIVE_* */
  int32_t type;  /* weir_datatype_t */
  int32_t op;    /* of a reduction */
  uint32_t root;
  const void* send;
  void* recv;
  uint64_t count;              /* elements, as weir.h counts them; the v-variants do not use it */
  const uint64_t* send_counts; /* rank_count entries each, in elements; not used: NULL */
  const uint64_t* send_displacements;
  const uint64_t* recv_counts;
  const uint64_t* recv_displacements;
  const void* scale; /* one element, of WEIR_COLLECTIVE_SCALED_SUM */
  void* stream;      /* CUstream, where on_stream is 1 */
  uint32_t
      on_stream; /* 1: ordered behind what `stream` holds; 0: at once, on a stream of the transport */
} weir_collective_call_t;

/* WEIR_CAP_COLLECTIVES. The core calls open, `introduce`, `join` and `joined`, `start` with `enqueued`
 * and `test` of each operation, `abort` after a failure, close. Of the other functions it asks nothing
 * unless their capabilities are declared; a transport that has only this one carries no messages: its
 * address and connect may refuse. Nothing here waits, and buffers lie in one of the table's
 * memory_kinds. All ranks start the same operations in the same order. */
typedef struct weir_collective_functions {
  uint32_t struct_bytes;
  /* Bits 1 << WEIR_COLLECTIVE_*, 1 << weir_datatype_t, 1 << WEIR_SUM to WEIR_AVG and
   * 1 << WEIR_COLLECTIVE_SCALED_SUM. */
  uint32_t kinds;
  uint32_t types;
  uint32_t ops;

  /* What the other ranks must know of this one, whose memory lies on device `device` of its process;
   * at most WEIR_TRANSPORT_ADDRESS_BYTES_MAX bytes. WEIR_ERROR_UNSUPPORTED: it cannot take part. */
  weir_result_t (*introduce)(weir_transport_t* instance, int device, unsigned char* text,
                             size_t* bytes);
  /* texts[i] is what rank i's `introduce` wrote. Begins to connect the ranks; an error that follows from
   * the texts is the same on all of them. WEIR_IN_PROGRESS: ask `joined`. */
  weir_result_t (*join)(weir_transport_t* instance, const unsigned char* const* texts,
                        const size_t* bytes);
  weir_result_t (*joined)(weir_transport_t* instance);
  /* Takes the operation: WEIR_IN_PROGRESS. WEIR_ERROR_INVALID_ARGUMENT, _INVALID_USAGE,
   * _UNSUPPORTED: it has not, the instance is as before, and the same call fails so on every rank. The
   * next one may be started once this one is enqueued. */
  weir_result_t (*start)(weir_transport_t* instance, const weir_collective_call_t* call,
                         weir_transport_op_t* op);
  /* WEIR_OK: what the stream is given from now on comes after the operation. */
  weir_result_t (*enqueued)(weir_transport_t* instance, weir_transport_op_t* op);
  /* WEIR_OK: the device is done with it, and the words of `op` are free; of an operation that was captured
   * into a graph, once it is enqueued. An error of any operation means that no other will complete. */
  weir_result_t (*test)(weir_transport_t* instance, weir_transport_op_t* op);
  /* Ends all operations, whatever peers do. WEIR_IN_PROGRESS: call it again. WEIR_OK: nothing reads or
   * writes their buffers any more. Only close follows. */
  weir_result_t (*abort)(weir_transport_t* instance);
} weir_collective_functions_t;

/* Functions are only ever appended. A table may be shorter than this one (it was built against an
 * earlier header): then it declares no capability whose functions lie beyond its end. */
typedef struct weir_transport_functions {
  uint32_t abi_version; /* WEIR_PLUGIN_ABI_VERSION */
  uint32_t struct_bytes;
  const char* name;    /* "shm", "tcp", … */
  const char* summary; /* one line for weir-info */

  weir_transport_caps_t caps;

  /* WEIR_OK, or WEIR_ERROR_UNSUPPORTED with the reason in `reason`: cannot work on this machine. */
  weir_result_t (*viable)(const weir_host_t* host, char* reason, size_t reason_bytes);

  weir_result_t (*open)(const weir_host_t* host, const weir_transport_config_t* config,
                        weir_transport_t** instance);
  /* Writes at most WEIR_TRANSPORT_ADDRESS_BYTES_MAX bytes. */
  weir_result_t (*address)(weir_transport_t* instance, unsigned char* address, size_t* bytes);
  /* addresses[i] is what rank i's `address` wrote. Returns when every peer is reachable, or with
   * WEIR_ERROR_TIMEOUT naming the missing ranks; deadline_ns is of CLOCK_MONOTONIC. */
  weir_result_t (*connect)(weir_transport_t* instance, const unsigned char* const* addresses,
                           const size_t* address_bytes, uint64_t deadline_ns);
  /* Also called in a child that was forked from the process of `open`. There it frees what is the
   * child's own; connections, shared memory and rings belong to the parent, so nothing is told,
   * shut down, written or waited for. No other function is called there. */
  void (*close)(weir_transport_t* instance);

  /* Post. WEIR_OK: complete already; WEIR_IN_PROGRESS: ask `test`. What a complete send has sent
   * arrives without further calls of its rank. */
  weir_result_t (*send)(weir_transport_t* instance, uint32_t peer, uint32_t lane, const void* data,
                        uint64_t bytes, weir_transport_op_t* op);
  weir_result_t (*recv)(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                        uint64_t bytes, weir_transport_op_t* op);
  /* WEIR_OK: complete. WEIR_IN_PROGRESS: not yet. May make progress itself. */
  weir_result_t (*test)(weir_transport_t* instance, weir_transport_op_t* op);
  /* Moves whatever can be moved without waiting. */
  weir_result_t (*progress)(weir_transport_t* instance);

  /* WEIR_CAP_SEGMENT; valid from connect to close. */
  weir_result_t (*segment)(weir_transport_t* instance, weir_segment_t* segment);
  /* WEIR_CAP_WINDOW; collective, bounded by the deadline. `key` (16 bytes) is the same on all ranks
   * and new for each call. */
  weir_result_t (*window_open)(weir_transport_t* instance, const unsigned char* key,
                               uint64_t bytes_per_rank, uint64_t deadline_ns,
                               weir_segment_t* window);
  void (*window_close)(weir_transport_t* instance, const weir_segment_t* window);

  /* WEIR_CAP_PEER_FAILURE: WEIR_OK while the peer lives, WEIR_ERROR_PEER_LOST once it is dead. */
  weir_result_t (*peer_alive)(weir_transport_t* instance, uint32_t peer);

  /* WEIR_CAP_NOTICE. Each rank has one notice, up to WEIR_TRANSPORT_NOTICE_BYTES_MAX bytes that
   * every other rank can read: how a rank tells that it has failed, or that it lives. A new notice
   * takes the place of the one before. A reader may miss some, never goes back to an older one, and
   * comes to the last one if it lives and can be reached, also when the rank that showed it has
   * closed its instance or died since. Notices need no posted receive and do not queue behind
   * messages; nothing is promised about their order with those.
   *
   * `notice_show` never waits: what does not leave at once for some peer leaves during later calls
   * of these two functions. A peer that is dead is no error. Valid from connect to close. */
  weir_result_t (*notice_show)(weir_transport_t* instance, const void* notice, size_t bytes);
  /* Copies the latest notice that has arrived from `peer` (the caller's own rank: what it shows) and
   * sets `*bytes`, 0 when there is none. `notice` has room for WEIR_TRANSPORT_NOTICE_BYTES_MAX.
   * WEIR_IN_PROGRESS instead of WEIR_OK: what this rank shows has not come to that peer's host yet,
   * from a transport that can tell; a link that is cut shows itself in this way.
   * Neither function touches posted operations: both may be called after one has failed. */
  weir_result_t (*notice_read)(weir_transport_t* instance, uint32_t peer, void* notice,
                               size_t* bytes);

  /* WEIR_CAP_QUIESCE. The core calls it after an operation has failed or was given up, and calls send,
   * recv, test and progress no more: operations that are posted will never complete. When it returns
   * nothing reads or writes their buffers any more, nor their words, so that the caller may free them
   * while the instance lives on. Waits for no peer; valid from connect to close, and called again
   * without effect. peer_alive and notices go on as before. Registered and remote memory ends with it, as
   * with close. */
  void (*quiesce)(weir_transport_t* instance) WEIR_PLUGIN_NULL;

  /* One-sided operations: WEIR_CAP_PUT, WEIR_CAP_GET, WEIR_CAP_SIGNAL. The target registers memory
   * and packs a key of it; the caller brings the key to the origin; the origin opens it and then
   * reads and writes that memory. The shape is that of UCX (ucp_rkey_pack, ucp_put_nbx) and of
   * libfabric (fi_mr(3), fi_rma(3)). All are valid from connect to close, in one thread like the
   * rest; those that make or end something may allocate, lock and make system calls. Both ends move
   * things only within calls of this instance: a target that makes none may hold up what is done to
   * its memory.
   *
   * Which of the three bits this instance has, some of those of the table: a transport may have
   * found a network that can do less. What the others lack is written to `reason` (at most
   * reason_bytes with the zero), "" when none is missing. The same on all ranks of a communicator. */
  uint64_t (*remote_caps)(weir_transport_t* instance, char* reason,
                          size_t reason_bytes) WEIR_PLUGIN_NULL;
  /* [base, base + bytes) of the host's memory, at least a byte, may from now on be read and written
   * by who holds a key of it. It stays the caller's, and stays mapped until it is deregistered.
   * Several registrations may overlap. */
  weir_result_t (*memory_register)(weir_transport_t* instance, void* base, uint64_t bytes,
                                   weir_transport_memory_t** memory) WEIR_PLUGIN_NULL;
  /* Writes the key, at most WEIR_TRANSPORT_KEY_BYTES_MAX bytes: good for the ranks of this
   * communicator, on any of them, until the memory is deregistered. */
  weir_result_t (*memory_key)(weir_transport_t* instance, const weir_transport_memory_t* memory,
                              unsigned char* key, size_t* bytes) WEIR_PLUGIN_NULL;
  /* The caller sees to it before that no peer has an operation on it under way. `close` deregisters
   * what is left. */
  void (*memory_deregister)(weir_transport_t* instance,
                            weir_transport_memory_t* memory) WEIR_PLUGIN_NULL;
  /* What `memory_key` wrote on rank `peer` (the own rank with WEIR_CAP_SELF). Copied. A key that is
   * cut, changed, of another rank, communicator or transport is WEIR_ERROR_REFUSED, and none of it
   * has been believed. */
  weir_result_t (*remote_open)(weir_transport_t* instance, uint32_t peer, const unsigned char* key,
                               size_t key_bytes, weir_transport_remote_t** remote) WEIR_PLUGIN_NULL;
  /* Operations of it that are under way end as they would. `close` closes what is left. */
  void (*remote_close)(weir_transport_t* instance,
                       weir_transport_remote_t* remote) WEIR_PLUGIN_NULL;

  /* Copies `bytes` bytes to, or from, `offset_bytes` of the remote memory; what does not lie within
   * it is WEIR_ERROR_INVALID_ARGUMENT. The local buffer may be any memory that send and recv take.
   * `op` as with send, and ended by `test`. Operations keep no order among each other, nor with
   * messages. A put is complete when its bytes are in the target's memory: whatever the target learns of
   * afterwards (by a message, a signal) it learns of after them. A get is complete when its bytes
   * are in the local buffer. Errors: WEIR_ERROR_PEER_LOST, of operations under way too. */
  weir_result_t (*put)(weir_transport_t* instance, const weir_transport_remote_t* remote,
                       uint64_t offset_bytes, const void* data, uint64_t bytes,
                       weir_transport_op_t* op) WEIR_PLUGIN_NULL;
  weir_result_t (*get)(weir_transport_t* instance, const weir_transport_remote_t* remote,
                       uint64_t offset_bytes, void* data, uint64_t bytes,
                       weir_transport_op_t* op) WEIR_PLUGIN_NULL;

  /* Copies `bytes` bytes (0: none, and `remote` may be NULL) as `put` does, then adds `value`, at
   * least 1, to the 64-bit word at `signal_offset_bytes` of `signal`, which is memory of the same
   * rank; the word's address is a multiple of 8. Each is added once. Complete when the buffer is
   * the caller's again, which may be before the bytes have arrived.
   *
   * Order: once signal_read at the target returns a value that includes this `value`, the bytes of
   * this put_signal, and of every put that the origin had seen complete before it, are in the
   * target's memory and visible to the reader. Nothing is promised about other operations; signals
   * of one origin may be added in any order. */
  weir_result_t (*put_signal)(weir_transport_t* instance, const weir_transport_remote_t* remote,
                              uint64_t offset_bytes, const void* data, uint64_t bytes,
                              const weir_transport_remote_t* signal, uint64_t signal_offset_bytes,
                              uint64_t value, weir_transport_op_t* op) WEIR_PLUGIN_NULL;
  /* Makes progress, and reads the word at `offset_bytes` of the caller's own memory, a multiple of
   * 8 in address. It is what the caller stored there before it gave the key away, and what has been
   * added since: it never goes back, but for wrapping at 2^64. While peers may signal nobody else
   * writes it. */
  weir_result_t (*signal_read)(weir_transport_t* instance, const weir_transport_memory_t* memory,
                               uint64_t offset_bytes, uint64_t* value) WEIR_PLUGIN_NULL;

  /* Any transport may have it. Writes one line for people on how this rank reaches another one and why in
   * this way, at most text_bytes with the zero, cut where it is longer: "rank 0 at 10.0.0.1:4000
   * (over eth0: same subnet)"; "" when there is nothing to tell. Waits for nobody; valid from connect
   * to close. */
  void (*describe_peer)(weir_transport_t* instance, uint32_t peer, char* text,
                        size_t text_bytes) WEIR_PLUGIN_NULL;

  /* Any transport may have it. Gives up one peer, never the own rank, and keeps the others. WEIR_OK: nothing
   * reads or writes the buffers of operations with it any more, nor their words; they are never tested
   * again. Later operations with it are WEIR_ERROR_PEER_LOST. What was under way either way may be
   * lost, and notices of the two need not come through. The peer is told nothing: its operations
   * fail, or stay as they are until it gives up this rank, too. There is no way back within the instance.
   * Any other result: that cannot be done, now or ever, and only `close` and `quiesce` end the hold on
   * those buffers; nothing may be sent to or received from that peer before. Waits for no peer; valid from
   * connect to close, and called again for the same peer without effect. */
  weir_result_t (*peer_leave)(weir_transport_t* instance, uint32_t peer) WEIR_PLUGIN_NULL;

  /* WEIR_CAP_COLLECTIVES; lives for ever. */
  const weir_collective_functions_t* collectives WEIR_PLUGIN_NULL;

  /* WEIR_CAP_DEVICE_MEMORY, with WEIR_CAP_SEND_RECV and WEIR_MEMORY_CUDA: messages whose buffer, at this end,
   * is memory that only CUDA device `device` (its number in this process) is sure to reach. Valid from
   * connect to close, in one thread like the rest.
   *
   * Can messages with `peer` lie there? WEIR_OK, or WEIR_ERROR_UNSUPPORTED with what is missing in
   * `reason` (at most reason_bytes with the zero): what a library below was built with is only known
   * where it runs. Each rank finds out for itself. Waits for nobody. */
  weir_result_t (*device_viable)(weir_transport_t* instance, uint32_t peer, int device,
                                 char* reason, size_t reason_bytes) WEIR_PLUGIN_NULL;
  /* As send and recv, and in one order with them: the buffer at the other end may be of any kind that
   * its rank can post. The transport knows no streams. When it is called, what is to be sent is in the
   * device's memory, and nothing that the device has been given still uses the buffer of a receive.
   * When it is complete, whatever the device is given from then on may write what was sent, and reads
   * what was received. Nothing but the device, and what moves the bytes for it, touches the buffer.
   * From the first of them on the device's primary context is current in send, recv, test and progress, too.
   * There is no credit: a send of any size may stay in progress until it is received.
   * WEIR_ERROR_UNSUPPORTED: this memory cannot be moved, nothing has been posted, and the instance is as
   * before. */
  weir_result_t (*device_send)(weir_transport_t* instance, uint32_t peer, uint32_t lane,
                               const void* data, uint64_t bytes, int device,
                               weir_transport_op_t* op) WEIR_PLUGIN_NULL;
  weir_result_t (*device_recv)(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                               uint64_t bytes, int device,
                               weir_transport_op_t* op) WEIR_PLUGIN_NULL;
} weir_transport_functions_t;

/* The one symbol of a plugin. */
#define WEIR_PLUGIN_SYMBOL "weir_transport_plugin"
typedef const weir_transport_functions_t* (*weir_transport_plugin_fn)(void);

#ifdef __cplusplus
}
#endif

#endif /* WEIR_PLUGIN_H_ */
