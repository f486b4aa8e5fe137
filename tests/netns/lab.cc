// SPDX-License-Identifier: Apache-2.0
#include "netns/lab.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <new>

namespace weir::test {
namespace {

constexpr int kRanksMax = 64;
constexpr int kHostsMax = 8;
constexpr int kPatienceMs = 120'000;

// What all processes of a lab share.
struct Board {
  std::atomic<int> host_has_namespace[kHostsMax];
  std::atomic<int> network_stands;
  std::atomic<int> hosts_ready;
  std::atomic<int> id_is_made;
  weir_unique_id_t id;
  std::atomic<int> status[kRanksMax];
};

bool shell(const std::string& command) {
  const int status = std::system(("(" + command + ") >/dev/null 2>&1").c_str());
  if (status == 0) return true;
  std::fprintf(stderr, "failed: %s\n", command.c_str());
  return false;
}

bool await(const std::atomic<int>& number, int least) {
  for (int i = 0; i < kPatienceMs && number.load() < least; ++i) usleep(1000);
  return number.load() >= least;
}

// The kernel says a little later that the other end is up too.
bool await_carrier(const std::string& device) {
  for (int i = 0; i < kPatienceMs / 10; ++i) {
    if (std::system(("ip link show dev " + device + " up | grep -q LOWER_UP").c_str()) == 0)
      return true;
    usleep(10'000);
  }
  return false;
}

std::string with_number(std::string command, int number) {
  for (size_t at; (at = command.find("%i")) != std::string::npos;) {
    command.replace(at, 2, std::to_string(number));
  }
  return command;
}

void run_launched(const LabOptions& options, int host, int rank, int rank_count, const Body& body,
                  const weir_comm_config_t& config) {
  const std::vector<int>& own = options.hosts[static_cast<size_t>(host)];
  const auto local = std::find(own.begin(), own.end(), rank) - own.begin();
  setenv("WEIR_RANK", std::to_string(rank).c_str(), 1);
  setenv("WEIR_SIZE", std::to_string(rank_count).c_str(), 1);
  setenv("WEIR_LOCAL_RANK", std::to_string(local).c_str(), 1);
  setenv("WEIR_LOCAL_SIZE", std::to_string(own.size()).c_str(), 1);
  for (const auto& [name, value] : options.environment) {
    setenv(name.c_str(), with_number(value, host).c_str(), 1);
  }
  if (options.before) options.before(rank);
  weir_comm_t comm = nullptr;
  ASSERT_EQ(weir_comm_create_from_env(&comm, &config), WEIR_OK) << weir_last_error(nullptr);
  body(rank, comm);
  EXPECT_EQ(weir_comm_destroy(comm), WEIR_OK);
}

[[noreturn]] void be_rank(Board* board, const LabOptions& options, int host, int rank,
                          int rank_count, const Body& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
  config.timeout_ms = options.timeout_ms;
  if (options.launched) {
    run_launched(options, host, rank, rank_count, body, config);
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
  if (rank == options.id_rank) {
    board->id = make_id();
    board->id_is_made = 1;
  }
  if (!await(board->id_is_made, 1)) _exit(3);
  if (options.before) options.before(rank);
  run_rank(rank_count, rank, board->id, body, config);
  std::fflush(nullptr);
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

[[noreturn]] void be_host(Board* board, const LabOptions& options, int host, int rank_count,
                          const Body& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (unshare(CLONE_NEWNET) != 0) _exit(2);
  if (options.own_mounts && (unshare(CLONE_NEWNS) != 0 ||
                             mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)) {
    _exit(2);
  }
  board->host_has_namespace[host] = 1;
  if (!await(board->network_stands, 1)) _exit(2);
  bool good = shell("ip link set lo up");
  for (int k = 0; k < options.interfaces; ++k) {
    const std::string device = "eth" + std::to_string(k);
    good = good &&
           shell("ip addr add 10." + std::to_string(77 + k) + ".0." + std::to_string(host + 1) +
                 "/24 dev " + device) &&
           shell("ip link set " + device + " up") && await_carrier(device);
  }
  for (const std::string& command : options.commands) {
    good = good && shell(with_number(command, host));
  }
  if (!good) _exit(2);
  ++board->hosts_ready;
  if (!await(board->hosts_ready, static_cast<int>(options.hosts.size()))) _exit(2);
  std::vector<std::pair<int, pid_t>> ranks;
  for (const int rank : options.hosts[static_cast<size_t>(host)]) {
    const pid_t pid = fork();
    if (pid == 0) be_rank(board, options, host, rank, rank_count, body);
    ranks.emplace_back(rank, pid);
  }
  for (const auto& [rank, pid] : ranks) {
    int status = 0;
    waitpid(pid, &status, 0);
    board->status[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  _exit(0);
}

// The process whose namespace has the bridge; 0 when the network stood and every host has ended.
int be_switch(Board* board, const LabOptions& options, int rank_count, const Body& body) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (unshare(CLONE_NEWNET) != 0) return 2;
  const bool relays = options.relay.bits_per_second != 0;
  for (int k = 0; k < options.interfaces && !relays; ++k) {
    const std::string bridge = "br" + std::to_string(k);
    if (!shell("ip link add " + bridge + " type bridge") ||
        !shell("ip link set " + bridge + " up")) {
      return 2;
    }
  }
  std::vector<pid_t> hosts;
  for (size_t i = 0; i < options.hosts.size(); ++i) {
    const pid_t pid = fork();
    if (pid == 0) be_host(board, options, static_cast<int>(i), rank_count, body);
    hosts.push_back(pid);
    if (!await(board->host_has_namespace[i], 1)) return 2;
    for (int k = 0; k < options.interfaces; ++k) {
      const std::string end = "v" + std::to_string(i) + "-" + std::to_string(k);
      const std::string number = std::to_string(k);
      if (!shell("ip link add " + end + " type veth peer name eth" + number + " netns " +
                 std::to_string(pid)) ||
          !shell("ip link set " + end + (relays ? "" : " master br" + number) + " up")) {
        return 2;
      }
    }
  }
  const pid_t relay = relays ? fork() : -1;
  if (relay == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(run_relay("v0-0", "v1-0", options.relay) ? 0 : 1);
  }
  board->network_stands = 1;
  int result = 0;
  for (const pid_t pid : hosts) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) result = 2;
  }
  if (relays) {
    if (waitpid(relay, nullptr, WNOHANG) != 0) result = 2;  // it has ended by itself
    kill(relay, SIGKILL);
  }
  return result;
}

}  // namespace

std::string why_no_lab() {
  if (geteuid() != 0) return "only root can make network namespaces";
  if (std::system("ip -V >/dev/null 2>&1") != 0) return "the program ip (iproute2) is missing";
  const pid_t pid = fork();
  if (pid == 0) {
    const bool good = unshare(CLONE_NEWNET) == 0 && shell("ip link add br0 type bridge") &&
                      shell("ip link add v0 type veth peer name v1");
    _exit(good ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0
             ? ""
             : "this machine does not let namespaces, bridges or veth be made";
}

std::vector<int> run_in_lab_status(const LabOptions& options, const Body& body) {
  int rank_count = 0;
  for (const auto& ranks : options.hosts) rank_count += static_cast<int>(ranks.size());
  EXPECT_LE(rank_count, kRanksMax);
  EXPECT_LE(options.hosts.size(), static_cast<size_t>(kHostsMax));
  void* memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  auto* board = new (memory) Board();
  for (auto& status : board->status) status = -1;
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) _exit(be_switch(board, options, rank_count, body));
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the lab could not be set up";
  std::vector<int> statuses;
  for (int rank = 0; rank < rank_count; ++rank) statuses.push_back(board->status[rank]);
  munmap(memory, sizeof(Board));
  return statuses;
}

void run_in_lab(const LabOptions& options, const Body& body) {
  const std::vector<int> statuses = run_in_lab_status(options, body);
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    EXPECT_EQ(statuses[rank], 0) << "rank " << rank;
  }
}

}  // namespace weir::test
