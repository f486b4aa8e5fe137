// SPDX-License-Identifier: Apache-2.0
// What is known of where a rank is reaches the transport: hinted_plugin tells it when it refuses.
#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "hostcuda/cuda.h"
#include "weir/weir.h"

namespace weir {
namespace {

// The last error of a communicator of one rank.
std::string told() {
  weir_unique_id_t id;
  EXPECT_EQ(weir_get_unique_id(&id), WEIR_OK);
  weir_comm_t comm = nullptr;
  EXPECT_EQ(weir_comm_create(&comm, 1, &id, 0, nullptr), WEIR_ERROR_UNSUPPORTED);
  return weir_last_error(nullptr);
}

void expect_told(const std::string& text) {
  const std::string all = told();
  EXPECT_NE(all.find(text), std::string::npos) << all << "\nlacks: " << text;
}

// The node of the processor's folder; "-1" where there are none.
std::string node_of_processor(int cpu) {
  const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
  for (int node = 0; node < 1024; ++node) {
    if (std::filesystem::exists(folder + "/node" + std::to_string(node))) {
      return std::to_string(node);
    }
  }
  return "-1";
}

TEST(Hints, TheNodeOfTheThreadsProcessorIsTold) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    expect_told("node " + node_of_processor(cpu) + ",");
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(Hints, TheDeviceOfTheThreadsContextIsTold) {
  ASSERT_EQ(cudaSetDevice(2), cudaSuccess);
  ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
  expect_told("device 2,");
}

TEST(Hints, TheOnlyInterfaceThatIsAllowedIsTheNearest) {
  std::string some;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net")) {
    std::string state;
    std::ifstream(entry.path() / "operstate") >> state;
    if (state == "up") some = entry.path().filename();
  }
  if (some.empty()) GTEST_SKIP() << "no network interface is up here";
  ASSERT_EQ(setenv("WEIR_IFNAME", ("=" + some).c_str(), 1), 0);
  const std::string all = told();
  ASSERT_EQ(unsetenv("WEIR_IFNAME"), 0);
  // One without an address is none.
  const bool has_none = all.find("WEIR_IFNAME") != std::string::npos;
  EXPECT_TRUE(has_none || all.find("interface " + some + ",") != std::string::npos) << all;
}

}  // namespace
}  // namespace weir
