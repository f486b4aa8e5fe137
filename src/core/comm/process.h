// SPDX-License-Identifier: Apache-2.0
// The communicators of this process that may have work in flight, so that a thread that waits for
// one also moves the others; and the progress thread, which moves them while no thread waits.
// Thread-safe.
#pragma once

namespace weir::comm {

class Communicator;

void register_communicator(Communicator* comm);
void unregister_communicator(Communicator* comm);

// A request was started and no thread waits for it: wakes the progress thread where there is one.
void request_started();
// The same whatever WEIR_PROGRESS_THREAD says: for operations that no thread waits for.
void watch_requests();

// Of the other communicators, or of all (null), polls those that have requests in flight and tends
// the rest.
void progress_others(const Communicator* mine);

}  // namespace weir::comm
