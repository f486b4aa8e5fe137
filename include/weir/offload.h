/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WEIR_OFFLOAD_H
#define WEIR_OFFLOAD_H

/*
 * Weir's offload: optimizer state that lives in memory or on NVMe, and steps of it. C11.
 *
 * An optimizer holds the f32 master weights and moments of named parameter groups, or of this rank's
 * part of them. A training runtime hands over gradients and takes updated parameters; in between,
 * the state is stepped where it lies, or streamed through memory from and to the drives.
 *
 *   create or open -> [ gradient … , step ] … -> checkpoint … -> destroy
 *
 * Ranges. A range of parameters is (group, first, count): elements of this rank's part of the group.
 *
 * Ownership. Handles end with destroy. Arrays that are handed over belong to the caller; a gradient
 * is read until the step that uses it has finished, unless it was accumulated (then it is read at
 * once); an output is written by steps until it is replaced or the optimizer is destroyed.
 *
 * Threads. Calls on one optimizer are serialized inside, except for weir_optimizer_wait, which may
 * run on any thread beside a step. Different optimizers are independent.
 *
 * Crashes. With directories, what a committed step wrote survives a crash at any instant; opening
 * finds the last committed step. Without directories the state dies with the process.
 *
 * Errors. As in weir.h: nothing throws, exits or blocks for ever. weir_last_error(NULL) has the
 * calling thread's text. After an error of a step the state is that before the step, outputs and
 * gradients too, and the step may be repeated, but for two cases. With durable_every above 1, an
 * error of a drive takes the state back to the last committed step, and the text says to which.
 * After a failed sync or commit, or when going back fails as well, the optimizer is of no more use,
 * says so in every call, and opening the directories finds the last committed step.
 */

#include <stddef.h>
#include <stdint.h>

#include "weir/weir.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct weir_optimizer* weir_optimizer_t;

/* The formulas stand in docs/offload.md. */
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
  WEIR_OFFLOAD_READ_ONLY = 1u << 1 /* open: a store or checkpoint to read parameters from */
};

typedef struct weir_offload_config {
  size_t struct_bytes;
  const char* model; /* a name for error texts and the store; NULL: "model" */
  int rank;
  int rank_count;
  /* Where the state lies. No directories: all of it in memory. With directories: chunks fill
   * `memory_bytes` first and the rest is streamed; a hard budget that also holds the stream's buffers,
   * the bf16 copies of half-master formats and the gradient accumulators. 0: as little as the stream
   * needs. What is in memory is not read by steps, and written by commits alone. Several directories
   * (one a drive) are striped. Without directories, memory_bytes other than 0 is a limit. */
  const char* const* directories;
  int directory_count;
  uint64_t memory_bytes;
  uint64_t chunk_bytes;   /* 0: 1 MiB */
  int thread_count;       /* 0: the cores that the process may use */
  int durable_every;      /* commit every so many steps; 0: 1 */
  uint64_t seed;          /* of stochastic rounding */
  int64_t timeout_ms;     /* without any progress of the drives; 0: 60,000 */
  const char* trace_file; /* Chrome trace of the latest step, rewritten by each; NULL: none */
  unsigned int flags;
} weir_offload_config_t;
#define WEIR_OFFLOAD_CONFIG_INIT \
  { sizeof(weir_offload_config_t), NULL, 0, 1, NULL, 0, 0, 0, 0, 0, 0, 0, NULL, 0 }

/* ---- Life ------------------------------------------------------------------------------------- */

/* New state: master weights and moments are zero until set. With directories, refused where a store
 * with a committed step is already, while one without, left by a run that ended early, is replaced.
 * Everything is allocated now, so that a full disk or too small a budget is found here. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_create(weir_optimizer_t* optimizer,
                                                             const weir_offload_config_t* config,
                                                             const weir_parameter_group_t* groups,
                                                             int group_count);

/* The state of the last committed step. `groups` are compared with what the store says of itself;
 * another model, rank, rank count or shape is refused with what was expected and found. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_open(weir_optimizer_t* optimizer,
                                                           const weir_offload_config_t* config,
                                                           const weir_parameter_group_t* groups,
                                                           int group_count);

/* Fills a created optimizer, before its first step, from a checkpoint that was written by any number
 * of ranks: `shards` are the directories of all ranks' checkpoints, rank after rank,
 * `directories_per_shard` for each. Group names, methods and formats must agree, and this rank's part
 * must lie within the whole (with one rank: be the whole). Bit for bit, but for 8-bit moments whose
 * blocks of 256 are cut differently. Takes some chunks of memory beyond the budget while it runs. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_restore(weir_optimizer_t optimizer,
                                                              const char* const* shards,
                                                              int shard_count,
                                                              int directories_per_shard);

/* Waits for a step under way. NULL is accepted. */
WEIR_API weir_result_t weir_optimizer_destroy(weir_optimizer_t optimizer);

/* ---- Parameters --------------------------------------------------------------------------------- */

/* Sets master weights from f32, bf16 or f16, before the first step and commit; moments become zero. */
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

/* ---- Gradients ---------------------------------------------------------------------------------- */

