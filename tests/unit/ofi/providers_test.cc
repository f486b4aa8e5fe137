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

TEST(OfiProviders, ADomainIsOfTheCardThatItIsNamedAfter) {
  const auto is_of = [](const char* domain, const char* device, const char* card) {
    fi_info info = {};
    fi_domain_attr domain_attr = {};
    fid_nic nic = {};
    fi_device_attr device_attr = {};
    domain_attr.name = const_cast<char*>(domain);
    device_attr.name = const_cast<char*>(device);
    info.domain_attr = &domain_attr;
    if (device != nullptr) {
      nic.device_attr = &device_attr;
      info.nic = &nic;
    }
    return is_of_card(info, card);
  };
  EXPECT_TRUE(is_of("mlx5_1", nullptr, "mlx5_1"));
  EXPECT_TRUE(is_of("rdmap16s27-rdm", nullptr, "rdmap16s27"));
  EXPECT_TRUE(is_of("other", "mlx5_1", "mlx5_1"));
  EXPECT_FALSE(is_of("mlx5_10", "mlx5_10", "mlx5_1"));
  EXPECT_FALSE(is_of("mlx5_0", "mlx5_0", "mlx5_1"));
  EXPECT_FALSE(is_of(nullptr, nullptr, "mlx5_1"));
  EXPECT_FALSE(is_of("mlx5_1", nullptr, ""));
}

}  // namespace
}  // namespace weir::plugins::ofi
