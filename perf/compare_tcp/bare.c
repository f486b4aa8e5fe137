/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lower bound of a collective of two ranks over TCP: both send the same bytes to each other
 * over one connection at once, from and into the user's buffers, without a header or any
 * computation. A rank that can neither send nor receive keeps trying for a while before it sleeps.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "layer.h"

enum { SPINS_MAX = 2000, PATH_BYTES = 512 };

static int connection = -1;

static void fail(const char* what) {
  fprintf(stderr, "bare: %s: %s\n", what, strerror(errno));
  exit(3);
}

static const char* wanted(const char* name) {
  const char* value = getenv(name);
  if (value == NULL) {
    fprintf(stderr, "bare: %s is not set\n", name);
    exit(3);
  }
  return value;
}

/* The other rank reads the whole file or finds none. */
static void publish(const char* path, const struct sockaddr_in* address) {
  char part[PATH_BYTES + 8];
  snprintf(part, sizeof(part), "%s.part", path);
  const int file = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (file < 0 || write(file, address, sizeof(*address)) != (ssize_t)sizeof(*address)) fail(part);
  close(file);
  if (rename(part, path) != 0) fail(path);
}

static int listen_at(const char* path) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  if (inet_pton(AF_INET, wanted("COMPARE_ADDRESS"), &address.sin_addr) != 1)
    fail("COMPARE_ADDRESS");
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = sizeof(address);
  if (listener < 0 || bind(listener, (const struct sockaddr*)&address, length) != 0 ||
      listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr*)&address, &length) != 0) {
    fail("listen");
  }
  publish(path, &address);
  struct pollfd ready = {.fd = listener, .events = POLLIN};
  if (poll(&ready, 1, COMPARE_SECONDS_MAX * 1000) != 1) fail("the other rank does not come");
  const int peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  if (peer < 0) fail("accept");
  close(listener);
  return peer;
}

static int connect_to(const char* path) {
  struct sockaddr_in address;
  const struct timespec nap = {0, 10000000};
  int file = -1;
  for (int i = 0; i < COMPARE_SECONDS_MAX * 100 && file < 0; ++i) {
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) nanosleep(&nap, NULL);
  }
  if (file < 0 || read(file, &address, sizeof(address)) != (ssize_t)sizeof(address)) fail(path);
  close(file);
  const int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (peer < 0 || connect(peer, (const struct sockaddr*)&address, sizeof(address)) != 0) {
    fail("connect");
  }
  return peer;
}

void compare_start(int rank, int rank_count) {
  if (rank_count != 2) {
    fprintf(stderr, "bare: an exchange is between 2 ranks, not %d\n", rank_count);
    exit(3);
  }
  char path[PATH_BYTES];
  snprintf(path, sizeof(path), "%s/bare", wanted("COMPARE_FOLDER"));
  connection = rank == 0 ? listen_at(path) : connect_to(path);
  const int on = 1;
  if (setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) != 0) fail("TCP_NODELAY");
}

void compare_end(void) { close(connection); }

/* The number of bytes moved; 0 when it would block. */
static size_t moved(ssize_t result, const char* what) {
  if (result > 0) return (size_t)result;
  if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  if (result == 0) errno = ECONNRESET;
  fail(what);
  return 0;
}

static void swap_bytes(const char* out, char* in, size_t bytes) {
  size_t sent = 0;
  size_t received = 0;
  int spins = 0;
  while (sent < bytes || received < bytes) {
    size_t more = 0;
    if (sent < bytes) {
      more +=
          moved(send(connection, out + sent, bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL), "send");
      sent += more;
    }
    if (received < bytes) {
      const size_t came =
          moved(recv(connection, in + received, bytes - received, MSG_DONTWAIT), "recv");
      received += came;
      more += came;
    }
    if (more > 0) spins = 0;
    if (++spins <= SPINS_MAX) continue;
    struct pollfd ready = {
        .fd = connection,
        .events = (short)((sent < bytes ? POLLOUT : 0) | (received < bytes ? POLLIN : 0))};
    if (poll(&ready, 1, COMPARE_SECONDS_MAX * 1000) == 0) {
      errno = ETIMEDOUT;
      fail("nothing moves");
    }
    spins = 0;
  }
}

double compare_max(double mine) {
  double other = 0;
  swap_bytes((const char*)&mine, (char*)&other, sizeof(mine));
  return mine > other ? mine : other;
}

void compare_barrier(void) { (void)compare_max(0); }

void compare_exchange(const float* send_buffer, float* recv_buffer, size_t count) {
  swap_bytes((const char*)send_buffer, (char*)recv_buffer, count * sizeof(float));
}

void compare_all_reduce(const float* send_buffer, float* recv_buffer, size_t count) {
  compare_exchange(send_buffer, recv_buffer, count);
  for (size_t i = 0; i < count; ++i) recv_buffer[i] += send_buffer[i];
}
