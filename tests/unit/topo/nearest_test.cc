// SPDX-License-Identifier: Apache-2.0
#include "core/topo/nearest.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "core/topo/cpus.h"

namespace weir::topo {
namespace {

namespace fs = std::filesystem;

CpuSet cpus(const char* list) { return CpuSet::parse_list(list).value(); }

// A made-up /sys: two nodes with processors, a third with memory only, and cards.
class Nearest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "weir-nearest-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    write("devices/system/node/online", "0,2-3");
    write("devices/system/node/node0/cpulist", "0-3,8-11");
    write("devices/system/node/node2/cpulist", "4-7,12-15");
    write("devices/system/node/node3/cpulist", "");
    write("class/infiniband/mlx5_0/device/numa_node", "0");
    write("class/infiniband/mlx5_1/device/numa_node", "2");
    write("class/infiniband/mlx5_2/device/numa_node", "2");
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + "/" + path).parent_path());
    std::ofstream(root_ + "/" + path) << text << "\n";
  }

  std::string root_;
};

TEST_F(Nearest, TheNodeOfProcessorsIsToldWhereOneHasThemAll) {
  EXPECT_EQ(numa_node_of(cpus("0-3"), root_), 0);
  EXPECT_EQ(numa_node_of(cpus("11"), root_), 0);
  EXPECT_EQ(numa_node_of(cpus("4,12"), root_), 2);
  EXPECT_EQ(numa_node_of(cpus("3-4"), root_), -1);
  EXPECT_EQ(numa_node_of(cpus("16"), root_), -1);
  EXPECT_EQ(numa_node_of(CpuSet(), root_), -1);
  EXPECT_EQ(numa_node_of(cpus("0"), root_ + "/none"), -1);
}

TEST_F(Nearest, ACardIsToldWhereNoOtherIsAsNear) {
  const auto cards = devices_of_class("infiniband", root_);
  EXPECT_EQ(cards, (std::vector<std::string>{"mlx5_0", "mlx5_1", "mlx5_2"}));
  EXPECT_EQ(nearest_device("infiniband", cards, 0, root_), "mlx5_0");
  EXPECT_EQ(nearest_device("infiniband", cards, 2, root_), "");
  EXPECT_EQ(nearest_device("infiniband", cards, 3, root_), "");
  EXPECT_EQ(nearest_device("infiniband", cards, -1, root_), "");
  EXPECT_EQ(nearest_device("infiniband", {"mlx5_2"}, -1, root_), "mlx5_2");
  EXPECT_EQ(nearest_device("infiniband", {}, 0, root_), "");
  EXPECT_TRUE(devices_of_class("net", root_).empty());
}

TEST_F(Nearest, AFileOfNonsenseIsNoAnswer) {
  write("devices/system/node/node0/cpulist", "0-3,8-x");
  EXPECT_EQ(numa_node_of(cpus("0"), root_), -1);
  write("devices/system/node/online", "-");
  EXPECT_EQ(numa_node_of(cpus("4"), root_), -1);
}

}  // namespace
}  // namespace weir::topo
