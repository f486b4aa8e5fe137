// SPDX-License-Identifier: Apache-2.0
// Variables of the environment whose value cannot be meant: whoever creates a communicator hears of
// it at once, by the variable's name, whatever the transport.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "support/promises.h"
#include "support/ranks.h"

namespace weir::test {
namespace {

struct Made {
  weir_result_t result = WEIR_OK;
  double seconds = 0;
  std::string text;  // of the error, and what was logged
};

// What rank `rank` of `count`, in a process of its own, is told with `environment`; nobody else
// comes.
Made create_alone(const Environment& environment, int rank, int count, bool makes_id = false) {
  const weir_unique_id_t given = make_id();
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    dup2(ends[1], STDERR_FILENO);
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    weir_unique_id_t id = given;
    weir_comm_config_t config = WEIR_COMM_CONFIG_INIT;
    config.timeout_ms = 20'000;
    weir_comm_t comm = nullptr;
    const weir_result_t result =
        makes_id ? weir_get_unique_id(&id) : weir_comm_create(&comm, count, &id, rank, &config);
    std::fprintf(stderr, "%s\n", weir_last_error(nullptr));
    if (comm != nullptr) weir_comm_destroy(comm);
    _exit(result);
  }
  close(ends[1]);
  Made made;
  const auto start = Clock::now();
  char part[4096];
  for (ssize_t got = 0; (got = read(ends[0], part, sizeof part)) > 0;) {
    made.text.append(part, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  made.result = static_cast<weir_result_t>(WEXITSTATUS(status));
  made.seconds = seconds_since(start);
  return made;
}

TEST(Interfaces, ThatCannotBeMeantAreRefusedAtOnce) {
  const std::vector<std::string> bad = {
      "\x01", "\xff\xfe\xfd", " ", "eth0 ", ",", "eth0,,eth1", ",eth0", "^", "=", "^=", "eth/0",
      "../lo", "\n", "\t\r\n", "%s%n%s", "eth0\x7f", "\xe2\x80\x8b", std::string(16, 'e'),
      std::string(5000, '\xee'), std::string(100'000, ','), std::string(100'000, 'x'),
      // Names that may be, but that nothing here has.
      "nosuchif", "=l", "^lo,e,w,d,b,v,t,i,n,p,s,u,a,c,f,g,h,j,k,m,o,q,r,x,y,z", "{}", "(null)"};
  for (const std::string& value : bad) {
    for (const char* transport : {"", "tcp", "shm,tcp"}) {
      const Environment environment = {{"WEIR_IFNAME", value}, {"WEIR_TRANSPORT", transport}};
      for (const int rank : {0, 1}) {
        const Made made = create_alone(environment, rank, 2);
        EXPECT_EQ(made.result, WEIR_ERROR_INVALID_ARGUMENT) << value.substr(0, 40) << made.text;
        EXPECT_NE(made.text.find("WEIR_IFNAME"), std::string::npos) << made.text;
        EXPECT_LT(made.seconds, 15) << value.substr(0, 40);
      }
    }
    for (const char* transport : {"", "tcp"}) {
      const Made one = create_alone({{"WEIR_IFNAME", value}, {"WEIR_TRANSPORT", transport}}, 0, 1);
      EXPECT_EQ(one.result, WEIR_ERROR_INVALID_ARGUMENT) << value.substr(0, 40) << one.text;
      EXPECT_NE(one.text.find("WEIR_IFNAME"), std::string::npos) << one.text;
    }
    const Made id = create_alone({{"WEIR_IFNAME", value}}, 0, 2, true);
    EXPECT_EQ(id.result, WEIR_ERROR_INVALID_ARGUMENT) << value.substr(0, 40) << id.text;
  }
}

TEST(Interfaces, ThatExistAreTaken) {
  for (const char* value : {"lo", "=lo", "^nosuchif", "nosuchif,lo"}) {
    for (const char* transport : {"", "tcp"}) {
      run_processes(2,
                    [](int, weir_comm_t comm) {
                      EXPECT_EQ(weir_barrier(comm, nullptr), WEIR_OK) << weir_last_error(comm);
                    },
                    {{"WEIR_IFNAME", value}, {"WEIR_TRANSPORT", transport}});
    }
  }
}

TEST(Fault, ThatCannotBeReadIsAnErrorWithAndWithoutItsHook) {
  for (const char* hooks : {"", "fault", "check"}) {
    for (const char* value : {"kill", "kill_at=", "kill_at=0", "kill_at=x", "kill_it=3", ",",
                              "seed=1,seed=2", "\xff", "kill_at=1;rank=2"}) {
      const Made made = create_alone({{"WEIR_FAULT", value}, {"WEIR_HOOKS", hooks}}, 0, 1);
      EXPECT_EQ(made.result, WEIR_ERROR_INVALID_ARGUMENT) << value << " " << made.text;
      EXPECT_NE(made.text.find("WEIR_FAULT"), std::string::npos) << made.text;
    }
  }
}

TEST(Fault, ThatNoHookHeedsIsWarnedOf) {
  for (const char* hooks : {"", "check", "defaults"}) {
    const bool known = std::string(hooks) != "defaults";
    const Made made = create_alone({{"WEIR_FAULT", "kill_at=3"}, {"WEIR_HOOKS", hooks}}, 0, 1);
    EXPECT_EQ(made.result, known ? WEIR_OK : WEIR_ERROR_INVALID_ARGUMENT) << made.text;
    EXPECT_NE(made.text.find("WEIR_FAULT=kill_at=3 has no effect"), std::string::npos) << made.text;
  }
  const Made heeded = create_alone({{"WEIR_FAULT", "seed=3"}, {"WEIR_HOOKS", "check,fault"}}, 0, 1);
  EXPECT_EQ(heeded.result, WEIR_OK) << heeded.text;
  EXPECT_EQ(heeded.text.find("has no effect"), std::string::npos) << heeded.text;
}

}  // namespace
}  // namespace weir::test
