/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_OFFLOAD_H
#define WEIR_OFFLOAD_H

/*
 * Weir's offload: optimizer state that lives in memory or on NVMe, and steps of it. C11.
 *
 * An optimizer holds the f32 master weights and moments of named parameter groups, or of this
 * rank's part of them. A training runtime hands over gradients and takes updated parameters; in
 * between, the state is stepped where it lies, or streamed through memory from and to the drives.
 *
 *   create or open -> [ gradient … , step ] … -> checkpoint … -> destroy
 *
 * Ranges. A range of parameters is (group, first, count): elements of this rank's part of the
 * group.
 *
 * Ownership. Handles end with destroy. Arrays that are handed over belong to the caller; a gradient
 * is read until the step that uses it has finished, unless it was accumulated (then it is read at
 * once); an output is written by steps until it is replaced or the optimizer is destroyed.
 *
 * Threads. Calls on one optimizer are serialized inside, except for weir_optimizer_wait, which may
 * run on any thread beside a step. Different optimizers are independent.
 *
 * Fork. As in weir.h: in a child every call with the parent's handle is WEIR_ERROR_INVALID_USAGE,
 * but for weir_optimizer_destroy, which closes what the child has open of it. The parent's state,
 * its files and their lock stay as they are.
 *
 * Crashes. With directories, what a committed step wrote survives a crash at any instant; opening
 * finds the last committed step. Without directories the state dies with the process.
 *
 * Damage. Drives lose and change bytes that were written. A store keeps the last two commits.
 * Before the first step after opening writes over the older one, every byte of the newer one has
 * been read and checked; where it is damaged the state goes back to the older one, and this is
 * reported: a warning in the log, an error of the step if it is found there, and
 * weir_optimizer_store_report. With several ranks opening checks, before the ranks agree on a step.
 *
 * Errors. As in weir.h: nothing throws, exits or blocks for ever. weir_last_error(NULL) has the
 * calling thread's text. After an error of a step the state is that before the step, outputs and
 * gradients too, and the step may be repeated, with three exceptions. With durable_every above 1
 * and steps that are not committed, an error of a drive, or a gradient that is not finite though
 * the sum that was given is, takes the state back to the last committed step, and the gradients are
 * dropped: the text says which steps have to be repeated, each with its own gradients, and the
 * report and weir_optimizer_committed_step say at which step the state is. A step that finds the
 * last commit damaged goes back to the one before, without the gradients. After a failed sync or
 * commit of its own files, in any call, or when going back fails as well, the optimizer is
 * unusable: every call except destroy and describe returns that first failure, and opening the
 * directories finds the last committed step. Only one case may leave no commit to open: a step
 * finds damage in data that was whole before it. That is WEIR_ERROR_REFUSED, and the text has the
 * command that tells.
 */

#include <stddef.h>
#include <stdint.h>

#include "weir/weir.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_optimizer* weir_optimizer_t;

/* The formulas are in docs/offload.md. */
typedef enum weir_method WEIR_INT_ENUM {
  WEIR_ADAMW = 0, /* decoupled weight decay (Loshchilov, Hutter 2019) */
  WEIR_ADAM = 1,  /* weight decay in the gradient (Kingma, Ba 2015) */
  WEIR_SGD_MOMENTUM = 2,
  WEIR_ADAGRAD = 3,
  WEIR_LION = 4
} weir_method_t;

typedef enum weir_state_format WEIR_INT_ENUM {
  WEIR_STATE_FLOAT32 = 0, /* f32 master and moments: 12 bytes each way with two moments */
  WEIR_STATE_HALF_MASTER =
      1, /* bf16 copy in memory + 16 stored bits = exact f32 master; bf16 moments */
  WEIR_STATE_HALF_MASTER8 = 2 /* the same with block-wise 8-bit moments */
} weir_state_format_t;

/* May change between steps. Fields that the method does not use are ignored. */
typedef struct weir_hyper {
  double learning_rate;
  double beta1;        /* [0, 1) */
  double beta2;        /* [0, 1) */
  double eps;          /* added outside the root */
  double weight_decay; /* AdamW, Lion: decoupled; the others: in the gradient */
  double momentum;     /* SGD: [0, 1) */
} weir_hyper_t;
#define WEIR_HYPER_INIT \
  { 1e-3, 0.9, 0.999, 1e-8, 0.0, 0.9 }

