/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_PLUGIN_H_
#define WEIR_PLUGIN_H_

/*
 * plugin.h: the C ABI of a transport, and all that a transport may include of Weir.
 *
 * What it is for. A transport moves bytes between the ranks of one communicator. It is a struct of
 * functions and of capabilities as data; a shared object exports it as `weir_transport_plugin`. The
 * capabilities determine both the plans that run over it and the tests that it must pass.
 *
 * Life of an instance: `open` makes one per communicator; `address` tells what peers need to reach
 * it; the core gathers all addresses; `connect` joins them; then send, recv, test, progress;
 * `close`.
 *
 * Messages are FIFO per (sender, receiver, lane): the k-th send meets the k-th recv, and both name
 * the same number of bytes (a shorter or longer message is WEIR_ERROR_MISMATCH). No tags, no
 * wildcard. On the last lane receives may be in flight when an instance is closed in order: of
 * headers that any peer may send at any time.
 *
 * Threads. The core calls the functions of one instance from one thread at a time; instances are
 * independent. Only `connect` blocks (bounded by the given deadline). Completion is polled. After
 * `connect` no path that succeeds may allocate, lock or log, except once to connect two ranks.
 *
 * Ownership. Addresses are copied. Buffers given to send and recv stay the caller's, and stay in
 * place until the operation has completed, or the instance was closed or has returned from quiesce.
 * Errors are weir_result_t values; the text goes to `error` of the host functions.
 */

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "weir/weir.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WEIR_PLUGIN_ABI_VERSION 2u
#define WEIR_TRANSPORT_ADDRESS_BYTES_MAX 512u
#define WEIR_TRANSPORT_LANES_MAX 16u
#define WEIR_CONTROL_MESSAGE_BYTES_MAX 131072u
#define WEIR_CONTROL_KEY_BYTES 16u
#define WEIR_PAIR_KEY_BYTES 32u
#define WEIR_TRANSPORT_KEY_BYTES_MAX 1024u

/* Capability bits. */
enum {
  WEIR_CAP_SEND_RECV = 1u << 0,    /* send, recv, test */
  WEIR_CAP_SEGMENT = 1u << 1,      /* `segment`: memory of all ranks that all can load and store */
  WEIR_CAP_WINDOW = 1u << 2,       /* `window_open`: further such memory, made after connect */
  WEIR_CAP_PEER_FAILURE = 1u << 3, /* `peer_alive` sees a dead process, before any deadline */
  WEIR_CAP_SELF = 1u << 4,         /* a rank may send to itself */
  /* `quiesce`. Needed where posted buffers are read or written also outside of calls of send, recv,
   * test and progress (by a network card, by a thread, by close). */
  WEIR_CAP_QUIESCE = 1u << 6,
  WEIR_CAP_PUT = 1u << 7,    /* `memory_register` to `remote_close`, and `put` */
  WEIR_CAP_GET = 1u << 8,    /* the same, and `get` */
  WEIR_CAP_SIGNAL = 1u << 9, /* the same, and `put_signal`, `signal_read` */
  /* With WEIR_TLS=all the transport encrypts and authenticates every message that leaves the host.
   * Without this bit the core seals the messages, and asks the transport, with WEIR_TLS=control, to
   * protect everything else that it sends; one-sided operations are then not used. */
  WEIR_CAP_SEALED = 1u << 10,
  WEIR_CAP_COLLECTIVES = 1u << 11,  /* `collectives`: whole ones, such as on memory of devices */
  WEIR_CAP_DEVICE_MEMORY = 1u << 12 /* `device_viable`, `device_send`, `device_recv` */
};

/* Kinds of memory that a transport takes. send, recv and one-sided operations take that of the
 * host, which includes what the host reads itself, such as pinned and managed memory of CUDA. */
enum { WEIR_MEMORY_HOST = 1u << 0, WEIR_MEMORY_CUDA = 1u << 1 };

