// SPDX-License-Identifier: Apache-2.0
// Guests: rank 0's side of the rendezvous, from the first connection to the verdict. One poll loop
// serves all connections; a guest that misbehaves is closed and named, and the others go on. Each
// is heard as it is accepted, and the oldest of those that have said nothing gives way when there
// are too many: an honest rank comes again. One thread.
#pragma once

#include <stdint.h>

#include <string>
#include <vector>

#include "plugins/shm/rendezvous.h"

namespace weir::plugins::shm {

// True when the process at the other end of a Unix socket runs under our effective user id; its pid
// (0: not visible from here) goes to *pid.
bool same_user(int socket, int64_t* pid);

// Waits until there is something to read, the other end is gone, or the deadline (at most a
// second).
void wait_readable(int socket, uint64_t deadline_ns);

class Guests {
 public:
  Guests(const Party& party, const unsigned char* key, uint64_t bytes);
  ~Guests();
  Guests(const Guests&) = delete;
  Guests& operator=(const Guests&) = delete;

  // Until every rank has said hello. On an error everyone who came has been told.
  weir_result_t gather(uint64_t deadline_ns);
  // Gives the descriptor to all, waits until all have mapped it, and tells all the outcome.
  weir_result_t hand_out(int fd, uint64_t deadline_ns, std::vector<Member>* members);
  // Sends one verdict to everyone who came; of a failure, also to those that have said nothing yet.
  void dismiss(weir_result_t result, const char* text);

 private:
  struct Guest {
    int fd = -1;
    int64_t rank = -1;  // -1: has not said hello
    int64_t pid = 0;    // from the kernel
    bool ready = false;
  };

  // Accepts and hears those that wait at the listener. False: `*fatal` is an error of all ranks.
  bool accept_all(weir_result_t* fatal, std::string* why);
  // The oldest that has said nothing goes. False: there is none.
  bool drop_a_stranger();
  // Reads what a newcomer has to say. False: close it.
  bool hear(Guest* guest, weir_result_t* fatal, std::string* why);
  // Tells the guest; returns false.
  bool refuse(const Guest& guest, weir_result_t result, const std::string& text);
  // Until all who came have mapped the memory.
  weir_result_t await_mapped(uint64_t deadline_ns);
  weir_result_t conclude(weir_result_t result, const std::string& text);
  void drop(size_t index);
  std::string missing_ranks() const;

  const Party& party_;
  unsigned char key_[kKeyBytes];
  uint64_t bytes_;
  std::vector<Guest> guests_;
  std::vector<Member> members_;
  std::vector<bool> arrived_;
  uint32_t arrived_count_ = 1;  // rank 0 itself
  std::string last_refusal_;
};

}  // namespace weir::plugins::shm
