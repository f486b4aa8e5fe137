// SPDX-License-Identifier: Apache-2.0
// Packets of the rendezvous and the calls that move them. All numbers are in the machine's byte
// order: both ends are on one machine. No state.
#pragma once

#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "plugins/shm/rendezvous.h"

namespace weir::plugins::shm {

inline constexpr uint64_t kWireMagic = 0x316d687372696577;  // "weirshm1"

enum class PacketKind : uint32_t { kHello = 1, kWelcome = 2, kReady = 3, kVerdict = 4 };

struct Hello {
  uint64_t magic;
  PacketKind kind;
  uint32_t rank;
  uint32_t rank_count;
  uint32_t token_bytes;
  uint64_t comm_id;
  uint64_t bytes;  // of the memory wanted: differs when ranks were given different configurations
  int64_t pid;
  uint64_t pid_namespace;
  unsigned char key[kKeyBytes];
  unsigned char token[kTokenBytesMax];
};

struct Welcome {  // followed by rank_count Members; carries the descriptor
  uint64_t magic;
  PacketKind kind;
  uint32_t rank_count;
  uint64_t bytes;
  uint32_t token_bytes;
  uint32_t padding;
  unsigned char token[kTokenBytesMax];
};

struct Verdict {  // also sent in place of Welcome; a Ready has the same form
  uint64_t magic;
  PacketKind kind;
  uint32_t result;
  char text[768];
};

uint64_t monotonic_ns();

// For poll: at least 0, rounded up, at most one second so that callers can look around.
int poll_timeout_ms(uint64_t deadline_ns);

bool equal_tokens(const unsigned char* a, uint32_t a_bytes, const unsigned char* b,
                  uint32_t b_bytes);

// Sends one packet, with a descriptor when fd >= 0. False with errno set.
bool send_packet(int socket, const void* data, size_t bytes, int fd);

// Receives one packet. Returns its length, 0 at the end, -1 with errno (EAGAIN: nothing yet). *fd
// is -1 or a descriptor that the caller now owns; descriptors beyond the first are closed. With a
// null `fd` the kernel drops all of them.
ssize_t receive_packet(int socket, void* data, size_t bytes, int* fd);

Verdict make_verdict(PacketKind kind, weir_result_t result, const char* text);

// The text of a packet that came from another process, ended within its bounds.
void copy_text(const Verdict& verdict, char* text, size_t text_bytes);

// Fills the abstract address of `name`; returns its length.
struct SocketAddress {
  alignas(8) unsigned char bytes[128];
  uint32_t length;
};
SocketAddress socket_address(const unsigned char* name);

}  // namespace weir::plugins::shm
