// SPDX-License-Identifier: Apache-2.0
#include "plugins/shm/guests.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "plugins/shm/wire.h"

namespace weir::plugins::shm {
namespace {

// Connections that have not said who they are; more than this and the oldest goes.
constexpr size_t kStrangersMax = 64;
// Accepted at once before the others get their turn again.
constexpr int kAcceptCountMax = 256;

// "2, 5-7": at most a few hundred characters.
std::string rank_list(const std::vector<bool>& member, bool wanted) {
  std::string text;
  for (size_t i = 0; i < member.size(); ++i) {
    if (member[i] != wanted) continue;
    size_t end = i;
    while (end + 1 < member.size() && member[end + 1] == wanted) ++end;
    if (text.size() > 300) return text + ", ...";
    if (!text.empty()) text += ", ";
    text += std::to_string(i);
    if (end > i) text += (end > i + 1 ? "-" : ", ") + std::to_string(end);
    i = end;
  }
  return text;
}

std::string plural(size_t count) { return count == 1 ? "rank " : "ranks "; }

}  // namespace

bool same_user(int socket, int64_t* pid) {
  ucred credentials = {};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) return false;
  *pid = credentials.pid;
  return credentials.uid == geteuid();
}

void wait_readable(int socket, uint64_t deadline_ns) {
  pollfd entry = {socket, POLLIN, 0};
  poll(&entry, 1, poll_timeout_ms(deadline_ns));
}

Guests::Guests(const Party& party, const unsigned char* key, uint64_t bytes)
    : party_(party), bytes_(bytes), members_(party.rank_count), arrived_(party.rank_count, false) {
  memcpy(key_, key, kKeyBytes);
  members_[0] = this_process();
  arrived_[0] = true;
}

Guests::~Guests() {
  for (const Guest& guest : guests_) close(guest.fd);
}

void Guests::drop(size_t index) {
  const Guest& guest = guests_[index];
  if (guest.rank >= 0) {
    arrived_[static_cast<size_t>(guest.rank)] = false;
    --arrived_count_;
  }
  close(guest.fd);
  guests_.erase(guests_.begin() + static_cast<std::ptrdiff_t>(index));
}

bool Guests::drop_a_stranger() {
  for (size_t i = 0; i < guests_.size(); ++i) {
    if (guests_[i].rank >= 0) continue;
    drop(i);
    return true;
  }
  return false;
}

