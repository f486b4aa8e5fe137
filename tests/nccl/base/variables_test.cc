// SPDX-License-Identifier: Apache-2.0
// NCCL's variables as a program sets them: each rank is a process with an environment of its own.
#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "nccl/processes.h"
#include "nccl/sockets.h"

namespace weir::nccl::test {
namespace {

using Child = std::function<void(int rank)>;

// One process a rank, which makes its communicator itself.
void in_processes(int n, const Child& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < n; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      body(rank);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(pid);
  }
  for (const pid_t pid : children) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

class Folder {
 public:
  Folder() {
    std::string path = (std::filesystem::temp_directory_path() / "weir_nccl_XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A communicator of this process alone.
ncclResult_t make_alone(ncclComm_t* comm) {
  ncclUniqueId id{};
  const ncclResult_t made = ncclGetUniqueId(&id);
  return made == ncclSuccess ? ncclCommInitRank(comm, 1, id, 0) : made;
}

TEST(NcclVariables, RanksMeetAtTheAddressOfCommIdAndHandNothingOn) {
  in_processes(3, [](int rank) {
    setenv("NCCL_COMM_ID", ("127.0.0.1:" + std::to_string(20000 + getppid() % 20000)).c_str(), 1);
    ncclComm_t comm = nullptr;
    ncclUniqueId id{};
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ASSERT_NCCL(ncclCommInitRank(&comm, 3, id, rank));
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
    EXPECT_EQ(sum, 6);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  in_processes(1, [](int) {
    ncclUniqueId id{};
    for (const char* wrong :
         {"127.0.0.1", ":80", "127.0.0.1:0", "127.0.0.1:70000", "127.0.0.1:x"}) {
      setenv("NCCL_COMM_ID", wrong, 1);
      EXPECT_EQ(ncclGetUniqueId(&id), ncclInvalidArgument) << wrong;
      expect_error_with({"NCCL_COMM_ID", wrong, "HOST:PORT"});
    }
  });
}

ncclResult_t set_key(const char* key) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  config.mode = NCCL_ENCRYPTION_MODE_PSK;
  config.psk = key;
  return ncclSetEncryption(&config);
}

constexpr const char* kKey = "the key of all ranks, with more than 32 characters";

TEST(NcclEncryption, RanksWithOneKeyMeetAndAllTrafficBetweenHostsIsEncrypted) {
  in_processes(2, [](int rank) {
    setenv("NCCL_COMM_ID", ("127.0.0.1:" + std::to_string(20000 + getppid() % 20000)).c_str(), 1);
    setenv("WEIR_HOST_ID", rank == 0 ? "a" : "b", 1);
    setenv("WEIR_TRANSPORT", "tcp", 1);
    ASSERT_NCCL(set_key(kKey));
    EXPECT_STREQ(getenv("WEIR_TLS"), "all");
    ncclComm_t comm = nullptr;
    ncclUniqueId id{};
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
    EXPECT_EQ(sum, 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclEncryption, ARankWithAnotherKeyOrNoneIsKeptOut) {
  for (const char* other : {"another key, which has more than 32 characters, too", ""}) {
    in_processes(2, [&](int rank) {
      setenv("NCCL_COMM_ID", ("127.0.0.1:" + std::to_string(20000 + getppid() % 20000)).c_str(), 1);
      setenv("WEIR_TLS", "all", 1);
      setenv("WEIR_TIMEOUT_MS", "1500", 1);
      const char* key = rank == 0 ? kKey : other;
      EXPECT_NCCL(*key != '\0' ? set_key(key) : ncclSuccess);
      ncclComm_t comm = nullptr;
      ncclUniqueId id{};
      ASSERT_NCCL(ncclGetUniqueId(&id));
      EXPECT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclRemoteError);
    });
  }
}

TEST(NcclEncryption, TheKeyIsChecked) {
  in_processes(1, [](int) {
    EXPECT_EQ(set_key(nullptr), ncclInvalidArgument);
    expect_error_with({"ncclSetEncryption", "config.psk is NULL"});
    EXPECT_EQ(set_key("0123456789012345678901234567890"), ncclInvalidArgument);
    expect_error_with({"31 characters", "32"});
    ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
    config.mode = 2;
    EXPECT_EQ(ncclSetEncryption(&config), ncclInvalidArgument);
    expect_error_with({"config.mode is 2"});
    config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
    config.magic = 1;
    EXPECT_EQ(pncclSetEncryption(&config), ncclInvalidArgument);
    expect_error_with({"NCCL_ENCRYPTION_CONFIG_INITIALIZER"});
    EXPECT_EQ(getenv("WEIR_TLS"), nullptr) << "none of these has set a key";
    setenv("WEIR_TLS", "control", 1);
    EXPECT_EQ(set_key(kKey), ncclInvalidUsage);
    expect_error_with({"WEIR_TLS=control"});
    unsetenv("WEIR_TLS");
    EXPECT_NCCL(ncclSetEncryption(nullptr));
    config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
    EXPECT_NCCL(ncclSetEncryption(&config));
    EXPECT_EQ(getenv("WEIR_TLS"), nullptr);
  });
}

// Which communicator is encrypted is seen in who meets: a rank with WEIR_TLS=all and the key of the
// first rank meets it also where that one has made communicators before.
TEST(NcclEncryption, TheKeyIsForTheCommunicatorsThatAreMadeAfterwards) {
  in_processes(2, [](int rank) {
    setenv("NCCL_COMM_ID", ("127.0.0.1:" + std::to_string(20000 + getppid() % 20000)).c_str(), 1);
    setenv("WEIR_HOST_ID", rank == 0 ? "a" : "b", 1);
    setenv("WEIR_TRANSPORT", "tcp", 1);
    setenv("WEIR_TIMEOUT_MS", "20000", 1);
    ncclUniqueId id{};
    ncclComm_t comm = nullptr;
    if (rank == 0) {
      int version = 0;
      EXPECT_NCCL(ncclGetVersion(&version));
      ncclComm_t alone = nullptr;
      ASSERT_NCCL(ncclCommInitAll(&alone, 1, nullptr));
      EXPECT_NCCL(set_key(kKey));
      EXPECT_NCCL(ncclCommDestroy(alone));
    } else {
      setenv("WEIR_TLS", "all", 1);
      EXPECT_NCCL(set_key(kKey));
    }
    ASSERT_NCCL(ncclGetUniqueId(&id));
    ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
    EXPECT_EQ(sum, 3);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclVariables, AConfigurationFileHoldsWhereTheEnvironmentSaysNothing) {
  const Folder folder;
  std::ofstream(folder / "nccl.conf") << "# ours\nNCCL_COMM_BLOCKING=0\nNCCL_BUFFSIZE=wrong\n";
  in_processes(1, [&](int) {
    setenv("NCCL_CONF_FILE", (folder / "nccl.conf").c_str(), 1);
    setenv("NCCL_BUFFSIZE", "262144", 1);
    ncclComm_t comm = nullptr;
    const ncclResult_t made = make_alone(&comm);
    EXPECT_EQ(made, ncclInProgress) << ncclGetLastError(nullptr);
    EXPECT_EQ(settle(comm), ncclSuccess);
    EXPECT_STREQ(getenv("WEIR_STAGING_BYTES"), "262144");
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclVariables, TheLogGoesWhereDebugFileSaysAndNamesWhatIsIgnored) {
  const Folder folder;
  in_processes(1, [&](int) {
    setenv("NCCL_DEBUG", "VERSION", 1);
    setenv("NCCL_DEBUG_FILE", (folder / "log.%p").c_str(), 1);
    setenv("NCCL_ALGO", "Ring", 1);
    setenv("NCCL_MIN_NCHANNELS", "8", 1);
    ncclComm_t first = nullptr;
    ncclComm_t second = nullptr;
    ASSERT_NCCL(make_alone(&first));
    ASSERT_NCCL(make_alone(&second));
    const std::string text = text_of(folder / ("log." + std::to_string(getpid())));
    EXPECT_NE(text.find("NCCL version 2.32.3"), std::string::npos) << text;
    const size_t at = text.find("NCCL_ALGO, NCCL_MIN_NCHANNELS");
    EXPECT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text.find("NCCL_ALGO", at + 1), std::string::npos) << "named once: " << text;
    EXPECT_NCCL(ncclCommDestroy(first));
    EXPECT_NCCL(ncclCommDestroy(second));
  });
}

TEST(NcclVariables, AValueThatIsTakenAsAnotherIsNamedOnce) {
  const Folder folder;
  in_processes(1, [&](int) {
    setenv("NCCL_DEBUG_FILE", (folder / "log").c_str(), 1);
    setenv("NCCL_COMM_BLOCKING", "2", 1);
    for (int time = 0; time < 2; ++time) {
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(make_alone(&comm));
      EXPECT_NCCL(ncclCommDestroy(comm));
    }
    const std::string text = text_of(folder / "log");
    const size_t at = text.find("NCCL_COMM_BLOCKING='2': expected 0 or 1");
    EXPECT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text.find("NCCL_COMM_BLOCKING", at + 1), std::string::npos) << text;
  });
}

TEST(NcclVariables, ValuesForWhichNcclTakesItsDefaultEndNoCall) {
  const Folder folder;
  in_processes(2, [&](int rank) {
    setenv("NCCL_DEBUG_FILE", (folder / "log.%p").c_str(), 1);
    setenv("NCCL_DEBUG", "garbage", 1);
    setenv("NCCL_BUFFSIZE", rank == 0 ? "abc" : "4M", 1);
    setenv("NCCL_SOCKET_FAMILY", "inet", 1);
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(make_alone(&comm));
    EXPECT_NCCL(ncclCommDestroy(comm));
    const std::string text = text_of(folder / ("log." + std::to_string(getpid())));
    for (const char* name : {"NCCL_DEBUG='garbage': expected", "NCCL_BUFFSIZE='",
                             "NCCL_SOCKET_FAMILY='inet': expected"}) {
      EXPECT_NE(text.find(name), std::string::npos) << text;
    }
  });
}

TEST(NcclVariables, EveryCallThatFailsIsToldInTheLogWhenDebugIsWarn) {
  const Folder folder;
  for (const char* level : {"WARN", "info", "VERSION"}) {
    in_processes(1, [&](int) {
      setenv("NCCL_DEBUG", level, 1);
      setenv("NCCL_DEBUG_FILE", (folder / level).c_str(), 1);
      int count = 0;
      EXPECT_EQ(ncclCommCount(nullptr, &count), ncclInvalidArgument);
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(make_alone(&comm));
      EXPECT_EQ(ncclBroadcast(&count, &count, 1, ncclInt, 7, comm, nullptr), ncclInvalidArgument);
      EXPECT_NCCL(ncclCommDestroy(comm));
      const std::string text = text_of(folder / level);
      for (const char* told :
           {"ncclCommCount: comm is NULL", "ncclBroadcast, rank 0 of 1: root 7"}) {
        EXPECT_EQ(text.find(told) != std::string::npos, level != std::string("VERSION"))
            << level << ": " << text;
      }
    });
  }
}

// The unique id comes from a rank, so that nothing of the library has run before the variables are
// set.
TEST(NcclVariables, WithoutSharedMemoryRanksUseTheNetwork) {
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  in_processes(2, [&](int rank) {
    setenv("NCCL_SHM_DISABLE", "1", 1);
    setenv("NCCL_NET", "Socket", 1);
    ncclUniqueId id{};
    if (rank == 0) {
      id = make_id();
      EXPECT_EQ(write(told[1], &id, sizeof id), static_cast<ssize_t>(sizeof id));
    } else {
      EXPECT_EQ(read(told[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
    }
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
    EXPECT_EQ(sum, 3);
    EXPECT_GT(tcp_sockets(), 0u);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
  close(told[0]);
  close(told[1]);
}

TEST(NcclVariables, CommBlockingGoesBeforeEveryConfiguration) {
  struct Row {
    const char* set;
    int given;
    bool blocks;
  };
  for (const Row& row :
       {Row{"0", 1, false}, Row{"1", 0, true}, Row{"2", 0, false}, Row{"", 1, true}}) {
    in_processes(1, [&](int) {
      setenv("NCCL_COMM_BLOCKING", row.set, 1);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = row.given;
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, make_id(), 0, &config),
                row.blocks ? ncclSuccess : ncclInProgress)
          << "'" << row.set << "' and " << row.given;
      EXPECT_EQ(settle(comm), ncclSuccess);
      ncclComm_t child = nullptr;
      EXPECT_EQ(ncclCommSplit(comm, 0, 0, &child, &config),
                row.blocks ? ncclSuccess : ncclInProgress);
      EXPECT_EQ(settle(comm), ncclSuccess);
      EXPECT_NCCL(ncclCommDestroy(child));
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

TEST(NcclVariables, SignalsAreOpenedWhenTheEnvironmentSaysSo) {
  for (const char* set : {"0", "1"}) {
    in_processes(1, [&](int) {
      setenv("NCCL_RMA_EAGER_INIT", set, 1);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.rmaEagerInit = *set == '0' ? 1 : 0;  // the environment goes before it
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRankConfig(&comm, 1, make_id(), 0, &config));
      EXPECT_EQ(ncclSignal(0, 0, 0, 0, comm, nullptr),
                *set == '0' ? ncclInvalidUsage : ncclSuccess);
      EXPECT_NCCL(ncclCommDestroy(comm));
    });
  }
}

TEST(NcclVariables, WhatAConfigurationAsksOfTheNetworkIsNamedOnceAsIgnored) {
  const Folder folder;
  in_processes(1, [&](int) {
    setenv("WEIR_LOG_FILE", (folder / "log").c_str(), 1);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.netName = "Socket";
    config.trafficClass = 3;
    for (int time = 0; time < 2; ++time) {
      ncclComm_t comm = nullptr;
      ASSERT_NCCL(ncclCommInitRankConfig(&comm, 1, make_id(), 0, &config));
      EXPECT_NCCL(ncclCommDestroy(comm));
    }
    const std::string text = text_of(folder / "log");
    const size_t at = text.find("config.netName 'Socket', config.trafficClass 3");
    EXPECT_NE(at, std::string::npos) << text;
    EXPECT_EQ(text.find("config.netName", at + 1), std::string::npos) << "named once: " << text;
  });
}

TEST(NcclVariables, HostIdTellsHostsApart) {
  const ncclUniqueId id = make_id();
  in_processes(2, [&](int rank) {
    setenv("NCCL_HOSTID", rank == 0 ? "one" : "two", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
    int sum = 0;
    EXPECT_NCCL(sum_of_ranks(comm, rank, &sum));
    EXPECT_EQ(sum, 3);
    EXPECT_GT(tcp_sockets(), 0u);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclVariables, AnUnknownNetworkIsInvalidUsage) {
  in_processes(1, [](int) {
    setenv("NCCL_NET", "Pigeon", 1);
    ncclComm_t comm = nullptr;
    EXPECT_EQ(make_alone(&comm), ncclInvalidUsage);
    expect_error_with({"ncclGetUniqueId", "NCCL_NET='Pigeon'", "Socket"});
  });
}

TEST(NcclVariables, TheTopologyIsWrittenAndTheAffinityOfThreadsIsLeftAlone) {
  const Folder folder;
  in_processes(1, [&](int) {
    setenv("NCCL_TOPO_DUMP_FILE", (folder / "topology.xml").c_str(), 1);
    setenv("NCCL_IGNORE_CPU_AFFINITY", "1", 1);
    cpu_set_t before, after;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(make_alone(&comm));
    ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
    EXPECT_NE(text_of(folder / "topology.xml").find("<system"), std::string::npos);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(NcclVariables, TheTopologyThatIsWrittenIsThatOfTheFile) {
  const Folder folder;
  // No machine has this device.
  std::ofstream(folder / "given.xml") << R"(<system version="1"><cpu numaid="0" affinity="1">
<pci busid="fffff:ff:1f.7" class="0x030200"/></cpu></system>)";
  in_processes(1, [&](int) {
    setenv("NCCL_TOPO_FILE", (folder / "given.xml").c_str(), 1);
    setenv("NCCL_TOPO_DUMP_FILE", (folder / "topology.xml").c_str(), 1);
    ncclComm_t comm = nullptr;
    ASSERT_NCCL(make_alone(&comm));
    EXPECT_NE(text_of(folder / "topology.xml").find("busid=\"fffff:ff:1f.7\""), std::string::npos);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

}  // namespace
}  // namespace weir::nccl::test
