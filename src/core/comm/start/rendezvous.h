// SPDX-License-Identifier: Apache-2.0
// Rendezvous: how the ranks of a launched job learn where to meet and which secret to meet with.
// WEIR_RENDEZVOUS says how; without it the first of these that the job allows:
//
//   local    the launcher says that all ranks are on this machine: a place derived from the job's
//            name and secret
//   master   MASTER_ADDR and MASTER_PORT are set and the job has a secret (job_secret.h): the host
//            with that address
//   pmix     the launcher offers PMIx: rank 0 makes a secret and tells it and its place
//   local    the launcher says nothing of machines
//
// and otherwise an error that says what to set. file:PATH is used only when asked for. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/secret.h"
#include "core/base/status.h"
#include "core/comm/start/bootstrap_place.h"
#include "core/comm/start/launch.h"

namespace weir::comm {

// The place and secret for the next communicator of the job.
struct Rendezvous {
  Secret secret;
  Place place;      // empty: all ranks are on this host
  std::string how;  // "pmix, with the secret of WEIR_SECRET_FILE", for log and errors
  // What ranks that do not come may lack (JoinOptions::remedy); "": nothing special.
  std::string remedy;
};

// Collective over the job's ranks when pmix or file is used for the first time. Each call of a
// process gives the rendezvous of one more communicator. Logged at info, and printed by rank 0 with
// WEIR_EXPLAIN.
Result<Rendezvous> next_rendezvous(const Launch& launch, uint64_t deadline_ns);

}  // namespace weir::comm