typedef struct weir_parameter_group {
  size_t struct_bytes;
  const char* name;       /* unique */
  uint64_t element_count; /* of this rank */
  uint64_t first_element; /* where this rank's part begins in the whole group; 0 with one rank */
  weir_method_t method;
  weir_state_format_t format;
  weir_hyper_t hyper;
} weir_parameter_group_t;
#define WEIR_PARAMETER_GROUP_INIT \
  { sizeof(weir_parameter_group_t), NULL, 0, 0, WEIR_ADAMW, WEIR_STATE_FLOAT32, WEIR_HYPER_INIT }

enum {
  /* Without directories: state keeps a second slot, so that a held step can be taken back (twice
   * the memory). With directories no flag is needed: undo reads the committed state. */
  WEIR_OFFLOAD_UNDO_IN_MEMORY = 1u << 0,
  WEIR_OFFLOAD_READ_ONLY = 1u << 1, /* open: a store or checkpoint to read parameters from */
  /* Modes of io_uring, with directories. SQPOLL: a kernel thread, which spins, submits transfers.
   * IOPOLL: completions are polled, which needs O_DIRECT and devices with poll queues in every
   * directory. If a mode is not available, create and open return WEIR_ERROR_UNSUPPORTED with the
   * reason. */
  WEIR_OFFLOAD_SQPOLL = 1u << 2,
  WEIR_OFFLOAD_IOPOLL = 1u << 3,
  /* open reads and checks all of the committed step now, at the drives' speed, and goes back to the
   * step before where it is damaged. Without it the first step does, with one rank. */
  WEIR_OFFLOAD_VERIFY = 1u << 4
};

/* In which order every step takes the parameters, and so which of them weir_optimizer_wait returns
 * for first. Groups are in the order in which they are given. */
typedef enum weir_sweep_order WEIR_INT_ENUM {
  WEIR_SWEEP_FIRST_FIRST = 0, /* for a forward pass that begins with the first */
  WEIR_SWEEP_LAST_FIRST = 1
} weir_sweep_order_t;

/* Progress of a verification: the number of bytes checked and their total, some times a second and
 * at its end. Called within open, or within the first step on the thread that runs it; must call no
 * function of the optimizer. */
typedef void (*weir_verify_progress_t)(void* context, uint64_t done_bytes, uint64_t total_bytes);

typedef struct weir_offload_config {
  size_t struct_bytes;
  const char* model; /* a name for error texts and the store; NULL: "model" */
  int rank;
  int rank_count;
  /* Where the state lies. No directories: all of it in memory. With directories: chunks fill
   * `memory_bytes` first and the rest is streamed; a hard budget that also holds the stream's
   * buffers, the bf16 copies of half-master formats and the gradient accumulators. 0: as little as
   * the stream needs. Steps do not read from the drives what is in memory, and only commits write
   * it there. Several directories (one a drive) are striped. Without directories, memory_bytes
   * other than 0 is a limit. */
  const char* const* directories;
  int directory_count;
  uint64_t memory_bytes;
  uint64_t chunk_bytes;   /* 0: 1 MiB */
  int thread_count;       /* 0: the cores listed, or else those that the calling thread may use */
  int durable_every;      /* commit every so many steps; 0: 1 */
  uint64_t seed;          /* of stochastic rounding */
  int64_t timeout_ms;     /* without any progress of the drives; 0: 60,000 */
  const char* trace_file; /* Chrome trace of the latest step, rewritten by each; NULL: none */
  unsigned int flags;
  weir_sweep_order_t order;
  /* Threads of the optimizer run wherever the thread that creates it may, or, where cores are
   * listed, thread i on cores[i % core_count] alone. They must be among those of the process:
   * another one is an error that names it. The calling thread, which computes too where state is in
   * memory, takes the place of thread 0 and is never moved. With several ranks on a host, list
   * other ones for each. */
  const int* cores;
  int core_count;
  /* Bytes a second that a thread of the optimizer reads of the committed step while the drives are
   * idle, to find damage as long as there is a step to go back to; never beside a step. 0: none.
   * Takes a chunk of memory, from the budget if it has room, and is left out otherwise. */
  uint64_t scrub_bytes_per_s;
  weir_verify_progress_t verify_progress; /* NULL: the log alone tells */
  void* verify_progress_context;
} weir_offload_config_t;
#define WEIR_OFFLOAD_SCRUB_BYTES_PER_S 33554432 /* 32 MiB, the initializer's value */
#define WEIR_OFFLOAD_CONFIG_INIT                                                    \
  {                                                                                 \
    sizeof(weir_offload_config_t), NULL, 0, 1, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, 0,  \
        WEIR_SWEEP_FIRST_FIRST, NULL, 0, WEIR_OFFLOAD_SCRUB_BYTES_PER_S, NULL, NULL \
  }