typedef struct weir_transport_caps {
  uint64_t bits;         /* WEIR_CAP_* */
  uint32_t memory_kinds; /* WEIR_MEMORY_* */
  uint32_t lane_count;   /* 1 to WEIR_TRANSPORT_LANES_MAX */
  uint64_t message_bytes_max;
  uint32_t rank_count_max;
  uint32_t credit; /* sends of up to 1 KiB that complete per (peer, lane) before a recv */
} weir_transport_caps_t;

/* The value of members that a C++ initializer does not name, without a warning. In C such pointers
 * are NULL, and code that fills a weir_segment_t sets all members. */
#ifdef __cplusplus
#define WEIR_PLUGIN_NULL = nullptr
#define WEIR_PLUGIN_UNKNOWN = -1
#else
#define WEIR_PLUGIN_NULL
#define WEIR_PLUGIN_UNKNOWN
#endif

/* The life of a rank. The value never decreases. */
enum {
  WEIR_LIFE_HERE = 0,
  WEIR_LIFE_LEFT = 1, /* it has closed the communicator */
  WEIR_LIFE_LOST = 2  /* its process has ended, or no path leads to it any more */
};

/* A path to a peer's listener. Addresses are in network order, of 4 or 16 bytes. */
typedef struct weir_control_way {
  unsigned char address[16];
  unsigned char source[16]; /* of this host */
  uint16_t port;
  uint8_t address_family; /* 4 or 6 */
  uint8_t source_family;  /* 0: by routing */
  char device[20];        /* interface of this host; "": by routing */
} weir_control_way_t;

/* A connection inside TLS, whose bytes go through the functions `session_*`. */
typedef struct weir_control_session weir_control_session_t;

/* A proven connection, which the transport then owns, or an attempt that has failed. */
typedef struct weir_control_connection {
  size_t struct_bytes;
  uint32_t peer;
  uint32_t way;                    /* of those of `connect`; UINT32_MAX: the peer has connected */
  uint64_t subject;                /* as given to `connect` */
  int fd;                          /* nonblocking; -1: none */
  weir_control_session_t* session; /* owns the descriptor; NULL: plain */
  char reason[256];                /* why there is none */
} weir_control_connection_t;

/* A bit of `subject`: the connection is inside TLS also with WEIR_TLS=control, not only for its
 * proof. */
#define WEIR_CONTROL_STAYS_SECURE (UINT64_C(1) << 63)

/* The control network: carries what ranks tell each other beside the data. The core makes it,
 * proves its connections with the secret and owns it. So a transport needs no connections of its
 * own for addresses, ends or descriptors, and gets those for its data from here. Ranks are those of
 * the transport's configuration. The functions may be called from `connect` to `close`, in the
 * instance's thread; only `flush` and `fetch` wait. Not in a forked child. */
