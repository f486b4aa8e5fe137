// SPDX-License-Identifier: Apache-2.0
// What NCCL's variables become: pure functions.
#include "nccl/base/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "core/comm/start/bootstrap_place.h"
#include "net/interfaces.h"
#include "trace/temporary_folder.h"

namespace weir::nccl {
namespace {

using Lines = std::vector<std::string>;
const Lines kAll = {"shm", "ucx", "ofi", "tcp"};

struct Made {
  Lines lines;
  Lines ignored;
  std::string error;
};

const std::vector<InfinibandPort> kPorts = {
    {"mlx5_0", 1}, {"mlx5_1", 1}, {"mlx5_1", 2}, {"mlx5_10", 1}, {"rxe0", 1}};

Made made_of(const Lines& environment, const Lines& transports = kAll,
             const std::vector<InfinibandPort>& ports = kPorts) {
  Made it;
  it.lines = translate_environment(environment, transports, ports, &it.ignored, &it.error);
  return it;
}

TEST(NcclEnvironment, DebugLevelsAndFilesBecomeTheLogs) {
  EXPECT_EQ(made_of({"NCCL_DEBUG=INFO"}).lines, (Lines{"WEIR_LOG=info"}));
  EXPECT_EQ(made_of({"NCCL_DEBUG=version"}).lines, (Lines{"WEIR_LOG=warn"}));
  EXPECT_EQ(made_of({"NCCL_DEBUG=TRACE"}).lines, (Lines{"WEIR_LOG=trace"}));
  EXPECT_EQ(made_of({"NCCL_DEBUG_FILE=/x/%h.%p"}).lines, (Lines{"WEIR_LOG_FILE=/x/%h.%p"}));
  EXPECT_EQ(made_of({"NCCL_DEBUG=LOUD"}).lines, Lines());
  EXPECT_EQ(made_of({"NCCL_DEBUG=LOUD"}).error, "");
}

TEST(NcclEnvironment, NetworksAndWhatIsDisabledChooseTheTransports) {
  EXPECT_EQ(made_of({"NCCL_NET=Socket"}).lines, (Lines{"WEIR_TRANSPORT=shm,tcp"}));
  EXPECT_EQ(made_of({"NCCL_NET=IB"}).lines, (Lines{"WEIR_TRANSPORT=shm,ucx,ofi"}));
  EXPECT_EQ(made_of({"NCCL_NET=ofi"}).lines, (Lines{"WEIR_TRANSPORT=shm,ofi"}));
  EXPECT_EQ(made_of({"NCCL_IB_DISABLE=1"}).lines, (Lines{"WEIR_TRANSPORT=shm,tcp"}));
  EXPECT_EQ(made_of({"NCCL_IB_DISABLE=0"}).lines, Lines());
  EXPECT_EQ(made_of({"NCCL_SHM_DISABLE=1"}).lines, (Lines{"WEIR_TRANSPORT=ucx,ofi,tcp"}));
  EXPECT_EQ(made_of({"NCCL_SHM_DISABLE=1"}, {"shm", "tcp"}).lines, (Lines{"WEIR_TRANSPORT=tcp"}));
  EXPECT_EQ(made_of({"NCCL_SHM_DISABLE=1", "NCCL_NET=Socket"}).lines,
            (Lines{"WEIR_TRANSPORT=tcp"}));
  EXPECT_NE(made_of({"NCCL_NET=Pigeon"}).error.find("NCCL_NET='Pigeon'"), std::string::npos);
  EXPECT_NE(made_of({"NCCL_NET=IB"}, {"shm", "tcp"}).error.find("NCCL_NET"), std::string::npos);
}

TEST(NcclEnvironment, InfinibandDevicesAreChosenAsNcclDoes) {
  struct Row {
    const char* filter;
    const char* ucx;
  };
  for (const Row& row : {
           Row{"mlx5_0,rxe", "mlx5_0:1,rxe0:1"},  // names are prefixes
           Row{"mlx5_1", "mlx5_1:1,mlx5_1:2,mlx5_10:1"},
           Row{"mlx5_1:2", "mlx5_1:2"},
           Row{"=mlx5_1", "mlx5_1:1,mlx5_1:2"},
           Row{"=mlx5_1:1,mlx5_10", "mlx5_1:1,mlx5_10:1"},
           Row{"^mlx5_1", "mlx5_0:1,rxe0:1"},
           Row{"^mlx5_1:1,rxe0", "mlx5_0:1,mlx5_1:2"},
           Row{"^=mlx5_1", "mlx5_0:1,mlx5_10:1,rxe0:1"},
           Row{"^=mlx5_1:2", "mlx5_0:1,mlx5_1:1,mlx5_10:1,rxe0:1"},
           Row{"mlx5_1:x,,mlx5_0", "mlx5_0:1"},  // what is no name matches nothing
           // since 2.30 with a rail and a plane
           Row{"=mlx5_1:2:0:1", "mlx5_1:2"},
           Row{"=mlx5_0::0:0,mlx5_1:1:0", "mlx5_0:1,mlx5_1:1"},
           Row{"=mlx5_1:,mlx5_0", "mlx5_0:1"},
       }) {
    const Lines lines = made_of({std::string("NCCL_IB_HCA=") + row.filter}).lines;
    ASSERT_FALSE(lines.empty()) << row.filter;
    EXPECT_EQ(lines[0], std::string("UCX_NET_DEVICES=") + row.ucx) << row.filter;
  }
}

TEST(NcclEnvironment, OneDeviceIsLibfabricsTooAndWhereNoneIsLeftNeitherUsesAny) {
  EXPECT_EQ(made_of({"NCCL_IB_HCA==mlx5_1"}).lines,
            (Lines{"UCX_NET_DEVICES=mlx5_1:1,mlx5_1:2", "FI_VERBS_DEVICE_NAME=mlx5_1"}));
  EXPECT_EQ(made_of({"NCCL_IB_HCA=mlx4"}).lines, (Lines{"UCX_TLS=^ib", "FI_PROVIDER=^verbs"}));
  EXPECT_EQ(made_of({"NCCL_IB_HCA=^mlx5,rxe"}).lines, (Lines{"UCX_TLS=^ib", "FI_PROVIDER=^verbs"}));
  EXPECT_EQ(made_of({"NCCL_IB_HCA=mlx5,rxe"}).lines, Lines()) << "all are allowed";
  EXPECT_EQ(made_of({"NCCL_IB_HCA=mlx5_0"}, kAll, {}).lines, Lines()) << "there is none";
  EXPECT_EQ(made_of({"NCCL_IB_HCA=rxe", "UCX_NET_DEVICES=mlx5_0:1"}).lines,
            (Lines{"FI_VERBS_DEVICE_NAME=rxe0"}));
  EXPECT_EQ(made_of({"NCCL_IB_GID_INDEX=3"}).lines, (Lines{"UCX_IB_GID_INDEX=3"}));
}

TEST(NcclEnvironment, PortsAreThoseThatTheKernelShows) {
  const weir::test::TemporaryFolder folder;
  for (const char* port :
       {"mlx5_10/ports/1", "mlx5_2/ports/2", "mlx5_2/ports/1", "mlx5_3/ports/x"}) {
    std::filesystem::create_directories(folder.path() + "/" + port);
  }
  EXPECT_EQ(infiniband_ports(folder.path()),
            (std::vector<InfinibandPort>{{"mlx5_10", 1}, {"mlx5_2", 1}, {"mlx5_2", 2}}));
  EXPECT_TRUE(infiniband_ports(folder.path() + "/none").empty());
}

TEST(NcclEnvironment, SizesFilesAndPluginsHaveTheirCounterparts) {
  EXPECT_EQ(made_of({"NCCL_BUFFSIZE=1048576"}).lines, (Lines{"WEIR_STAGING_BYTES=1048576"}));
  EXPECT_EQ(made_of({"NCCL_BUFFSIZE=1"}).lines, (Lines{"WEIR_STAGING_BYTES=65536"}));
  EXPECT_EQ(made_of({"NCCL_BUFFSIZE=0x100000"}).lines, (Lines{"WEIR_STAGING_BYTES=1048576"}));
  EXPECT_EQ(made_of({"NCCL_BUFFSIZE=200000kB"}).lines, (Lines{"WEIR_STAGING_BYTES=200000"}));
  for (const char* ignored :
       {"NCCL_BUFFSIZE=abc", "NCCL_BUFFSIZE=-1", "NCCL_BUFFSIZE=99999999999999999999"}) {
    EXPECT_EQ(made_of({ignored}).lines, Lines()) << ignored;
    EXPECT_EQ(made_of({ignored}).error, "") << ignored;
  }
  EXPECT_EQ(made_of({"NCCL_TOPO_FILE=/t.xml"}).lines, (Lines{"WEIR_TOPOLOGY_FILE=/t.xml"}));
  EXPECT_EQ(made_of({"NCCL_NET_PLUGIN=aws"}).lines, (Lines{"WEIR_NCCL_NET_PLUGIN=aws"}));
  EXPECT_EQ(made_of({"NCCL_NET_PLUGIN=none"}).lines, Lines());
}

TEST(NcclEnvironment, WhatIsSetInWeirsOwnWordsHolds) {
  EXPECT_EQ(made_of({"NCCL_DEBUG=INFO", "WEIR_LOG=error"}).lines, Lines());
  EXPECT_EQ(made_of({"NCCL_NET=Socket", "WEIR_TRANSPORT=ofi"}).lines, Lines());
}

TEST(NcclEnvironment, ValuesThatNcclDoesNotDocumentAreNamed) {
  for (const char* line :
       {"NCCL_COMM_BLOCKING=2", "NCCL_RMA_EAGER_INIT=7", "NCCL_P2P_DISABLE=maybe",
        "NCCL_SHM_DISABLE=maybe", "NCCL_IB_DISABLE=maybe", "NCCL_IGNORE_CPU_AFFINITY=x",
        "NCCL_CONF_FILE=/no/such/file", "NCCL_DEBUG=LOUD", "NCCL_SOCKET_FAMILY=inet",
        "NCCL_SOCKET_FAMILY=af_inet", "NCCL_BUFFSIZE=abc", "NCCL_BUFFSIZE=4M", "NCCL_BUFFSIZE=-5",
        "NCCL_IB_HCA=mlx4", "NCCL_IB_HCA=mlx5_1:7"}) {
    const Lines told = unusual_values({line}, kPorts);
    ASSERT_EQ(told.size(), 1u) << line;
    const std::string name(line, std::strchr(line, '='));
    const std::string value = line + name.size() + 1;
    EXPECT_EQ(told[0].find(name + "='" + value + "': expected "), 0u) << told[0];
    EXPECT_NE(told[0].find("; "), std::string::npos) << "what is done: " << told[0];
  }
  EXPECT_EQ(unusual_values({"NCCL_IB_HCA=mlx5"}, {}).size(), 1u);
  EXPECT_EQ(unusual_values({"NCCL_COMM_BLOCKING=0", "NCCL_RMA_EAGER_INIT=1",
                            "NCCL_P2P_DISABLE=", "NCCL_SHM_DISABLE=0", "NCCL_CONF_FILE=/dev/null",
                            "NCCL_IB_HCA=^mlx4", "NCCL_IB_HCA=rxe", "NCCL_DEBUG=Info",
                            "NCCL_SOCKET_FAMILY=AF_INET6", "NCCL_BUFFSIZE=0x40000"},
                           kPorts),
            Lines());
}

TEST(NcclEnvironment, WhatMeansNothingIsNamed) {
  const Made it = made_of({"NCCL_PROTO=LL", "NCCL_ALGO=Ring", "NCCL_HOSTID=a", "PATH=/bin",
                           "NCCL_MIN_NCHANNELS=4", "NCCL_DEBUG_SUBSYS=ALL"});
  EXPECT_EQ(it.ignored,
            (Lines{"NCCL_ALGO", "NCCL_DEBUG_SUBSYS", "NCCL_MIN_NCHANNELS", "NCCL_PROTO"}));
  EXPECT_EQ(it.error, "");
}

TEST(NcclEnvironment, AConfigurationFileHasAVariableALine) {
  EXPECT_EQ(parse_configuration("# first\n NCCL_DEBUG = WARN # loud\n\nNCCL_NET=Socket\r\nPATH=/x\n"
                                "=3\nNCCL_ALGO"),
            (Lines{"NCCL_DEBUG=WARN", "NCCL_NET=Socket"}));
}

TEST(NcclEnvironment, ASocketFamilyLeavesTheOtherOut) {
  for (const auto& [name, family] : {std::pair{"AF_INET", 4}, std::pair{"AF_INET6", 6}}) {
    setenv("NCCL_SOCKET_FAMILY", name, 1);
    net::InterfaceFilter filter;
    std::string reason;
    ASSERT_TRUE(net::filter_from(nullptr, nullptr, &filter, &reason)) << reason;
    std::vector<net::Interface> found;
    ASSERT_TRUE(net::list_interfaces(filter, &found, &reason)) << reason;
    for (const net::Interface& one : found) EXPECT_EQ(one.address.family, family) << one.name;
    EXPECT_TRUE(family == 6 || !found.empty());
  }
  setenv("NCCL_SOCKET_FAMILY", "AF_X25", 1);
  net::InterfaceFilter filter;
  std::string reason;
  EXPECT_FALSE(net::filter_from(nullptr, nullptr, &filter, &reason));
  EXPECT_NE(reason.find("NCCL_SOCKET_FAMILY is 'AF_X25'"), std::string::npos) << reason;
  unsetenv("NCCL_SOCKET_FAMILY");
}

TEST(NcclEnvironment, TheInterfacesToMeetOnMayDifferFromThoseOfTheData) {
  const comm::Place usual = comm::place_of_this_host();
  if (usual.empty()) GTEST_SKIP() << "this machine has no interface but loopback";
  setenv("NCCL_SOCKET_IFNAME", "=nosuch0", 1);
  EXPECT_TRUE(comm::place_of_this_host().empty());
  setenv("NCCL_OOB_NET_IFNAME", "^=nosuch0", 1);
  EXPECT_EQ(comm::place_of_this_host().addresses.size(), usual.addresses.size());
  // With NCCL_NET=IB it names devices, and ranks meet by IP all the same.
  unsetenv("NCCL_SOCKET_IFNAME");
  setenv("NCCL_OOB_NET_IFNAME", "=mlx5_1", 1);
  EXPECT_EQ(comm::place_of_this_host().addresses.size(), usual.addresses.size());
  unsetenv("NCCL_OOB_NET_IFNAME");
}

}  // namespace
}  // namespace weir::nccl
