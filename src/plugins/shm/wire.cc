// SPDX-License-Identifier: Apache-2.0
#include "plugins/shm/wire.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace weir::plugins::shm {

uint64_t monotonic_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

int poll_timeout_ms(uint64_t deadline_ns) {
  const uint64_t now = monotonic_ns();
  if (now >= deadline_ns) return 0;
  return static_cast<int>(std::min<uint64_t>((deadline_ns - now + 999'999) / 1'000'000, 1000));
}

bool equal_tokens(const unsigned char* a, uint32_t a_bytes, const unsigned char* b,
                  uint32_t b_bytes) {
  // Both arrays have kTokenBytesMax bytes, so that the time taken tells nothing, not even a length.
  volatile unsigned char difference = a_bytes == b_bytes ? 0 : 1;
  for (uint32_t i = 0; i < kTokenBytesMax; ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

bool send_packet(int socket, const void* data, size_t bytes, int fd) {
  iovec part = {const_cast<void*>(data), bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(sizeof(int))] = {};
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  for (;;) {
    const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) return static_cast<size_t>(sent) == bytes;
    if (errno != EINTR) return false;
  }
}

ssize_t receive_packet(int socket, void* data, size_t bytes, int* fd) {
  iovec part = {data, bytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) unsigned char control[CMSG_SPACE(8 * sizeof(int))];
  if (fd != nullptr) {
    *fd = -1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received <= 0 || fd == nullptr) return received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int got;
      memcpy(&got, CMSG_DATA(header) + i * sizeof got, sizeof got);
      if (*fd < 0) {
        *fd = got;
      } else {
        close(got);
      }
    }
  }
  return received;
}

Verdict make_verdict(PacketKind kind, weir_result_t result, const char* text) {
  Verdict verdict = {};
  verdict.magic = kWireMagic;
  verdict.kind = kind;
  verdict.result = static_cast<uint32_t>(result);
  snprintf(verdict.text, sizeof verdict.text, "%s", text);
  return verdict;
}

void copy_text(const Verdict& verdict, char* text, size_t text_bytes) {
  snprintf(text, text_bytes, "%.*s", static_cast<int>(sizeof verdict.text), verdict.text);
  for (char* c = text; *c != 0; ++c) {
    if (static_cast<unsigned char>(*c) < ' ' || *c == 0x7f) *c = '?';
  }
}

SocketAddress socket_address(const unsigned char* name) {
  SocketAddress address = {};
  sockaddr_un un = {};
  un.sun_family = AF_UNIX;
  // sun_path[0] stays 0: the abstract namespace, which has no files to leave behind.
  int length = snprintf(un.sun_path + 1, sizeof un.sun_path - 1, "weir-shm-");
  for (uint32_t i = 0; i < kNameBytes; ++i) {
    length += snprintf(un.sun_path + 1 + length,
                       sizeof un.sun_path - 1 - static_cast<size_t>(length), "%02x", name[i]);
  }
  static_assert(sizeof un <= sizeof address.bytes);
  memcpy(address.bytes, &un, sizeof un);
  address.length =
      static_cast<uint32_t>(offsetof(sockaddr_un, sun_path)) + 1 + static_cast<uint32_t>(length);
  return address;
}

}  // namespace weir::plugins::shm