typedef struct weir_control {
  size_t struct_bytes;
  void* context;
  /* WEIR_LIFE_* of the peer's process. The transport itself finds out whether a path leads to it.
   * Cheap. */
  int (*life)(void* context, uint32_t peer);
  /* 1: both ranks run on one kernel in one network namespace, where descriptors can be passed. */
  int (*shares_host)(void* context, uint32_t peer);
  /* Sends a message; those between two ranks stay in order. For rare messages of at most
   * WEIR_CONTROL_MESSAGE_BYTES_MAX bytes, copied. WEIR_ERROR_PEER_LOST: the peer has left or
   * died. */
  weir_result_t (*send)(void* context, uint32_t peer, const void* message, size_t bytes);
  /* Takes the oldest message of `peer`: `*bytes` is the capacity before and the length after.
   * WEIR_IN_PROGRESS: there is none. WEIR_ERROR_INVALID_ARGUMENT: it is longer than the
   * capacity. */
  weir_result_t (*receive)(void* context, uint32_t peer, void* message, size_t* bytes);
  /* Waits until what was sent to `peer` has left this process. */
  weir_result_t (*flush)(void* context, uint32_t peer, uint64_t deadline_ns);
  /* Descriptors between ranks of a host. Offered ones are copied and may be fetched by any rank
   * under their key (WEIR_CONTROL_KEY_BYTES) until they are withdrawn or the communicator ends. */
  weir_result_t (*offer)(void* context, const unsigned char* key, int fd);
  void (*withdraw)(void* context, const unsigned char* key);
  /* Waits until `peer` offers the descriptor; the caller owns `*fd`. Fails at once when the peer
   * ends, and, within `connect`, when the caller learns that not all ranks will come. */
  weir_result_t (*fetch)(void* context, uint32_t peer, const unsigned char* key,
                         uint64_t deadline_ns, int* fd);
  /* WEIR_PAIR_KEY_BYTES that both ends compute identically: a key for connections of their own.
   * Each `purpose` has its own key. */
  void (*pair_key)(void* context, uint32_t peer, const char* purpose, unsigned char* key);
  /* Writes how the control network reaches `peer`, as text for people: "" without a connection. */
  void (*describe)(void* context, uint32_t peer, char* text, size_t text_bytes);
  /* Writes this host's IP address at which the connection to `peer` ends, and which thus reaches
   * the peer: "" without a connection, and within a host. */
  void (*own_address)(void* context, uint32_t peer, char* text, size_t text_bytes);

  /* Connections of the transport's own over TCP. Each begins with the proof that its ends are the
   * two ranks; with WEIR_TLS it is inside TLS, with `control` for the proof only. They are made and
   * accepted whatever the ranks do meanwhile, so data sent on one leaves even while the peer
   * computes.
   *
   * Accepts at a listening socket, which is the network's from then on. Connections without proof
   * are bounded in time, bytes and number. */
  weir_result_t (*listen)(void* context, int fd);
  /* Begins to connect to the listener of `peer`, until the deadline: the ways are tried with a
   * short delay between them, again and again. `subject` says what the connection is for, and is
   * the same at both ends; its highest byte, except WEIR_CONTROL_STAYS_SECURE, belongs to wrappers.
   * If both ends begin for one subject, one connection results. Nothing is begun while a connection
   * for the subject is under way or was not taken yet. */
  void (*connect)(void* context, uint32_t peer, uint64_t subject, const weir_control_way_t* ways,
                  size_t way_count, uint64_t deadline_ns);
  /* Takes the next connection that was made or accepted: WEIR_OK. WEIR_IN_PROGRESS: there is none;
   * this is cheap. Others: the attempt has failed: WEIR_ERROR_PEER_LOST, _TIMEOUT, _REFUSED (the
   * peer does not accept the proof), _SYSTEM (no descriptors), _UNSUPPORTED. */
  weir_result_t (*connected)(void* context, weir_control_connection_t* connection);
  /* As sendmsg and recvmsg without waiting. Bytes that could not leave are given again, at least as
   * many of them, before any others. EPROTO: the bytes that arrived are not those that were
   * sent. */
  ssize_t (*session_send)(weir_control_session_t* session, const struct iovec* pieces,
                          size_t count);
  ssize_t (*session_receive)(weir_control_session_t* session, const struct iovec* pieces,
                             size_t count);
  /* The events to poll for when waiting to receive and, where `sends` is not 0, to send. */
  short (*session_events)(const weir_control_session_t* session, int sends);
  /* Not 0: bytes can be received that poll does not report. */
  int (*session_has_unread)(const weir_control_session_t* session);
  /* Tells the peer that nothing more is sent. */
  void (*session_shut)(weir_control_session_t* session);
  /* Closes the session without telling the peer. Also in a forked child. */
  void (*session_close)(weir_control_session_t* session);
} weir_control_t;

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
  /* Called by `connect`, in its thread, every few milliseconds while it waits for peers: WEIR_OK,
   * or an error when the caller has learned that not all of them will come. `connect` then fails
   * with that error at once, and does not replace the reason that this call has kept. Never waits.
   * May be NULL. */
  weir_result_t (*look)(void* context) WEIR_PLUGIN_NULL;
  /* NULL in calls of `viable`. The same from `open` on; its functions may be called from `connect`
   * on. */
  const weir_control_t* control WEIR_PLUGIN_NULL;
} weir_host_t;