/* ---- Life ------------------------------------------------------------------------------------ */

/* New state: master weights and moments are zero until set. With directories, refused where a store
 * with a committed step is already, or files of one whose metadata cannot be read; files of a run
 * that ended before its first commit are replaced, unless a process has them open. Everything is
 * allocated now, so that a full disk or too small a budget is an error of this call. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_create(weir_optimizer_t* optimizer,
                                                             const weir_offload_config_t* config,
                                                             const weir_parameter_group_t* groups,
                                                             int group_count);

/* The state of the last committed step, or of the one before where the last is found damaged: call
 * weir_optimizer_store_report, and take your position from weir_optimizer_committed_step. If
 * neither is whole, WEIR_ERROR_REFUSED, and nothing is written. Files of the older step that are
 * missing or short are made anew, which the report says. `groups` are compared with the store's
 * description of itself; another model, rank, rank count or shape is WEIR_ERROR_MISMATCH, with what
 * was expected and found. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_open(weir_optimizer_t* optimizer,
                                                           const weir_offload_config_t* config,
                                                           const weir_parameter_group_t* groups,
                                                           int group_count);

/* Fills a created optimizer, before its first step, from a checkpoint written by any number
 * of ranks: `shards` are the directories of all ranks' checkpoints, rank after rank,
 * `directories_per_shard` for each. The groups must be the same, by name, with the same methods and
 * formats, and this rank's part must lie within the whole (with one rank: be the whole). Bit for
 * bit, but for 8-bit moments whose blocks of 256 are cut differently. Takes some chunks of memory
 * beyond the budget while it runs. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_restore(weir_optimizer_t optimizer,
                                                              const char* const* shards,
                                                              int shard_count,
                                                              int directories_per_shard);

/* Waits for a step under way. NULL is accepted. */
WEIR_API weir_result_t weir_optimizer_destroy(weir_optimizer_t optimizer);

/* ---- Parameters ------------------------------------------------------------------------------ */

/* Sets master weights from f32, bf16 or f16, before the first step and commit; moments become
 * zero. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_set_parameters(weir_optimizer_t optimizer,
                                                                     int group, uint64_t first,
                                                                     uint64_t count,
                                                                     weir_datatype_t type,
                                                                     const void* parameters);

/* The parameters after the last finished step, rounded to nearest even. Streams from the drives
 * where they lie there. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_get_parameters(weir_optimizer_t optimizer,
                                                                     int group, uint64_t first,
                                                                     uint64_t count,
                                                                     weir_datatype_t type,
                                                                     void* parameters);

/* `output` (element_count elements of f32, bf16 or f16; NULL: none) receives the updated parameters
 * in the pass of each step. `stochastic`: 16-bit outputs are rounded stochastically, keyed on
 * (seed, step, element), the same for any sharding. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_set_output(weir_optimizer_t optimizer,
                                                                 int group, weir_datatype_t type,
                                                                 void* output, int stochastic);

WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_set_hyper(weir_optimizer_t optimizer,
                                                                int group,
                                                                const weir_hyper_t* hyper);

/* ---- Gradients ------------------------------------------------------------------------------- */

/* The gradient of a range for the next step, in f32, bf16 or f16: read when the step runs, so it
 * must stay until the step has finished. Every parameter needs exactly one before a step (or some
 * accumulated): a range that is missing or given twice is an error that names it. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_gradient(weir_optimizer_t optimizer,
                                                               int group, uint64_t first,
                                                               uint64_t count, weir_datatype_t type,
                                                               const void* gradient);

/* Adds a range to the optimizer's own f32 gradients, which begin at zero after each step. The first
 * use takes 4 bytes a parameter of the group from the budget; chunks in memory go to the drives
 * where there is no room otherwise. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_accumulate(weir_optimizer_t optimizer,
                                                                 int group, uint64_t first,
                                                                 uint64_t count,
                                                                 weir_datatype_t type,
                                                                 const void* gradient);

/* Statistics of the gradients given so far, as they were given, that is still multiplied by the
 * loss scale. For a norm over several ranks, add up the sums and give the total to the step. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_gradient_stats(
    weir_optimizer_t optimizer, double* sum_of_squares_of_scaled_gradients, int* all_finite);

/* ---- Steps ----------------------------------------------------------------------------------- */

