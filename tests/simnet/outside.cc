// SPDX-License-Identifier: Apache-2.0
#include "simnet/outside.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <utility>

#include "core/base/log.h"
#include "core/comm/communicator.h"
#include "core/comm/process.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/introduction.h"
#include "plugins/builtin.h"
#include "simnet/fabric.h"

namespace weir::simnet {

namespace {

Outside* g_outside = nullptr;

constexpr uint64_t kMeetingNs = 100 * kMicrosecond;  // a look at whether the others are there

World* world() { return World::inside(); }

Result<Settings> default_settings() {
  char* none[] = {nullptr};
  return parse_settings(none);
}

}  // namespace

Outside::Outside(World& w) : world(w), settings(default_settings()) { g_outside = this; }

Outside::~Outside() { g_outside = nullptr; }

// ---- How ranks first meet ---------------------------------------------------------------------

struct Room {
  std::vector<bool> here;
  std::vector<std::vector<std::string>> rounds;  // [round][rank]
  std::vector<std::vector<bool>> given;
  Status failure;  // why a rank has given up
};

class Meeting final : public comm::Bootstrap {
 public:
  Meeting(Room* room, Rank rank) : room_(room), rank_(rank) {}

  Result<std::vector<std::string>> all_gather(std::string_view blob,
                                              uint64_t deadline_ns) override {
    const size_t round = round_++;
    if (room_->rounds.size() == round) {
      room_->rounds.emplace_back(room_->here.size());
      room_->given.emplace_back(room_->here.size(), false);
    }
    room_->rounds[round][rank_] = blob;
    room_->given[round][rank_] = true;
    const Status status = wait([&] { return room_->given[round]; }, room_->failure, deadline_ns);
    if (!status.ok()) return status;
    return room_->rounds[round];
  }

  Status look() override { return room_->failure; }
  Status give_up(const Status& reason) override {
    if (room_->failure.ok()) room_->failure = reason;
    return room_->failure;
  }

  template <typename There>
  static Status wait(There there, const Status& failure, uint64_t deadline_ns) {
    for (;;) {
      if (!failure.ok()) return failure;
      const std::vector<bool> now_there = there();
      const auto missing = std::find(now_there.begin(), now_there.end(), false);
      if (missing == now_there.end()) {
        world()->moved();
        return Status();
      }
      if (world()->closing()) return Status(Code::kAborted, "the world ends");
      if (world()->now_ns() >= deadline_ns) {
        return Status(Code::kTimeout, fmt::format("rank {} did not come to the meeting",
                                                  missing - now_there.begin()));
      }
      world()->sleep(kMeetingNs);
    }
  }

 private:
  Room* room_;
  Rank rank_;
  size_t round_ = 0;
};

}  // namespace weir::simnet

// ---- In the place of the library's own --------------------------------------------------------

namespace weir::comm {

using simnet::g_outside;

Result<std::unique_ptr<Bootstrap>> Bootstrap::join(const Secret& secret, Rank rank, Rank rank_count,
                                                   uint64_t deadline_ns, const Place&,
                                                   const JoinOptions&) {
  const std::string key(reinterpret_cast<const char*>(secret.bytes.data()), secret.bytes.size());
  auto& room = g_outside->rooms[key];
  if (room == nullptr) {
    room = std::make_unique<simnet::Room>();
    room->here.assign(rank_count, false);
  }
  if (room->here.size() != rank_count || rank >= rank_count || room->here[rank]) {
    return Status(Code::kRefused, "the ranks do not agree who they are");
  }
  room->here[rank] = true;
  const Status status =
      simnet::Meeting::wait([&] { return room->here; }, room->failure, deadline_ns);
  if (!status.ok()) return status;
  return std::unique_ptr<Bootstrap>(new simnet::Meeting(room.get(), rank));
}

}  // namespace weir::comm

namespace weir::control {

Result<std::unique_ptr<Network>> Network::open(const NetworkConfig& config) {
  return simnet::Fabric::network(config.comm_id, config.rank, config.rank_count);
}

}  // namespace weir::control

namespace weir::comm {

// Each rank is a process of its own: it sees no other rank's communicators.
namespace {

struct Registered {
  Communicator* comm;
  uint32_t rank;
};
std::vector<Registered> g_registered;

}  // namespace

void register_communicator(Communicator* comm) {
  g_registered.push_back({comm, simnet::world()->running()});
}

void unregister_communicator(Communicator* comm) {
  std::erase_if(g_registered, [comm](const Registered& it) { return it.comm == comm; });
}

void request_started() {}

void watch_requests() {}

void progress_others(const Communicator* mine) {
  const uint32_t rank = simnet::world()->running();
  // A poll may give the turn away, and other ranks come and go meanwhile.
  std::vector<Communicator*> others;
  for (const Registered& it : g_registered) {
    if (it.rank == rank && it.comm != mine) others.push_back(it.comm);
  }
  for (Communicator* comm : others) {
    if (comm->has_requests()) comm->try_poll();
  }
}

}  // namespace weir::comm