typedef struct weir_transport_config {
  size_t struct_bytes;
  uint32_t rank;
  uint32_t rank_count;
  uint64_t comm_id;            /* the same on all ranks, random */
  const unsigned char* secret; /* job secret, `secret_bytes` long, the same on all ranks */
  size_t secret_bytes;
  uint64_t segment_bytes; /* wanted per rank; rounded up to pages by the transport */
  int huge_pages;         /* use them where they are available */

  /* Hints on where this rank is. They differ between ranks, and a transport works with or without
   * them. Texts are valid until `open` returns. */
  int32_t device WEIR_PLUGIN_UNKNOWN;    /* CUDA device of the rank, as its process numbers them */
  int32_t numa_node WEIR_PLUGIN_UNKNOWN; /* of all processors that the rank may use; -1: several */
  /* Network interfaces that are nearest, with commas, equally near; the first one is not the same
   * for all ranks of a host. NULL: not known. */
  const char* interface WEIR_PLUGIN_NULL;
  /* Network cards that this rank uses, with commas: names of verbs devices. NULL: not known. */
  const char* domain WEIR_PLUGIN_NULL;
} weir_transport_config_t;

/* Memory that all ranks map: rank i's part begins at base + i * stride. */
typedef struct weir_segment {
  unsigned char* base;
  uint64_t stride_bytes;
  uint64_t bytes_per_rank;
  /* NUMA node on which this rank's own part lies, or will lie once it is touched, while that node
   * has memory; -1: each page lies where it is touched first. */
  int32_t numa_node WEIR_PLUGIN_UNKNOWN;
} weir_segment_t;

/* An operation in flight: memory of the caller. Zeroed before posting. The transport defines what
 * the words mean; the last member belongs to a wrapper around it. */
typedef struct weir_transport_op {
  uint64_t word[8];
  uint64_t wrapper;
} weir_transport_op_t;

typedef struct weir_transport weir_transport_t;               /* an instance */
typedef struct weir_transport_memory weir_transport_memory_t; /* the caller's, registered */
typedef struct weir_transport_remote weir_transport_remote_t; /* a peer's, from its key */

/* ---- Whole collectives ---------------------------------------------------------------------- */

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

/* In addition to WEIR_SUM to WEIR_AVG: a sum in which each rank's input is multiplied by its
 * factor. */
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
  const void* scale;  /* one element, of WEIR_COLLECTIVE_SCALED_SUM */
  void* stream;       /* CUstream, where on_stream is 1 */
  uint32_t on_stream; /* 1: ordered behind what `stream` holds; 0: on one of the transport's */
} weir_collective_call_t;

/* WEIR_CAP_COLLECTIVES. The core calls open, `introduce`, `join` and `joined`, `start` with
 * `enqueued` and `test` of each operation, `abort` after a failure, close. It calls the other
 * functions only if their capabilities are declared; a transport that has only this capability
 * carries no messages: its address and connect may refuse. No function here waits, and buffers lie
 * in one of the table's memory_kinds. All ranks start the same operations in the same order. */
typedef struct weir_collective_functions {
  uint32_t struct_bytes;
  /* Bits 1 << WEIR_COLLECTIVE_*, 1 << weir_datatype_t, 1 << WEIR_SUM to WEIR_AVG and
   * 1 << WEIR_COLLECTIVE_SCALED_SUM. */
  uint32_t kinds;
  uint32_t types;
  uint32_t ops;

  /* Writes what the other ranks must know of this one, whose memory lies on device `device` of its
   * process; at most WEIR_TRANSPORT_ADDRESS_BYTES_MAX bytes. WEIR_ERROR_UNSUPPORTED: this rank
   * cannot take part. */
  weir_result_t (*introduce)(weir_transport_t* instance, int device, unsigned char* text,
                             size_t* bytes);
  /* texts[i] is what rank i's `introduce` wrote. Begins to connect the ranks; an error that follows
   * from the texts is the same on all of them. WEIR_IN_PROGRESS: ask `joined`. */
  weir_result_t (*join)(weir_transport_t* instance, const unsigned char* const* texts,
                        const size_t* bytes);
  weir_result_t (*joined)(weir_transport_t* instance);
  /* Takes the operation: WEIR_IN_PROGRESS. WEIR_ERROR_INVALID_ARGUMENT, _INVALID_USAGE,
   * _UNSUPPORTED: it was not taken, the instance is as before, and the same call fails in this way
   * on every rank. The next one may be started once this one is enqueued. */
  weir_result_t (*start)(weir_transport_t* instance, const weir_collective_call_t* call,
                         weir_transport_op_t* op);
  /* WEIR_OK: work that the stream is given from now on comes after the operation. */
  weir_result_t (*enqueued)(weir_transport_t* instance, weir_transport_op_t* op);
  /* WEIR_OK: the device has finished it, or it was captured into a graph and is enqueued; the words
   * of `op` are free. An error of any operation means that no other will complete. */
  weir_result_t (*test)(weir_transport_t* instance, weir_transport_op_t* op);
  /* Ends all operations, whatever peers do. WEIR_IN_PROGRESS: call it again. WEIR_OK: nothing reads
   * or writes their buffers any more. Only close follows. */
  weir_result_t (*abort)(weir_transport_t* instance);
} weir_collective_functions_t;