/* Overflow: a step that is not held is skipped, wherever the state lies, where a gradient is
 * infinite or NaN after it was divided by the loss scale (times 1 / loss_scale in f32) and clipped,
 * or the norm is infinite or NaN in double, also by the division. With several ranks, whose
 * gradients this one does not see, a norm beyond f32 after clipping is enough: all skip or none. */
typedef struct weir_step_options {
  size_t struct_bytes;
  double loss_scale; /* gradients are divided by it; 0: 1 */
  double norm_max;   /* gradients are scaled down to this global norm; 0: no clipping */
  /* Sum of squares over all ranks, of the gradients as they are given to weir_optimizer_gradient,
   * before they are divided by the loss scale: what weir_optimizer_gradient_stats says, and
   * loss_scale^2 times the sum after what AMP calls unscaling. Negative: this rank's own, computed
   * here, before the step (norm first, step second). Infinite or NaN: an overflow. A finite one
   * says that all gradients are finite. Where that is not so, a step over drives, or in memory with
   * WEIR_OFFLOAD_UNDO_IN_MEMORY, is skipped before it is committed or kept (weir_optimizer_wait may
   * have returned for some of its outputs by then); in memory without the flag it is taken, and
   * not_finite_count of the report says so. With durable_every above 1 and steps that are not
   * committed, it is an error, WEIR_ERROR_INVALID_ARGUMENT, that takes the state back to the last
   * committed step and drops the gradients. */
  double sum_of_squares_of_scaled_gradients;
  /* The step runs with `loss_scale`, no clipping and no overflow check at once, is not committed,
   * and waits for weir_optimizer_accept or weir_optimizer_undo. With directories and durable_every
   * above 1, what is not yet committed is committed before it. */
  int hold;
} weir_step_options_t;
#define WEIR_STEP_OPTIONS_INIT \
  { sizeof(weir_step_options_t), 1.0, 0.0, -1.0, 0 }

typedef struct weir_step_report {
  size_t struct_bytes;
  uint64_t step; /* steps that the state has taken, this one included */
  int skipped;   /* overflow: the state is that before the step, and the gradients are dropped */
  int committed; /* it survives a crash from now on */
  double norm;   /* of the gradients divided by loss_scale, before clipping; -1 with hold */
  uint64_t parameter_count;
  uint64_t read_bytes; /* from drives */
  uint64_t written_bytes;
  double seconds;
  double disk_wait_seconds;
  double compute_seconds;
  double compute_hidden; /* part of compute that the drives worked through, 0 to 1; 1 in memory */
  /* Gradients of this rank that were infinite or NaN, after they were divided and clipped, also
   * with hold: how many, and the first. */
  uint64_t not_finite_count;
  int not_finite_group;        /* -1: none */
  uint64_t not_finite_element; /* of this rank's part of the group */
} weir_step_report_t;
#define WEIR_STEP_REPORT_INIT \
  { sizeof(weir_step_report_t), 0, 0, 0, -1.0, 0, 0, 0, 0.0, 0.0, 0.0, 1.0, 0, -1, 0 }

