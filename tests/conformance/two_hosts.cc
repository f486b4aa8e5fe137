// SPDX-License-Identifier: Apache-2.0
#include "conformance/two_hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace weir::conformance {
namespace {

bool shell(const std::string& command) {
  return system((command + " >/dev/null 2>&1").c_str()) == 0;
}

// The kernel says a little later that the other end is up too.
bool await_carrier(const std::string& inside) {
  for (int i = 0; i < 1000; ++i) {
    if (shell(inside + "link show dev eth0 up | grep -q LOWER_UP")) return true;
    usleep(10'000);
  }
  return false;
}

// Sleeps in a network namespace of its own, once the other end of the pipe has heard of it.
[[noreturn]] void keep(int pipe_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const char made = unshare(CLONE_NEWNET) == 0 ? 1 : 0;
  if (write(pipe_fd, &made, 1) != 1 || made == 0) _exit(1);
  for (;;) pause();
}

}  // namespace

TwoHosts& two_hosts() {
  static TwoHosts hosts;
  return hosts;
}

TwoHosts::~TwoHosts() {
  for (int i = 0; i < 2; ++i) {
    if (fds_[i] >= 0) close(fds_[i]);
    if (keepers_[i] <= 0) continue;
    kill(keepers_[i], SIGKILL);
    waitpid(keepers_[i], nullptr, 0);
  }
}

std::string TwoHosts::make() {
  if (geteuid() != 0) return "only root can make network namespaces";
  for (pid_t& keeper : keepers_) {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
    keeper = fork();
    if (keeper == 0) keep(ends[1]);
    close(ends[1]);
    char made = 0;
    const bool heard = read(ends[0], &made, 1) == 1 && made == 1;
    close(ends[0]);
    if (!heard) return "this machine does not let network namespaces be made";
  }
  const std::string one = std::to_string(keepers_[0]);
  const std::string other = std::to_string(keepers_[1]);
  bool good = shell("ip link add eth0 netns " + one + " type veth peer name eth0 netns " + other);
  for (int i = 0; i < 2 && good; ++i) {
    const std::string inside = "nsenter -t " + std::to_string(keepers_[i]) + " -n ip ";
    good = shell(inside + "link set lo up") &&
           shell(inside + "addr add 10.79.0." + std::to_string(i + 1) + "/24 dev eth0") &&
           shell(inside + "link set eth0 up");
  }
  for (int i = 0; i < 2 && good; ++i) {
    good = await_carrier("nsenter -t " + std::to_string(keepers_[i]) + " -n ip ");
  }
  if (!good)
    return "this machine does not let veth be made (or the programs ip, nsenter are missing)";
  for (int i = 0; i < 2; ++i) {
    const std::string path = "/proc/" + std::to_string(keepers_[i]) + "/ns/net";
    fds_[i] = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fds_[i] < 0) return "no descriptor of a namespace";
  }
  return "";
}

bool TwoHosts::enter(uint32_t rank) const { return setns(fds_[rank % 2], CLONE_NEWNET) == 0; }

}  // namespace weir::conformance
