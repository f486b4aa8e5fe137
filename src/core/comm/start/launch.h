// SPDX-License-Identifier: Apache-2.0
// Rank, size and meeting point of a process, as its launcher put them into the environment. Pure
// function of the environment given; thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/base/types.h"

namespace weir::comm {

struct Launch {
  std::string launcher;  // "weir", "torchrun", "Open MPI", "MPICH (PMI)", "Slurm"
  Rank rank = 0;
  Rank rank_count = 1;
  Rank local_rank = 0;
  Rank local_count = 1;
  // The same for all ranks of the job and different for other jobs of this machine: from WEIR_ID,
  // from MASTER_ADDR and MASTER_PORT and the run id, from the job id, else from the parent process
  // (which local launchers share between their ranks) and its start time.
  std::string meeting_point;
  bool named_by_parent = false;       // meeting_point holds on this machine only
  bool local_known = false;           // the launcher has said how many ranks are on this machine
  std::string master_address;         // MASTER_ADDR, "" when not set
  std::string master_port;            // MASTER_PORT
  bool master_port_is_taken = false;  // torchrun itself listens there
  bool pmix_rank_fits = false;        // PMIX_RANK is the rank
};

// Errors name the variables that were looked for, or the one that does not parse or contradicts.
Result<Launch> launch_from_environment(char** environment);

// A substitute where the job has no secret: a process that can guess the job's name can compute it.
Secret launch_secret(const Launch& launch);

}  // namespace weir::comm
