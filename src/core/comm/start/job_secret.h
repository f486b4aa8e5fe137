// SPDX-License-Identifier: Apache-2.0
// The job's secret: what the user or the launcher gave to every rank of a job so that its ranks
// know each other, also between machines. From the first of these that is set:
//
//   WEIR_SECRET_FD    number of an open descriptor; it is read to its end and closed, and the
//                     variable is unset. A regular file (or memfd) is read from its start, so that
//                     several ranks may share one.
//   WEIR_SECRET_FILE  path of a regular file that belongs to this user and that no other user may
//                     read or write
//   WEIR_SECRET       the secret itself; the value is overwritten in place and the variable
//                     unset. A fallback: other processes of the user could have read it.
//
// A secret has kJobSecretBytesMin to kJobSecretBytesMax bytes; one line end after it is not part of
// it. No error and no log line holds any of it. Thread-safe, except against threads that read the
// environment at the same time, as with every setenv.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/secret.h"
#include "core/base/status.h"

namespace weir::comm {

inline constexpr size_t kJobSecretBytesMin = 32;
inline constexpr size_t kJobSecretBytesMax = 4096;

struct JobSecret {
  Secret secret;       // derived from what was given
  std::string source;  // "WEIR_SECRET_FILE"
};

// The secret of this process's job; nothing when none is set and none was. A secret that was read
// once is kept for later communicators, and for forked children. Reading a descriptor that does not
// end is given up at `deadline_ns` or after some seconds. Errors: kInvalidArgument, kRefused
// (another user could have read it), kTimeout, kSystem.
Result<std::optional<JobSecret>> job_secret(uint64_t deadline_ns);

// The three sources, for the tests. Each function closes what it opened.
Result<Secret> secret_from_descriptor(int descriptor, uint64_t deadline_ns);
Result<Secret> secret_from_file(const std::string& path);

}  // namespace weir::comm