struct weir_transport_functions;

/* A transport that another one is made of. */
typedef struct weir_transport_part {
  const struct weir_transport_functions* transport;
  const char* role; /* its purpose, as text for people, such as "within a host" */
} weir_transport_part_t;

/* Functions are only ever appended. A table may be shorter than this one (it was built against an
 * earlier header): then it declares no capability whose functions lie beyond its end. */
typedef struct weir_transport_functions {
  uint32_t abi_version; /* WEIR_PLUGIN_ABI_VERSION */
  uint32_t struct_bytes;
  const char* name;    /* "shm", "tcp", … */
  const char* summary; /* one line for weir-info */

  weir_transport_caps_t caps;

  /* Given to `viable` and `open`, so that tables of the same functions can differ. */
  void* context WEIR_PLUGIN_NULL;
  /* For a composite: the transports that it is made of, up to a part whose transport is NULL. They
   * live as long as the table. A wrapper has one part. Composites are made by the core; the table
   * of a plugin's file has no parts. */
  const weir_transport_part_t* parts WEIR_PLUGIN_NULL;

  /* WEIR_OK, or WEIR_ERROR_UNSUPPORTED with the reason in `reason`: the transport cannot work on
   * this machine. */
  weir_result_t (*viable)(void* context, const weir_host_t* host, char* reason,
                          size_t reason_bytes);

  weir_result_t (*open)(void* context, const weir_host_t* host,
                        const weir_transport_config_t* config, weir_transport_t** instance);
  /* Writes at most WEIR_TRANSPORT_ADDRESS_BYTES_MAX bytes. */
  weir_result_t (*address)(weir_transport_t* instance, unsigned char* address, size_t* bytes);
  /* addresses[i] is what rank i's `address` wrote. Returns when every peer is reachable, or with
   * WEIR_ERROR_TIMEOUT naming the missing ranks; deadline_ns is of CLOCK_MONOTONIC. */
  weir_result_t (*connect)(weir_transport_t* instance, const unsigned char* const* addresses,
                           const size_t* address_bytes, uint64_t deadline_ns);
  /* Also called in a child that was forked from the process of `open`. There it frees what is the
   * child's own; connections, shared memory and rings belong to the parent, so it tells, shuts
   * down, writes and waits for nothing. No other function is called there. */
  void (*close)(weir_transport_t* instance);

  /* Post. WEIR_OK: complete already; WEIR_IN_PROGRESS: ask `test`. The bytes of a complete send
   * arrive without further calls by its rank. */
  weir_result_t (*send)(weir_transport_t* instance, uint32_t peer, uint32_t lane, const void* data,
                        uint64_t bytes, weir_transport_op_t* op) WEIR_PLUGIN_NULL;
  weir_result_t (*recv)(weir_transport_t* instance, uint32_t peer, uint32_t lane, void* data,
                        uint64_t bytes, weir_transport_op_t* op) WEIR_PLUGIN_NULL;
  /* WEIR_OK: complete. WEIR_IN_PROGRESS: not yet. May make progress itself. */
  weir_result_t (*test)(weir_transport_t* instance, weir_transport_op_t* op) WEIR_PLUGIN_NULL;
  /* Moves whatever can be moved without waiting. An error is one of the instance, or of some posted
   * operation, whose `test` reports it, too. */
  weir_result_t (*progress)(weir_transport_t* instance);

  /* WEIR_CAP_SEGMENT; valid from connect to close. */
  weir_result_t (*segment)(weir_transport_t* instance, weir_segment_t* segment) WEIR_PLUGIN_NULL;
  /* WEIR_CAP_WINDOW; collective, bounded by the deadline. `key` (16 bytes) is the same on all ranks
   * and new for each call. */
  weir_result_t (*window_open)(weir_transport_t* instance, const unsigned char* key,
                               uint64_t bytes_per_rank, uint64_t deadline_ns,
                               weir_segment_t* window) WEIR_PLUGIN_NULL;
  void (*window_close)(weir_transport_t* instance, const weir_segment_t* window) WEIR_PLUGIN_NULL;

  /* WEIR_CAP_PEER_FAILURE: WEIR_OK while the peer lives, WEIR_ERROR_PEER_LOST once it is dead. */
  weir_result_t (*peer_alive)(weir_transport_t* instance, uint32_t peer) WEIR_PLUGIN_NULL;

  /* WEIR_CAP_QUIESCE. The core calls it after an operation has failed or was given up, and calls
   * send, recv, test and progress no more: operations that are posted will never complete. After it
   * returns nothing reads or writes their buffers or words any more, so that the caller may free
   * them while the instance lives on. Waits for no peer; valid from connect to close; a second call
   * has no effect. peer_alive works as before. It ends registered and remote memory, as close
   * does. */
  void (*quiesce)(weir_transport_t* instance) WEIR_PLUGIN_NULL;

  /* One-sided operations: WEIR_CAP_PUT, WEIR_CAP_GET, WEIR_CAP_SIGNAL. The target registers memory
   * and packs a key of it; the caller brings the key to the origin; the origin opens it and then
   * reads and writes that memory. The shape is that of UCX (ucp_rkey_pack, ucp_put_nbx) and of
   * libfabric (fi_mr(3), fi_rma(3)). All are valid from connect to close, in one thread like the
   * rest; functions that make or end something may allocate, lock and make system calls. Both ends
   * make progress only within calls of this instance: a target that makes none may delay operations
   * on its memory.
   *
   * Returns which of the three bits this instance has, a subset of those of the table: a transport
   * may have found a network that can do less. Why the others are missing is written to `reason`
   * (at most reason_bytes with the zero), "" when none is missing. The same on all ranks. */
  uint64_t (*remote_caps)(weir_transport_t* instance, char* reason,
                          size_t reason_bytes) WEIR_PLUGIN_NULL;
  /* [base, base + bytes) of the host's memory, at least a byte, may from now on be read and written
   * by ranks that hold a key of it. It stays the caller's, and stays mapped until it is
   * deregistered. Several registrations may overlap. */
  weir_result_t (*memory_register)(weir_transport_t* instance, void* base, uint64_t bytes,
                                   weir_transport_memory_t** memory) WEIR_PLUGIN_NULL;
  /* Writes the key, at most WEIR_TRANSPORT_KEY_BYTES_MAX bytes: valid on any rank of this
   * communicator until the memory is deregistered. */
  weir_result_t (*memory_key)(weir_transport_t* instance, const weir_transport_memory_t* memory,
                              unsigned char* key, size_t* bytes) WEIR_PLUGIN_NULL;
  /* The caller first makes sure that no peer has an operation on it under way. `close` deregisters
   * what is left. */
  void (*memory_deregister)(weir_transport_t* instance,
                            weir_transport_memory_t* memory) WEIR_PLUGIN_NULL;
  /* `key` is what `memory_key` wrote on rank `peer` (the own rank with WEIR_CAP_SELF); it is
   * copied. A key that is truncated, changed, or of another rank, communicator or transport is
   * WEIR_ERROR_REFUSED, and nothing in it is used. */
  weir_result_t (*remote_open)(weir_transport_t* instance, uint32_t peer, const unsigned char* key,
                               size_t key_bytes, weir_transport_remote_t** remote) WEIR_PLUGIN_NULL;
  /* Operations on it that are under way complete as usual. `close` closes what is left. */
  void (*remote_close)(weir_transport_t* instance,
                       weir_transport_remote_t* remote) WEIR_PLUGIN_NULL;

  /* Copies `bytes` bytes to, or from, `offset_bytes` of the remote memory; an access that does not
   * lie within it is WEIR_ERROR_INVALID_ARGUMENT. The local buffer may be any memory that send and
   * recv take. `op` as with send, and ended by `test`. Operations are unordered among each other
   * and with messages. A put is complete when its bytes are in the target's memory: the target sees
   * them before anything that it learns of afterwards (by a message, a signal). A get is complete
   * when its bytes are in the local buffer. Errors: WEIR_ERROR_PEER_LOST, also of those under
   * way. */
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
  /* Makes progress, and reads the word at `offset_bytes` of the caller's own memory; its address is
   * a multiple of 8. Its value is what the caller stored there before it gave the key away, plus
   * what has been added since: it never decreases, except by wrapping at 2^64. While peers may
   * signal, nothing else writes it. */
  weir_result_t (*signal_read)(weir_transport_t* instance, const weir_transport_memory_t* memory,
                               uint64_t offset_bytes, uint64_t* value) WEIR_PLUGIN_NULL;

  /* Optional for any transport. Writes one line for people on how this rank reaches another one and
   * why in this way, at most text_bytes with the zero, truncated where it is longer: "rank 0 at
   * 10.0.0.1:4000 (over eth0: same subnet)"; "" when there is nothing to tell. Does not wait; valid
   * from connect to close. */
  void (*describe_peer)(weir_transport_t* instance, uint32_t peer, char* text,
                        size_t text_bytes) WEIR_PLUGIN_NULL;

  /* Optional for any transport. Gives up one peer, never the own rank, and keeps the others.
   * WEIR_OK: nothing reads or writes the buffers or words of operations with that peer any more;
   * these operations are never tested again. Later operations with it are WEIR_ERROR_PEER_LOST.
   * Data that was under way in either direction may be lost. The peer is not told: its operations
   * fail, or stay as they are until it gives up this rank, too. Within the instance this cannot be
   * undone. Any other result: the transport cannot do this, now or later, and only `close` and
   * `quiesce` release those buffers; until then nothing may be sent to or received from that peer.
   * Waits for no peer; valid from connect to close; a second call for the same peer has no
   * effect. */
  weir_result_t (*peer_leave)(weir_transport_t* instance, uint32_t peer) WEIR_PLUGIN_NULL;

  /* WEIR_CAP_COLLECTIVES; lives for ever. */
  const weir_collective_functions_t* collectives WEIR_PLUGIN_NULL;

  /* WEIR_CAP_DEVICE_MEMORY, with WEIR_CAP_SEND_RECV and WEIR_MEMORY_CUDA: messages whose buffer, at
   * this end, is memory that only CUDA device `device` (its number in this process) is sure to
   * reach. Valid from connect to close, in one thread like the rest.
   *
   * Whether messages with `peer` can lie there: WEIR_OK, or WEIR_ERROR_UNSUPPORTED with what is
   * missing in `reason` (at most reason_bytes with the zero): what a library below was built with
   * is known only where it runs. Each rank finds out for itself. Does not wait. */
  weir_result_t (*device_viable)(weir_transport_t* instance, uint32_t peer, int device,
                                 char* reason, size_t reason_bytes) WEIR_PLUGIN_NULL;
  /* As send and recv, and in one order with them: the buffer at the other end may be of any kind
   * that its rank can post. The transport knows no streams. When it is called, the data to send is
   * in the device's memory, and no work that the device has been given still uses the buffer of a
   * receive. When it is complete, work that the device is given from then on may overwrite the data
   * that was sent, and reads the data that was received. Only the device, and what moves the bytes
   * for it, accesses the buffer. From the first such message on the device's primary context is
   * current in send, recv, test and progress, too. There is no credit: a send of any size may stay
   * in progress until it is received. WEIR_ERROR_UNSUPPORTED: this memory cannot be moved, nothing
   * has been posted, and the instance is as before. */
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
