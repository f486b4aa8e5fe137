// SPDX-License-Identifier: Apache-2.0
// Properties of open, connect, close and peer_alive: who may join, who is missed, and what remains.
#include <dirent.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "conformance/harness.h"

namespace weir::conformance {
namespace {

void missing_rank(const Variant& variant) {
  run_ranks(variant, 3, [](Rank& r) {
    r.open();
    if (r.rank() != 1) {
      const uint64_t start = monotonic_ns();
      r.require_error(r.connect(300), {WEIR_ERROR_TIMEOUT}, {"1"});
      r.require(monotonic_ns() - start < 1'500'000'000, "connect went past its deadline");
      r.require(monotonic_ns() - start > 100'000'000, "connect gave up long before its deadline");
    } else {
      r.require_ok(r.join_control(5'000), "joining the control network");
    }
    r.barrier();
  });
}

void news_of_the_host(const Variant& variant) {
  for (const weir_result_t news : {WEIR_ERROR_PEER_LOST, WEIR_ERROR_TIMEOUT, WEIR_ERROR_REFUSED}) {
    run_ranks(variant, 3, [news](Rank& r) {
      r.open();
      if (r.rank() != 1) {
        r.news = news;
        const uint64_t start = monotonic_ns();
        r.require_error(r.connect(20'000), {news}, {"news from elsewhere"});
        r.require(monotonic_ns() - start < 10'000'000'000, "connect waited although it was told");
      } else {
        r.require_ok(r.join_control(5'000), "joining the control network");
      }
      r.barrier();
    });
  }
}

// How long handshakes take is the machine's to say: a liar that nobody has come to refuse in time
// is asked again with twice the time.
void wrong_secret(const Variant& variant) {
  for (const uint32_t liar : {0u, 2u}) {
    run_ranks(variant, 3, [liar](Rank& r) {
      const bool lies = r.rank() == liar;
      if (lies) r.secret[31] ^= 1;
      for (uint64_t timeout_ms = 300, round = 0;; timeout_ms *= 2, ++round) {
        r.open();
        const weir_result_t result = r.connect(timeout_ms);
        r.require_error(result, {WEIR_ERROR_REFUSED, WEIR_ERROR_TIMEOUT, WEIR_ERROR_PEER_LOST});
        if (lies && (liar == 0 || result == WEIR_ERROR_REFUSED)) r.publish(1, 1);
        if (lies && round == 5)
          r.require(r.read(1) != 0, "nobody refused the liar: " + r.error_text());
        r.barrier();
        if (r.read(1) != 0) break;
        r.close();
        r.barrier();
      }
    });
  }
}

void wrong_communicator(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    if (r.rank() == 1) r.config.comm_id += 1;
    r.open();
    r.require_error(r.connect(1000), {WEIR_ERROR_MISMATCH, WEIR_ERROR_REFUSED, WEIR_ERROR_TIMEOUT,
                                      WEIR_ERROR_PEER_LOST});
    r.barrier();
  });
}

void wrong_user(const Variant& variant) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  run_ranks(variant, 2, [](Rank& r) {
    r.open();
    if (r.rank() == 1) r.require(setuid(65534) == 0, "setuid");
    // Over the network they may prove themselves to each other, but they share no memory.
    r.require_error(r.connect(500),
                    {WEIR_ERROR_REFUSED, WEIR_ERROR_TIMEOUT, WEIR_ERROR_UNSUPPORTED});
    r.barrier();
  });
}

void bad_configuration(const Variant& variant) {
  run_ranks(variant, 1, [](Rank& r) {
    weir_transport_t* instance = nullptr;
    weir_host_t host = {
        sizeof host, &r,
        [](void* context, const char*) { static_cast<Rank*>(context)->publish(0, 1); },
        [](void*, int, const char*) {}, [](void*, const char*) -> const char* { return nullptr; }};
    const auto refused = [&](const weir_transport_config_t& config, const std::string& what) {
      r.publish(0, 0);
      r.require(r.f().open(r.f().context, &host, &config, &instance) >= WEIR_ERROR_INVALID_ARGUMENT,
                what + " was accepted");
      r.require(r.read(0) == 1, what + " was refused without a text");
    };
    weir_transport_config_t config = r.config;
    config.rank = config.rank_count;
    refused(config, "a rank beyond the count");
    config = r.config;
    config.rank_count = r.f().caps.rank_count_max;
    if (config.rank_count != ~0u) {
      ++config.rank_count;
      refused(config, "more ranks than declared");
    }
    config = r.config;
    config.struct_bytes = 8;
    refused(config, "a configuration of another version");
  });
}

void bad_addresses(const Variant& variant) {
  run_ranks(variant, 2, [](Rank& r) {
    r.open();
    const unsigned char garbage[16] = {1, 2, 3};
    const unsigned char* addresses[2] = {garbage, garbage};
    const size_t bytes[2] = {sizeof garbage, sizeof garbage};
    const weir_result_t result =
        r.f().connect(r.instance(), addresses, bytes, monotonic_ns() + 300'000'000);
    r.require(result >= WEIR_ERROR_INVALID_ARGUMENT, "garbage was accepted as an address");
    r.require(!r.error_text().empty(), "garbage was refused without a text");
    r.barrier();
  });
}

size_t count_descriptors() {
  size_t count = 0;
  DIR* stream = opendir("/proc/self/fd");
  while (readdir(stream) != nullptr) ++count;
  closedir(stream);
  return count;
}

size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  size_t count = 0;
  // Other mappings belong to the allocator and the sanitizers.
  while (std::getline(maps, line)) count += line.find("memfd:") != std::string::npos ? 1u : 0u;
  return count;
}

void exchange(Rank& r) {
  uint64_t value = r.rank();
  weir_transport_op_t send_op{}, recv_op{};
  const uint32_t next = (r.rank() + 1) % r.count();
  const uint32_t last = (r.rank() + r.count() - 1) % r.count();
  uint64_t got = 0;
  const weir_result_t sent = r.f().send(r.instance(), next, 0, &value, 8, &send_op);
  const weir_result_t received = r.f().recv(r.instance(), last, 0, &got, 8, &recv_op);
  r.wait(&recv_op, received, "recv");
  r.wait(&send_op, sent, "send");
  r.require(got == last, "the wrong value arrived");
}

struct Holdings {
  size_t descriptors = 0;
  size_t mappings = 0;
};

// What the process holds while no rank of it is at work.
Holdings count_holdings(Rank& r) {
  Holdings holdings;
  r.barrier();
  if (r.variant().processes || r.rank() == 0) holdings = {count_descriptors(), count_mappings()};
  r.barrier();
  return holdings;
}

// To the last descriptor, so that hooks and handshakes, which make a life long, need fewer of them
// than the bare transport.
void nothing_leaks(const Variant& variant) {
  const bool is_bare = variant.hook.empty() && std::getenv("WEIR_TLS") == nullptr;
  const int life_count = is_bare ? 200 : 40;
  run_ranks(variant, variant.rank_count(2), [life_count](Rank& r) {
    constexpr int kFirstLives = 10;  // of which something may stay
    Holdings before;
    for (int i = 0; i < kFirstLives + life_count; ++i) {
      if (i == kFirstLives) before = count_holdings(r);
      r.join();
      exchange(r);
      if (r.variant().can(WEIR_CAP_WINDOW) && i % 8 == 0) {
        unsigned char key[16] = {static_cast<unsigned char>(i)};
        weir_segment_t w{};
        r.require_ok(
            r.f().window_open(r.instance(), key, 4096, monotonic_ns() + 20'000'000'000, &w),
            "window_open");
      }
      r.barrier();
      r.close();
      r.barrier();
    }
    // Threads of Weir and of libraries end the last of a life after it: what leaks stays.
    Holdings after = count_holdings(r);
    const auto is_more = [&] {
      return after.descriptors > before.descriptors || after.mappings > before.mappings;
    };
    for (int i = 0; i < 2000 && is_more(); ++i) {
      usleep(1000);
      after = {count_descriptors(), count_mappings()};
    }
    r.barrier();
    r.require(!is_more(), "descriptors or mappings leak: " + std::to_string(before.descriptors) +
                              " and " + std::to_string(before.mappings) + " before, " +
                              std::to_string(after.descriptors) + " and " +
                              std::to_string(after.mappings) + " after");
  });
}

void living_peers(const Variant& variant) {
  run_ranks(variant, variant.rank_count(3), [](Rank& r) {
    r.join();
    for (uint32_t i = 0; i < r.count(); ++i) {
      r.require_ok(r.f().peer_alive(r.instance(), i), "peer_alive of a living rank");
    }
    r.barrier();
  });
}

void dead_peer(const Variant& variant) {
  run_ranks(variant, 3,
            [](Rank& r) {
              r.join();
              r.barrier();  // who dies while others still join fails their join
              // More than the sockets of a system hold: it does not go in one step while nobody
              // receives.
              std::vector<unsigned char> data(
                  std::min<uint64_t>(64u << 20, r.f().caps.message_bytes_max));
              weir_transport_op_t op{};
              if (r.rank() == 1) {
                const weir_result_t posted =
                    r.f().send(r.instance(), 0, 0, data.data(), data.size(), &op);
                r.require(posted == WEIR_IN_PROGRESS, "64 MiB went in one step");
                r.publish(4, 1);
                // Rank 0 is in the middle of this message when we die.
                while (r.read(1) == 0) r.f().test(r.instance(), &op);
                r.publish(0, monotonic_ns());
                kill(getpid(), SIGKILL);
              }
              weir_result_t received = WEIR_OK;
              r.await(4);
              if (r.rank() == 0)
                received = r.f().recv(r.instance(), 1, 0, data.data(), data.size(), &op);
              r.publish(1, 1);
              r.await(0);
              weir_result_t alive = WEIR_OK;
              while (alive == WEIR_OK && monotonic_ns() - r.read(0) < 2'000'000'000) {
                if (r.rank() == 0 && received == WEIR_IN_PROGRESS)
                  received = r.f().test(r.instance(), &op);
                alive = r.f().peer_alive(r.instance(), 1);
              }
              r.require(monotonic_ns() - r.read(0) < 1'000'000'000,
                        "a death was told after a second");
              r.require_error(alive, {WEIR_ERROR_PEER_LOST}, {"1"});
              r.require_ok(r.f().peer_alive(r.instance(), r.rank() == 0 ? 2 : 0),
                           "peer_alive of a survivor");
              while (r.read(2) + r.read(3) < 2) {  // both survivors have asked
                r.publish(r.rank() == 0 ? 2 : 3, 1);
                usleep(10);
              }
            },
            {{1}});
}

std::set<std::string> names_in(const char* directory) {
  std::set<std::string> names;
  if (DIR* stream = opendir(directory)) {
    while (const dirent* item = readdir(stream)) names.insert(item->d_name);
    closedir(stream);
  }
  return names;
}

// Unix sockets with our name, and listening TCP sockets, of this network namespace.
std::string sockets_left() {
  std::ifstream file("/proc/net/unix");
  std::string line, found;
  while (std::getline(file, line)) {
    if (line.find("weir") != std::string::npos) found += line + "\n";
  }
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(path);
    while (std::getline(table, line)) {
      if (line.find(" 0A ") != std::string::npos) found += line + "\n";
    }
  }
  return found;
}

// A new network namespace has a loopback interface that is down.
bool raise_loopback() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  strcpy(request.ifr_name, "lo");
  bool good = ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP | IFF_RUNNING);
  good = good && ioctl(fd, SIOCSIFFLAGS, &request) == 0;
  close(fd);
  return good;
}

// In a network and mount namespace of its own, with 64 KiB of /dev/shm: all ranks are killed at a
// random moment, over and over. 0: nothing was left; else what was.
int killed_in_a_small_world(const Variant& variant) {
  if (unshare(CLONE_NEWNET | CLONE_NEWNS) != 0 ||
      mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=64k") != 0 || !raise_loopback()) {
    return 77;
  }
  // Other tests make files in /tmp meanwhile: a /tmp of its own, unless the tests themselves lie
  // there.
  std::error_code error;
  const std::string self = std::filesystem::read_symlink("/proc/self/exe", error).string();
  const bool own_tmp = self.rfind("/tmp/", 0) != 0;
  if (own_tmp && mount("tmpfs", "/tmp", "tmpfs", 0, "size=64m") != 0) return 77;
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 10; ++round) {
    const uint64_t life_us = round == 0 ? 100'000 : random() % 8000;
    const pid_t family = fork();
    if (family == 0) {
      setpgid(0, 0);
      run_ranks(variant, 3, [](Rank& r) {
        r.config.segment_bytes = 8u << 20;
        r.join();
        if (r.variant().can(WEIR_CAP_SEGMENT)) {
          weir_segment_t s{};
          r.require_ok(r.f().segment(r.instance(), &s), "segment");
          memset(s.base + r.rank() * s.stride_bytes, 1, r.config.segment_bytes);
        }
        for (;;) exchange(r);
      });
      _exit(1);  // the exchange never ends
    }
    setpgid(family, family);
    usleep(static_cast<useconds_t>(life_us));
    if (waitpid(family, nullptr, WNOHANG) != 0) return 3;  // it failed in the small world
    kill(-family, SIGKILL);
    while (waitpid(-1, nullptr, 0) > 0) {
    }
  }
  // The ranks are the family's children and are reaped by init: wait for their sockets to go.
  for (int i = 0; i < 2000 && !sockets_left().empty(); ++i) usleep(1000);
  if (!sockets_left().empty()) return 4;
  for (const std::string& name : names_in("/dev/shm")) {
    // UCX 1.13 itself: it makes a segment by name and takes the name away a moment later.
    const bool of_ucx = name.rfind("ucx_shm_posix", 0) == 0;
    if (name != "." && name != ".." && !of_ucx) return 5;
  }
  for (const std::string& name : names_in("/tmp")) {
    if (own_tmp && name != "." && name != "..") return 6;
  }
  return 0;
}

void nothing_is_left(const Variant& variant) {
  fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) _exit(killed_in_a_small_world(variant));
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs the right to make namespaces";
  EXPECT_NE(WEXITSTATUS(status), 3) << "the ranks did not work with a /dev/shm of 64 KiB";
  EXPECT_NE(WEXITSTATUS(status), 4) << "a socket is left";
  EXPECT_NE(WEXITSTATUS(status), 5) << "a file is left in /dev/shm";
  EXPECT_NE(WEXITSTATUS(status), 6) << "a file is left in /tmp";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

void many_ranks(const Variant& variant) {
  run_ranks(variant, variant.rank_count(12), [](Rank& r) {
    r.join();
    for (int i = 0; i < 3; ++i) exchange(r);
    r.barrier();
  });
}

void described_peers(const Variant& variant) {
  run_ranks(variant, variant.rank_count(3), [](Rank& r) {
    r.join();
    constexpr size_t kEnd = offsetof(weir_transport_functions_t, describe_peer) + sizeof(void*);
    if (r.f().struct_bytes < kEnd || r.f().describe_peer == nullptr) {
      r.skip("the transport tells nothing of how it reaches a peer");
    }
    for (uint32_t peer = 0; peer < r.count(); ++peer) {
      char text[256];
      memset(text, 'x', sizeof text);
      r.f().describe_peer(r.instance(), peer, text, sizeof text);
      const size_t length = strnlen(text, sizeof text);
      r.require(length < sizeof text, "the text has no end");
      const std::string name = "rank " + std::to_string(peer);
      r.require(length == 0 || std::string(text).find(name) != std::string::npos,
                "the text does not name the peer: " + std::string(text));
      char cut[8];
      memset(cut, 'x', sizeof cut);
      r.f().describe_peer(r.instance(), peer, cut, 5);
      r.require(strnlen(cut, 5) == std::min<size_t>(length, 4), "it was not cut where it must be");
      r.require(cut[5] == 'x', "it wrote beyond the end");
    }
    r.barrier();
  });
}

bool in_processes(const Variant& v) { return v.processes; }
bool in_bare_processes(const Variant& v) { return v.processes && v.hook.empty(); }

}  // namespace

const std::vector<Property>& membership_properties() {
  static const std::vector<Property> properties = {
      {"AMissingRankIsNamedAtTheDeadline", 0, 3, missing_rank},
      {"TheNewsOfTheHostEndTheWaitForOthers", 0, 3, news_of_the_host},
      {"AWrongSecretIsRefused", 0, 3, wrong_secret},
      {"ARankOfAnotherCommunicatorIsRefused", 0, 2, wrong_communicator},
      {"AnotherUserIsRefused", WEIR_CAP_SEGMENT, 2, wrong_user, in_processes},
      {"BadConfigurationsAreRefused", 0, 1, bad_configuration},
      {"BadAddressesAreRefused", 0, 2, bad_addresses},
      {"DescriptorsAndMappingsAreAsBeforeAfterManyLives", WEIR_CAP_SEND_RECV, 1, nothing_leaks},
      {"LivingPeersAreToldAlive", WEIR_CAP_PEER_FAILURE, 1, living_peers},
      {"ADeadPeerIsToldWithinASecond", WEIR_CAP_PEER_FAILURE, 3, dead_peer, in_processes},
      {"NothingIsLeftAfterSigkill", WEIR_CAP_SEND_RECV, 3, nothing_is_left, in_bare_processes},
      {"HowAPeerIsReachedIsToldWithinTheRoomThatThereIs", 0, 1, described_peers},
      {"TwelveRanksJoin", WEIR_CAP_SEND_RECV, 1, many_ranks},
  };
  return properties;
}

}  // namespace weir::conformance
