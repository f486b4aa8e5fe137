// SPDX-License-Identifier: Apache-2.0
// Abstract Unix stream sockets between processes of one host, nonblocking and close-on-exec. An
// abstract name has no file, lives in the network namespace, and ends with the last descriptor.
// Functions return a descriptor that the caller owns, or -1 with errno set. Thread-safe.
#pragma once

#include <sys/types.h>

#include <string>

namespace weir::net {

// EADDRINUSE: another process listens under the name.
int listen_locally(const std::string& name, int backlog);
// ECONNREFUSED: no process listens there; EAGAIN: the listener's queue is full.
int connect_locally(const std::string& name);
// EAGAIN: no connection waits.
int accept_locally(int listener);

// The process that connected, or that listens. It is 0 when it is in a namespace that this process
// cannot see. False: the kernel does not say.
bool peer_process(int connection, pid_t* process, uid_t* user);
// `peer_process` where it runs as the same user; false also if that is not known.
bool peer_of_same_user(int connection, pid_t* process);

}  // namespace weir::net
