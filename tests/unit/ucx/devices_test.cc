// SPDX-License-Identifier: Apache-2.0
#include "plugins/ucx/devices.h"

#include <gtest/gtest.h>

namespace weir::plugins::ucx {
namespace {

// As ucp_context_print_info of UCX 1.13 writes it.
constexpr const char* kFourCards = R"(#
# UCP context
#
#     component 4  :  ib
#
#            md 0  :  component 0  self
#            md 4  :  component 4  mlx5_0
#
#      resource 0  :  md 0  dev 0  flags -- self/memory0
#      resource 1  :  md 1  dev 1  flags -- tcp/lo
#      resource 2  :  md 1  dev 2  flags -- tcp/eth0
#      resource 3  :  md 2  dev 3  flags -- sysv/memory
#      resource 4  :  md 3  dev 3  flags -- posix/memory
#      resource 5  :  md 4  dev 4  flags -- dc_mlx5/mlx5_0:1
#      resource 6  :  md 4  dev 4  flags -- rc_verbs/mlx5_0:1
#      resource 7  :  md 5  dev 5  flags -- rc_mlx5/mlx5_1:1
#      resource 8  :  md 5  dev 6  flags -- rc_mlx5/mlx5_1:2
#      resource 9  :  md 6  dev 7  flags -- ud_mlx5/mlx5_10:1
#      resource 10 :  md 7  dev 8  flags a- rdmacm/sockaddr
#      resource 11 :  md 8  dev 9  flags -- cma/memory
#
# memory: 0.00MB, file descriptors: 20
)";

TEST(UcxDevices, TheRanksCardsStayAndTcpStaysWithThem) {
  EXPECT_EQ(devices_with(kFourCards, {"mlx5_0"}), "lo,eth0,mlx5_0:1");
  EXPECT_EQ(devices_with(kFourCards, {"mlx5_1"}), "lo,eth0,mlx5_1:1,mlx5_1:2");
  EXPECT_EQ(devices_with(kFourCards, {"mlx5_10", "mlx5_0"}), "lo,eth0,mlx5_0:1,mlx5_10:1");
}

TEST(UcxDevices, NothingIsLeftOutWhereThatWouldLeaveNoCardOrChangeNothing) {
  EXPECT_EQ(devices_with(kFourCards, {"mlx5_2"}), "");
  EXPECT_EQ(devices_with(kFourCards, {}), "");
  EXPECT_EQ(devices_with(kFourCards, {"mlx5_0", "mlx5_1", "mlx5_10"}), "");
  EXPECT_EQ(devices_with("", {"mlx5_0"}), "");
  EXPECT_EQ(devices_with("#      resource 1  :  md 1  dev 1  flags -- tcp/eth0", {"mlx5_0"}), "");
}

}  // namespace
}  // namespace weir::plugins::ucx