/* Steps all groups. `report` may be NULL. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_step(weir_optimizer_t optimizer,
                                                           const weir_step_options_t* options,
                                                           weir_step_report_t* report);

/* The same on a thread of the optimizer. Until finish, only wait may be called. */
WEIR_API WEIR_MUST_CHECK weir_result_t
weir_optimizer_step_start(weir_optimizer_t optimizer, const weir_step_options_t* options);
/* Returns when the outputs of the range are those of the step under way, or it has failed or was
 * skipped (then with WEIR_OK and the old parameters, unless the optimizer is unusable). Returns at
 * once when no step is under way. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_wait(weir_optimizer_t optimizer, int group,
                                                           uint64_t first, uint64_t count);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_step_finish(weir_optimizer_t optimizer,
                                                                  weir_step_report_t* report);

/* Ends a held step: keeps it and commits, or goes back to the state before it, bit for bit, with
 * the gradients still there. Outputs are written again by undo, as the step before left them; those
 * of step 0 are the parameters rounded in the same way. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_accept(weir_optimizer_t optimizer);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_undo(weir_optimizer_t optimizer);

/* Makes the last step durable now, whatever durable_every says. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_commit(weir_optimizer_t optimizer);

/* With several ranks: the first function returns the last step that this rank has committed; the
 * second one takes the minimum over all ranks. A store keeps the last two commits, and the next one
 * writes over the older. So a rank that has committed step k starts the next step only when told
 * that all have committed step k (WEIR_ERROR_INVALID_USAGE otherwise; step 0 does not need this),
 * and after a crash all can go back to one step: open, exchange `committed_step`, call
 * weir_optimizer_roll_back with the minimum, then weir_optimizer_peers_committed with it. Rolling
 * back drops gradients that were given. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_committed_step(weir_optimizer_t optimizer,
                                                                     uint64_t* step);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_peers_committed(weir_optimizer_t optimizer,
                                                                      uint64_t step);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_roll_back(weir_optimizer_t optimizer,
                                                                uint64_t step);

/* Why the state is not that of the last commit. */
typedef enum weir_went_back WEIR_INT_ENUM {
  WEIR_WENT_BACK_NOT = 0,
  WEIR_WENT_BACK_CHUNK = 1, /* chunks of the last commit were damaged */
  /* The last commit's record cannot be read in any of its copies: either the commit was
   * interrupted, so that no caller was told of it, or a committed step is lost. */
  WEIR_WENT_BACK_RECORD = 2
} weir_went_back_t;

typedef struct weir_store_report {
  size_t struct_bytes;
  uint64_t step;  /* steps that the state has taken */
  uint64_t epoch; /* commits up to the committed step */
  /* Since create or open: whether the state went back, what was given up, and for which damage. */
  weir_went_back_t went_back;
  int damaged; /* the scrub or a read has found the committed step damaged: the next step goes back
                  where the one before is whole */
  uint64_t lost_epoch; /* the commit that was given up */
  uint64_t lost_step;  /* 0 with WEIR_WENT_BACK_RECORD: only the record knew */
  /* Chunks of the commit that was given up (WEIR_WENT_BACK_CHUNK), else of `damaged`; count 0:
   * none. */
  uint64_t bad_chunk_count;
  uint64_t bad_chunk;        /* the first one */
  const char* bad_file;      /* its file; valid until this thread's next call of this function */
  uint64_t bad_offset_bytes; /* in the file */
  /* All of it as text for people, and the slot files that open has recreated or truncated; "" when
   * all is well; valid as long as bad_file. */
  const char* text;
  uint64_t chunk_count;
  uint64_t verified_chunk_count; /* of the committed step: read and whole since it was opened, or
                                    written by this optimizer */
  uint64_t verify_bytes;         /* read by verifications, in so many seconds */
  double verify_seconds;
  uint64_t scrub_bytes;      /* read by the scrub */
  uint64_t scrub_pass_count; /* whole passes over the committed step */
} weir_store_report_t;
#define WEIR_STORE_REPORT_INIT                                                                    \
  {                                                                                               \
    sizeof(weir_store_report_t), 0, 0, WEIR_WENT_BACK_NOT, 0, 0, 0, 0, 0, NULL, 0, NULL, 0, 0, 0, \
        0.0, 0, 0                                                                                 \
  }

/* Whether the store is whole, as far as it is known: after open, after a step that failed with
 * WEIR_ERROR_REFUSED, and now and then. Reads nothing of the drives. Only with directories. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_store_report(weir_optimizer_t optimizer,
                                                                   weir_store_report_t* report);

/* Holds the last step in `directories` (as many as the optimizer has; without directories any one,
 * a copy): by hard links or reflinks where the file system has them, else by copies. Commits first
 * what durable_every left uncommitted. Refused where a store or a complete checkpoint is; an
 * incomplete checkpoint that a killed process left is replaced. Links and reflinks do not read the
 * state: a checkpoint of a step that is known to be damaged (weir_store_report_t) is refused,
 * damage that was not found yet is kept as it is. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_checkpoint(weir_optimizer_t optimizer,
                                                                 const char* const* directories,
                                                                 int directory_count);

/* Bytes of memory that the optimizer holds now, and a description of its arena and disks. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_memory(weir_optimizer_t optimizer,
                                                             uint64_t* bytes);
WEIR_API const char* weir_optimizer_describe(weir_optimizer_t optimizer);

#ifdef __cplusplus
}
#endif

#endif /* WEIR_OFFLOAD_H */