bool Guests::accept_all(weir_result_t* fatal, std::string* why) {
  for (int i = 0; i < kAcceptCountMax; ++i) {
    Guest guest;
    guest.fd = accept4(party_.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (guest.fd < 0) {
      if (errno != EMFILE && errno != ENFILE) return true;
      last_refusal_ = "the limit of open files is reached, raise it with ulimit -n";
      if (drop_a_stranger()) continue;
      usleep(1000);  // the connection stays in the queue: do not spin on it
      return true;
    }
    if (!same_user(guest.fd, &guest.pid)) {
      refuse(guest, WEIR_ERROR_REFUSED, "shm: rank 0 belongs to another user");
      last_refusal_ = "a process of another user was refused";
      close(guest.fd);
      continue;
    }
    const bool keep = hear(&guest, fatal, why);
    if (!keep) {
      close(guest.fd);
      if (*fatal != WEIR_OK) return false;
      continue;
    }
    const auto is_stranger = [](const Guest& other) { return other.rank < 0; };
    const auto strangers = std::count_if(guests_.begin(), guests_.end(), is_stranger);
    if (guest.rank < 0 && static_cast<size_t>(strangers) >= kStrangersMax) drop_a_stranger();
    guests_.push_back(guest);
  }
  return true;
}

bool Guests::refuse(const Guest& guest, weir_result_t result, const std::string& text) {
  const Verdict verdict = make_verdict(PacketKind::kVerdict, result, text.c_str());
  send_packet(guest.fd, &verdict, sizeof verdict, -1);
  return false;
}

bool Guests::hear(Guest* guest, weir_result_t* fatal, std::string* why) {
  Hello hello;
  const ssize_t got = receive_packet(guest->fd, &hello, sizeof hello, nullptr);
  if (got < 0 && errno == EAGAIN) return true;
  if (got <= 0 || guest->rank >= 0) return false;  // gone, or talking out of turn
  if (got != sizeof hello || hello.magic != kWireMagic || hello.kind != PacketKind::kHello) {
    last_refusal_ = "a process sent something that is no hello of this version";
    return refuse(*guest, WEIR_ERROR_REFUSED, "shm: rank 0 does not speak this version");
  }
  if (hello.token_bytes > kTokenBytesMax ||
      !equal_tokens(hello.token, hello.token_bytes, party_.token, party_.token_bytes)) {
    last_refusal_ = "process " + std::to_string(guest->pid) + " was refused, it has another secret";
    party_.report.warn("shm: %s", last_refusal_.c_str());
    return refuse(*guest, WEIR_ERROR_REFUSED, "shm: rank 0 has another secret than this rank");
  }
  if (memcmp(hello.key, key_, kKeyBytes) != 0) {
    // A rank that gave up on an earlier call, or is ahead of this one.
    return refuse(*guest, WEIR_ERROR_MISMATCH, "shm: rank 0 is joining the ranks for another call");
  }
  const Member self = members_[0];
  if (hello.pid_namespace == self.pid_namespace && self.pid_namespace != 0 && guest->pid != 0 &&
      guest->pid != hello.pid) {
    last_refusal_ = "process " + std::to_string(guest->pid) + " claims to be process " +
                    std::to_string(hello.pid);
    return refuse(*guest, WEIR_ERROR_REFUSED,
                  "shm: the process id of this rank is not the one that the kernel tells");
  }
  // From here on it is one of us, so that a difference is an error of the whole communicator.
  const std::string who = "shm: rank " + std::to_string(hello.rank);
  if (hello.comm_id != party_.comm_id || hello.rank_count != party_.rank_count || hello.rank == 0 ||
      hello.rank >= party_.rank_count) {
    *fatal = WEIR_ERROR_MISMATCH;
    *why = who + " of " + std::to_string(hello.rank_count) +
           " does not belong to the communicator of rank 0, which has " +
           std::to_string(party_.rank_count) + " ranks";
    return refuse(*guest, *fatal, *why);
  }
  if (hello.bytes != bytes_) {
    *fatal = WEIR_ERROR_MISMATCH;
    // Both are of all ranks together.
    *why = who + " asks for " + std::to_string(hello.bytes / party_.rank_count) +
           " bytes of shared memory for each rank, rank 0 for " +
           std::to_string(bytes_ / party_.rank_count) + ": all ranks must ask for the same";
    return refuse(*guest, *fatal, *why);
  }
  if (arrived_[hello.rank]) {
    last_refusal_ = "rank " + std::to_string(hello.rank) + " came twice";
    return refuse(*guest, WEIR_ERROR_REFUSED,
                  who + " is already there: two processes have one rank");
  }
  guest->rank = hello.rank;
  arrived_[hello.rank] = true;
  members_[hello.rank] = {hello.pid, hello.pid_namespace};
  ++arrived_count_;
  return true;
}

weir_result_t Guests::gather(uint64_t deadline_ns) {
  std::vector<pollfd> entries;
  for (;;) {
    weir_result_t fatal = WEIR_OK;
    std::string why;
    // From the end, since one that is dropped moves those behind it. The listener's entry is the
    // first.
    for (size_t i = entries.empty() ? 0 : entries.size() - 1; i-- > 0;) {
      if (entries[i + 1].revents == 0) continue;
      if (!hear(&guests_[i], &fatal, &why)) drop(i);
      if (fatal != WEIR_OK) return conclude(fatal, why);
    }
    if (!accept_all(&fatal, &why)) return conclude(fatal, why);
    if (arrived_count_ == party_.rank_count) return WEIR_OK;
    if (monotonic_ns() >= deadline_ns) {
      std::string text = "shm: " + missing_ranks() + " of " + std::to_string(party_.rank_count) +
                         " did not come before the deadline";
      if (!last_refusal_.empty()) text += " (" + last_refusal_ + ")";
      return conclude(WEIR_ERROR_TIMEOUT, text);
    }
    entries.assign(1, pollfd{party_.listener, POLLIN, 0});
    for (const Guest& guest : guests_) entries.push_back({guest.fd, POLLIN, 0});
    if (poll(entries.data(), entries.size(), poll_timeout_ms(deadline_ns)) < 0) entries.clear();
  }
}

weir_result_t Guests::hand_out(int fd, uint64_t deadline_ns, std::vector<Member>* members) {
  Welcome welcome = {};
  welcome.magic = kWireMagic;
  welcome.kind = PacketKind::kWelcome;
  welcome.rank_count = party_.rank_count;
  welcome.bytes = bytes_;
  welcome.token_bytes = party_.token_bytes;
  memcpy(welcome.token, party_.token, kTokenBytesMax);
  std::vector<unsigned char> packet(sizeof welcome + members_.size() * sizeof(Member));
  memcpy(packet.data(), &welcome, sizeof welcome);
  memcpy(packet.data() + sizeof welcome, members_.data(), members_.size() * sizeof(Member));
  for (size_t i = 0; i < guests_.size(); ++i) {
    if (guests_[i].rank < 0) {
      drop(i--);
      continue;
    }
    if (!send_packet(guests_[i].fd, packet.data(), packet.size(), fd)) {
      const std::string rank = std::to_string(guests_[i].rank);
      drop(i);
      return conclude(WEIR_ERROR_PEER_LOST,
                      "shm: rank " + rank + " ended while the ranks were joined");
    }
  }
  const weir_result_t result = await_mapped(deadline_ns);
  if (result != WEIR_OK) return result;
  dismiss(WEIR_OK, "");
  if (members != nullptr) *members = members_;
  return WEIR_OK;
}

weir_result_t Guests::await_mapped(uint64_t deadline_ns) {
  std::vector<pollfd> entries;
  for (const Guest& guest : guests_) entries.push_back({guest.fd, POLLIN, 0});
  for (size_t waiting = guests_.size(); waiting > 0;) {
    if (monotonic_ns() >= deadline_ns) {
      std::vector<bool> ready(party_.rank_count, true);
      for (const Guest& guest : guests_) ready[static_cast<size_t>(guest.rank)] = guest.ready;
      return conclude(WEIR_ERROR_TIMEOUT, "shm: " + plural(waiting) + rank_list(ready, false) +
                                              " came, but did not map the memory in time");
    }
    if (poll(entries.data(), entries.size(), poll_timeout_ms(deadline_ns)) <= 0) continue;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].fd < 0 || entries[i].revents == 0) continue;
      Verdict answer;
      const ssize_t got = receive_packet(guests_[i].fd, &answer, sizeof answer, nullptr);
      if (got < 0 && errno == EAGAIN) continue;
      const std::string rank = std::to_string(guests_[i].rank);
      if (got != sizeof answer || answer.kind != PacketKind::kReady) {
        drop(i);
        return conclude(WEIR_ERROR_PEER_LOST,
                        "shm: rank " + rank + " ended while the ranks were joined");
      }
      if (answer.result != WEIR_OK) {
        char text[sizeof answer.text + 1];
        copy_text(answer, text, sizeof text);
        return conclude(WEIR_ERROR_NO_MEMORY, "shm: rank " + rank + " " + text);
      }
      guests_[i].ready = true;
      entries[i].fd = -1;
      --waiting;
    }
  }
  return WEIR_OK;
}

void Guests::dismiss(weir_result_t result, const char* text) {
  for (const Guest& guest : guests_) {
    if (guest.rank >= 0 || result != WEIR_OK) refuse(guest, result, text);
  }
}

weir_result_t Guests::conclude(weir_result_t result, const std::string& text) {
  // Who comes only now would wait for an answer until its deadline.
  weir_result_t fatal = WEIR_OK;
  std::string why;
  accept_all(&fatal, &why);
  dismiss(result, text.c_str());
  return party_.report.fail(result, "%s", text.c_str());
}

std::string Guests::missing_ranks() const {
  return plural(party_.rank_count - arrived_count_) + rank_list(arrived_, false);
}

}  // namespace weir::plugins::shm