namespace weir::plugins {

namespace self {
const weir_transport_functions_t* transport();
}

std::span<const TransportFunction> builtin_transports() {
  static constexpr TransportFunction kTransports[] = {simnet::Fabric::transport, self::transport};
  return kTransports;
}

std::span<const BuiltinComposite> builtin_composites() { return {}; }

std::string fault_problem(std::string_view) { return ""; }

}  // namespace weir::plugins

// ---- In the place of functions of the system and of the library (ld --wrap) ---------------------

using weir::simnet::g_outside;
using weir::simnet::World;

extern "C" {

int __real_clock_gettime(clockid_t clock, timespec* time);
int __real_nanosleep(const timespec* wanted, timespec* left);
int __real_sched_yield();
long __real_syscall(long number, ...);

int __wrap_clock_gettime(clockid_t clock, timespec* time) {
  World* world = World::inside();
  if (world == nullptr) return __real_clock_gettime(clock, time);
  const uint64_t now_ns = world->look_at_clock();
  time->tv_sec = static_cast<time_t>(now_ns / 1'000'000'000u);
  time->tv_nsec = static_cast<long>(now_ns % 1'000'000'000u);
  return 0;
}

int __wrap_nanosleep(const timespec* wanted, timespec* left) {
  World* world = World::inside();
  if (world == nullptr) return __real_nanosleep(wanted, left);
  world->sleep(static_cast<uint64_t>(wanted->tv_sec) * 1'000'000'000u +
               static_cast<uint64_t>(wanted->tv_nsec));
  return 0;
}

int __wrap_sched_yield() {
  World* world = World::inside();
  if (world == nullptr) return __real_sched_yield();
  world->yield();
  return 0;
}

// The library makes no other system call by number but those on a futex.
long __wrap_syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long argument[6];
  for (long& it : argument) it = va_arg(list, long);
  va_end(list);
  World* world = World::inside();
  if (world == nullptr || number != SYS_futex) {
    return __real_syscall(number, argument[0], argument[1], argument[2], argument[3], argument[4],
                          argument[5]);
  }
  const auto* word = reinterpret_cast<const std::atomic<uint32_t>*>(argument[0]);
  if (argument[1] == FUTEX_WAIT && word->load() == static_cast<uint32_t>(argument[2])) {
    world->sleep(1);
  } else if (argument[1] == FUTEX_WAKE) {
    // Whoever else is woken looks around and sleeps again.
    for (uint32_t rank = 0; rank < g_outside->host_of_rank.size(); ++rank) {
      if (rank != world->running()) world->poke(rank, world->now_ns());
    }
  }
  return 0;
}

}  // extern "C"

#define WEIR_IN_PLACE_OF(mangled) asm("__wrap_" mangled)

const weir::Result<weir::Settings>& settings_of_the_world()
    WEIR_IN_PLACE_OF("_ZN4weir16process_settingsEv");
void log_of_the_world(weir::LogLevel level, std::string_view text)
    WEIR_IN_PLACE_OF("_ZN4weir3logENS_8LogLevelESt17basic_string_viewIcSt11char_traitsIcEE");
weir::Result<weir::cost::Rules> rules_of_the_world(
    const std::string& path, std::span<const weir::algo::Algorithm* const> among)
    WEIR_IN_PLACE_OF(
        "_ZN4weir4cost10load_rulesERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcE"
        "EESt4spanIKPKNS_4algo9AlgorithmELm18446744073709551615EE");
weir::comm::Introduction introduction_in_the_world()
    WEIR_IN_PLACE_OF("_ZN4weir4comm22introduce_this_processEv");

const weir::Result<weir::Settings>& settings_of_the_world() {
  static const weir::Result<weir::Settings> outside = weir::simnet::default_settings();
  return g_outside != nullptr ? g_outside->settings : outside;
}

void log_of_the_world(weir::LogLevel, std::string_view text) {
  World* world = World::inside();
  if (world != nullptr) world->trace().say(world->now_ns(), world->running(), text);
}

weir::Result<weir::cost::Rules> rules_of_the_world(const std::string&,
                                                   std::span<const weir::algo::Algorithm* const>) {
  return g_outside->rules;
}

weir::comm::Introduction introduction_in_the_world() {
  const uint32_t host = g_outside->host_of_rank[World::inside()->running()];
  weir::comm::Introduction it;
  it.machine = it.host = fmt::format("host {}", host);
  for (uint32_t cpu = 0; cpu < g_outside->cores_per_host; ++cpu) {
    it.cpus.push_back(static_cast<int>(cpu));
  }
  return it;
}
