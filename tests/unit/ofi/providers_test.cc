// SPDX-License-Identifier: Apache-2.0
// Which provider is chosen.
#include "plugins/ofi/providers.h"

#include <gtest/gtest.h>

namespace weir::plugins::ofi {
namespace {

using Names = std::vector<std::string>;

TEST(OfiProviders, HardwareComesFirstThenTcpThenMemoryThenSocketsAndOthersOnlyByName) {
  EXPECT_EQ(order_providers({"udp;ofi_rxd", "net", "shm", "sockets", "tcp;ofi_rxm", "shm", "efa",
                             "verbs;ofi_rxd", "verbs;ofi_rxm"},
                            nullptr),
            (Names{"efa", "verbs;ofi_rxm", "verbs;ofi_rxd", "tcp;ofi_rxm", "shm", "sockets"}));
  EXPECT_EQ(order_providers({"net", "tcp;ofi_rxm"}, "net"), Names{"net"});
}

TEST(OfiProviders, TheSettingNamesAndOrdersThem) {
  EXPECT_EQ(order_providers({"tcp;ofi_rxm", "shm", "sockets"}, "shm,verbs;ofi_rxm,,tcp;ofi_rxm"),
            (Names{"shm", "tcp;ofi_rxm"}));
  EXPECT_EQ(order_providers({"tcp;ofi_rxm"}, "efa"), Names{});
}

TEST(OfiProviders, AllRanksTakeTheFirstOfRankZeroThatAllHave) {
  EXPECT_EQ(common_provider({{"efa", "tcp;ofi_rxm"}, {"tcp;ofi_rxm", "efa"}}, false), "efa");
  EXPECT_EQ(common_provider({{"efa", "tcp;ofi_rxm"}, {"tcp;ofi_rxm"}}, false), "tcp;ofi_rxm");
  EXPECT_EQ(common_provider({{"efa"}, {"tcp;ofi_rxm"}}, true), "");
}

TEST(OfiProviders, SharedMemoryIsForOneHost) {
  EXPECT_EQ(common_provider({{"shm", "sockets"}, {"shm", "sockets"}}, true), "shm");
  EXPECT_EQ(common_provider({{"shm", "sockets"}, {"shm", "sockets"}}, false), "sockets");
}

}  // namespace
}  // namespace weir::plugins::ofi