/* The gradient of a range for the next step, in f32, bf16 or f16: read when the step runs, so it must
 * stay until the step has finished. Every parameter needs exactly one before a step (or some
 * accumulated): a range that is missing or given twice is an error that names it. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_gradient(weir_optimizer_t optimizer,
                                                               int group, uint64_t first,
                                                               uint64_t count, weir_datatype_t type,
                                                               const void* gradient);

/* Adds a range to the optimizer's own f32 gradients, which begin at zero after each step. The first
 * use takes 4 bytes a parameter of the group from the budget; chunks in memory go to the drives where
 * there is no room otherwise. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_accumulate(weir_optimizer_t optimizer,
                                                                 int group, uint64_t first,
                                                                 uint64_t count,
                                                                 weir_datatype_t type,
                                                                 const void* gradient);

/* Of the gradients given so far, unscaled: for a norm over several ranks, add up the sums. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_gradient_stats(weir_optimizer_t optimizer,
                                                                     double* sum_of_squares,
                                                                     int* all_finite);

/* ---- Steps -------------------------------------------------------------------------------------- */

typedef struct weir_step_options {
  size_t struct_bytes;
  double loss_scale; /* gradients are divided by it; 0: 1 */
  double norm_max;   /* gradients are scaled down to this global norm; 0: no clipping */
  /* Sum of squares over all ranks, of unscaled gradients; negative: this rank's own, computed here,
   * before the step (norm first, step second). Infinite or NaN: an overflow. */
  double sum_of_squares;
  /* The step runs with `loss_scale`, no clipping and no overflow check at once, is not committed, and
   * waits for weir_optimizer_accept or weir_optimizer_undo. With directories and durable_every above
   * 1, what is not yet committed is committed before it. */
  int hold;
} weir_step_options_t;
#define WEIR_STEP_OPTIONS_INIT \
  { sizeof(weir_step_options_t), 1.0, 0.0, -1.0, 0 }

typedef struct weir_step_report {
  size_t struct_bytes;
  uint64_t step; /* steps that the state has taken, this one included */
  int skipped;   /* overflow: a gradient was infinite or NaN, the state is untouched */
  int committed; /* it survives a crash from now on */
  double norm;   /* of the gradients divided by loss_scale, before clipping; -1 with hold */
  uint64_t parameter_count;
  uint64_t read_bytes; /* from drives */
  uint64_t written_bytes;
  double seconds;
  double disk_wait_seconds;
  double compute_seconds;
  double compute_hidden; /* part of compute that the drives worked through, 0 to 1; 1 in memory */
} weir_step_report_t;
#define WEIR_STEP_REPORT_INIT \
  { sizeof(weir_step_report_t), 0, 0, 0, -1.0, 0, 0, 0, 0.0, 0.0, 0.0, 1.0 }

/* Steps all groups. `report` may be NULL. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_step(weir_optimizer_t optimizer,
                                                           const weir_step_options_t* options,
                                                           weir_step_report_t* report);

/* The same on a thread of the optimizer. Until finish, only wait may be called. */
WEIR_API WEIR_MUST_CHECK weir_result_t
weir_optimizer_step_start(weir_optimizer_t optimizer, const weir_step_options_t* options);
/* Returns when the outputs of the range are those of the step under way, or it has failed or was
 * skipped (then with WEIR_OK and the old parameters). At once when no step is under way. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_wait(weir_optimizer_t optimizer, int group,
                                                           uint64_t first, uint64_t count);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_step_finish(weir_optimizer_t optimizer,
                                                                  weir_step_report_t* report);

/* Ends a held step: keeps it and commits, or goes back to the state before it, bit for bit, with the
 * gradients still there. Outputs are written again by undo, as the step before left them; those of
 * step 0 are the parameters rounded in the same way. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_accept(weir_optimizer_t optimizer);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_undo(weir_optimizer_t optimizer);

/* Makes the last step durable now, whatever durable_every says. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_commit(weir_optimizer_t optimizer);

/* With several ranks: the last step that this rank has committed, and news of the least over all
 * ranks. A store keeps the last two commits, and the next one writes over the older. So a rank that
 * has committed step k starts the next step only when told that all have committed step k
 * (WEIR_ERROR_INVALID_USAGE otherwise; step 0 needs no news), and after a crash all can go back to one
 * step: open, exchange `committed_step`, call weir_optimizer_roll_back with the least, then
 * weir_optimizer_peers_committed with it. Rolling back drops gradients that were given. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_committed_step(weir_optimizer_t optimizer,
                                                                     uint64_t* step);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_peers_committed(weir_optimizer_t optimizer,
                                                                      uint64_t step);
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_roll_back(weir_optimizer_t optimizer,
                                                                uint64_t step);

/* Holds the last step in `directories` (as many as the optimizer has; without directories any one, a
 * copy): by hard links or reflinks where the file system has them, else by copies. Commits first what
 * durable_every left uncommitted. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_checkpoint(weir_optimizer_t optimizer,
                                                                 const char* const* directories,
                                                                 int directory_count);

/* Bytes of memory that the optimizer holds now, and what its arena and disks say of themselves. */
WEIR_API WEIR_MUST_CHECK weir_result_t weir_optimizer_memory(weir_optimizer_t optimizer,
                                                             uint64_t* bytes);
WEIR_API const char* weir_optimizer_describe(weir_optimizer_t optimizer);

#ifdef __cplusplus
}
#endif

#endif /* WEIR_OFFLOAD_H */
