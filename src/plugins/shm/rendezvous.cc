// SPDX-License-Identifier: Apache-2.0
#include "plugins/shm/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "plugins/shm/guests.h"
#include "plugins/shm/wire.h"

namespace weir::plugins::shm {
namespace {

// Rank 0 gives up a little before the deadline, so that the others hear by then who was missing.
uint64_t early(uint64_t deadline_ns) {
  const uint64_t now = monotonic_ns();
  if (deadline_ns <= now) return deadline_ns;
  const uint64_t left = deadline_ns - now;
  const uint64_t margin = left / 8 < 50'000'000 ? left / 8 : 50'000'000;
  return deadline_ns - margin;
}

weir_result_t map_wanted(const Party& party, int fd, const Wanted& wanted, Mapping* mapping) {
  const weir_result_t result =
      map_memory(party.report, fd, wanted.bytes, wanted.huge_bytes, mapping);
  if (result == WEIR_OK && wanted.part_bytes != 0) {
    collapse_memory(mapping->base + party.rank * wanted.part_bytes, wanted.part_bytes);
  }
  return result;
}

weir_result_t share_as_host(const Party& party, const unsigned char* key, const Wanted& wanted,
                            uint64_t deadline_ns, Mapping* mapping, std::vector<Member>* members) {
  const uint64_t deadline = early(deadline_ns);
  Guests guests(party, key, wanted.bytes);
  weir_result_t result = guests.gather(deadline);
  int fd = -1;
  if (result == WEIR_OK) {
    result = create_memory(party.report, wanted.bytes, wanted.huge_bytes == wanted.bytes, &fd);
    if (result == WEIR_OK) {
      result = map_wanted(party, fd, wanted, mapping);
    }
    if (result != WEIR_OK) guests.dismiss(result, "shm: rank 0 could not make the shared memory");
  }
  if (result == WEIR_OK) result = guests.hand_out(fd, deadline, members);
  if (fd >= 0) close(fd);
  if (result != WEIR_OK) unmap_memory(mapping);
  return result;
}

struct Socket {
  int fd = -1;
  ~Socket() {
    if (fd >= 0) close(fd);
  }
};

// Between two tries to be heard by rank 0, growing with their number.
constexpr unsigned kRetryUsMin = 500;
constexpr unsigned kRetryUsMax = 16'000;

weir_result_t connect_to_host(const Party& party, uint64_t deadline_ns, Socket* socket_out) {
  const Report& report = party.report;
  const SocketAddress address = socket_address(party.name);
  for (unsigned pause_us = kRetryUsMin;; pause_us = std::min(2 * pause_us, kRetryUsMax)) {
    // A fresh socket for every try: after a refused connect its state is unspecified.
    Socket attempt;
    attempt.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (attempt.fd < 0) return report.fail_errno("socket(AF_UNIX)");
    if (connect(attempt.fd, reinterpret_cast<const sockaddr*>(address.bytes), address.length) ==
        0) {
      socket_out->fd = attempt.fd;
      attempt.fd = -1;
      return WEIR_OK;
    }
    if (errno == ECONNREFUSED) {
      return report.fail(WEIR_ERROR_PEER_LOST,
                         "shm: rank %u cannot reach rank 0: its socket is gone (rank 0 ended or "
                         "closed its transport, or it is in another network namespace)",
                         party.rank);
    }
    if (errno != EAGAIN && errno != EINTR) return report.fail_errno("connect to rank 0");
    if (monotonic_ns() >= deadline_ns) {
      return report.fail(WEIR_ERROR_TIMEOUT,
                         "shm: rank %u waited for rank 0, whose queue of connections stayed full",
                         party.rank);
    }
    usleep(pause_us);
  }
}

// Waits for one packet from rank 0. With `hung_up`, an end is no error but told there.
weir_result_t await_packet(const Party& party, int socket, uint64_t deadline_ns, void* data,
                           size_t data_bytes, size_t* received, int* fd, bool* hung_up = nullptr) {
  const Report& report = party.report;
  for (;;) {
    ssize_t got = receive_packet(socket, data, data_bytes, fd);
    // When a packet and the end come while the kernel looks, it tells of the end first.
    if (got == 0 || (got < 0 && errno == ECONNRESET)) {
      got = receive_packet(socket, data, data_bytes, fd);
    }
    if (got > 0) {
      *received = static_cast<size_t>(got);
      return WEIR_OK;
    }
    if (got == 0 || errno == ECONNRESET) {
      if (hung_up != nullptr) {
        *hung_up = true;
        return WEIR_OK;
      }
      return report.fail(
          WEIR_ERROR_PEER_LOST,
          "shm: rank 0 closed the connection to rank %u before the ranks were joined", party.rank);
    }
    if (errno != EAGAIN) return report.fail_errno("recvmsg from rank 0");
    if (monotonic_ns() >= deadline_ns) {
      return report.fail(WEIR_ERROR_TIMEOUT, "shm: rank %u waited for rank 0, which did not answer",
                         party.rank);
    }
    wait_readable(socket, deadline_ns);
  }
}

weir_result_t take_verdict(const Party& party, const void* data, size_t bytes) {
  Verdict verdict;
  if (bytes != sizeof verdict) {
    return party.report.fail(
        WEIR_ERROR_REFUSED, "shm: rank 0 sent %zu bytes that are no packet of this version", bytes);
  }
  memcpy(&verdict, data, sizeof verdict);
  if (verdict.magic != kWireMagic || verdict.kind != PacketKind::kVerdict ||
      verdict.result > WEIR_ERROR_INTERNAL || verdict.result == WEIR_IN_PROGRESS) {
    return party.report.fail(WEIR_ERROR_REFUSED,
                             "shm: rank 0 sent a packet that is not of this version");
  }
  if (verdict.result == WEIR_OK) return WEIR_OK;
  char text[sizeof verdict.text + 1];
  copy_text(verdict, text, sizeof text);
  return party.report.fail(static_cast<weir_result_t>(verdict.result), "%s", text);
}

Hello make_hello(const Party& party, const unsigned char* key, uint64_t bytes) {
  const Member self = this_process();
  Hello hello = {};
  hello.magic = kWireMagic;
  hello.kind = PacketKind::kHello;
  hello.rank = party.rank;
  hello.rank_count = party.rank_count;
  hello.token_bytes = party.token_bytes;
  hello.comm_id = party.comm_id;
  hello.bytes = bytes;
  hello.pid = self.pid;
  hello.pid_namespace = self.pid_namespace;
  memcpy(hello.key, key, kKeyBytes);
  memcpy(hello.token, party.token, kTokenBytesMax);
  return hello;
}

// Says hello to rank 0 and waits for its answer. Rank 0 hangs up on whom it had no room for before
// it heard him; it is tried again then, and whether it has ended shows when its socket is gone.
weir_result_t ask_host(const Party& party, const Hello& hello, uint64_t deadline_ns, Socket* host,
                       std::vector<unsigned char>* packet, size_t* received, Socket* memory) {
  const Report& report = party.report;
  unsigned pause_us = kRetryUsMin;
  for (unsigned hang_ups = 1;; ++hang_ups) {
    Socket socket;
    weir_result_t result = connect_to_host(party, deadline_ns, &socket);
    if (result != WEIR_OK) return result;
    int64_t host_pid = 0;
    if (!same_user(socket.fd, &host_pid)) {
      return report.fail(WEIR_ERROR_REFUSED,
                         "shm: the process that answers for rank 0 belongs to another user");
    }
    // What rank 0 said before it hung up is worth reading, also when the hello could not leave.
    if (!send_packet(socket.fd, &hello, sizeof hello, -1) && errno != EPIPE &&
        errno != ECONNRESET) {
      return report.fail_errno("sendmsg to rank 0");
    }
    bool hung_up = false;
    result = await_packet(party, socket.fd, deadline_ns, packet->data(), packet->size(), received,
                          &memory->fd, &hung_up);
    if (result != WEIR_OK || !hung_up) {
      std::swap(host->fd, socket.fd);
      return result;
    }
    if (monotonic_ns() >= deadline_ns) {
      return report.fail(WEIR_ERROR_TIMEOUT,
                         "shm: rank 0 hung up on rank %u at each of %u tries: strangers crowd its "
                         "socket, or it may open no more files (ulimit -n)",
                         party.rank, hang_ups);
    }
    usleep(pause_us);
    pause_us = std::min(2 * pause_us, kRetryUsMax);
  }
}

weir_result_t share_as_guest(const Party& party, const unsigned char* key, const Wanted& wanted,
                             uint64_t deadline_ns, Mapping* mapping, std::vector<Member>* members) {
  const Report& report = party.report;
  std::vector<unsigned char> packet(sizeof(Welcome) + party.rank_count * sizeof(Member) +
                                    sizeof(Verdict));
  size_t received = 0;
  Socket socket;
  Socket memory;  // closes the descriptor on every way out
  weir_result_t result = ask_host(party, make_hello(party, key, wanted.bytes), deadline_ns, &socket,
                                  &packet, &received, &memory);
  if (result != WEIR_OK) return result;
  Welcome welcome;
  const size_t member_bytes = party.rank_count * sizeof(Member);
  if (received != sizeof welcome + member_bytes) {
    result = take_verdict(party, packet.data(), received);
    return result != WEIR_OK ? result
                             : report.fail(WEIR_ERROR_REFUSED, "shm: rank 0 skipped its welcome");
  }
  memcpy(&welcome, packet.data(), sizeof welcome);
  if (welcome.magic != kWireMagic || welcome.kind != PacketKind::kWelcome ||
      !equal_tokens(welcome.token, welcome.token_bytes, party.token, party.token_bytes)) {
    return report.fail(WEIR_ERROR_REFUSED,
                       "shm: the process that answers for rank 0 does not know the secret");
  }
  if (memory.fd < 0) {
    return report.fail(
        WEIR_ERROR_REFUSED,
        "shm: rank 0's descriptor did not arrive; is the limit of open files reached?");
  }
  std::vector<Member> received_members(party.rank_count);
  memcpy(received_members.data(), packet.data() + sizeof welcome, member_bytes);
  result = map_wanted(party, memory.fd, wanted, mapping);
  const Verdict ready =
      make_verdict(PacketKind::kReady, result, result == WEIR_OK ? "" : "could not map the memory");
  if (!send_packet(socket.fd, &ready, sizeof ready, -1) && result == WEIR_OK) {
    result = report.fail(WEIR_ERROR_PEER_LOST, "shm: rank 0 ended while the ranks were joined");
  }
  if (result == WEIR_OK) {
    result = await_packet(party, socket.fd, deadline_ns, packet.data(), packet.size(), &received,
                          nullptr);
    if (result == WEIR_OK) result = take_verdict(party, packet.data(), received);
  }
  if (result != WEIR_OK) {
    unmap_memory(mapping);
    return result;
  }
  if (members != nullptr) members->swap(received_members);
  return WEIR_OK;
}

}  // namespace

Member this_process() {
  Member member;
  member.pid = getpid();
  struct stat status;
  if (stat("/proc/self/ns/pid", &status) == 0) member.pid_namespace = status.st_ino;
  return member;
}

weir_result_t start_listening(Party* party) {
  const Report& report = party->report;
  if (getrandom(party->name, kNameBytes, 0) != static_cast<ssize_t>(kNameBytes)) {
    return report.fail_errno("getrandom");
  }
  Socket listener;
  listener.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener.fd < 0) return report.fail_errno("socket(AF_UNIX)");
  const SocketAddress address = socket_address(party->name);
  if (bind(listener.fd, reinterpret_cast<const sockaddr*>(address.bytes), address.length) != 0) {
    return report.fail_errno("bind of an abstract socket");
  }
  if (listen(listener.fd, static_cast<int>(party->rank_count) + 64) != 0) {
    return report.fail_errno("listen");
  }
  party->listener = listener.fd;
  listener.fd = -1;
  return WEIR_OK;
}

weir_result_t share_memory(const Party& party, const unsigned char* key, const Wanted& wanted,
                           uint64_t deadline_ns, Mapping* mapping, std::vector<Member>* members) {
  return party.rank == 0 ? share_as_host(party, key, wanted, deadline_ns, mapping, members)
                         : share_as_guest(party, key, wanted, deadline_ns, mapping, members);
}

}  // namespace weir::plugins::shm
