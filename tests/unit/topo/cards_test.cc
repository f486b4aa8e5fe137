// SPDX-License-Identifier: Apache-2.0
#include "core/topo/cards.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace weir::topo {
namespace {

namespace fs = std::filesystem;

constexpr auto kInfiniBand = static_cast<uint8_t>(CardKind::kInfiniBand);
constexpr auto kRoce = static_cast<uint8_t>(CardKind::kRoce);
constexpr auto kEfa = static_cast<uint8_t>(CardKind::kEfa);

// A made-up /sys, with the files as the kernel writes them.
class CardsSeen : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "weir-cards-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }
  fs::path folder(const std::string& device) { return root_ / "class" / "infiniband" / device; }
  void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  void add_port(const std::string& device, const std::string& port, const std::string& layer,
                const std::string& state) {
    write(folder(device) / "ports" / port / "link_layer", layer);
    write(folder(device) / "ports" / port / "state", state);
  }
  void add(const std::string& device, const std::string& node_type, const std::string& layer,
           const std::string& state, const std::string& driver) {
    write(folder(device) / "node_type", node_type);
    fs::create_directories(folder(device) / "device");
    fs::create_directory_symlink("../../../bus/pci/drivers/" + driver,
                                 folder(device) / "device" / "driver");
    add_port(device, "1", layer, state);
  }

  fs::path root_;
};

TEST_F(CardsSeen, WithoutTheClassThereIsNone) {
  EXPECT_EQ(look_for_cards(root_).kinds, 0);
  EXPECT_EQ(look_for_cards(root_).text, "");
}

TEST_F(CardsSeen, EachKindIsToldByNodeTypeAndLinkLayer) {
  add("efa_0", "7: unspecified", "Unspecified", "4: ACTIVE", "efa");
  EXPECT_EQ(look_for_cards(root_).kinds, kEfa);
  EXPECT_EQ(look_for_cards(root_).text, "efa_0 (EFA)");
  add("mlx5_0", "1: CA", "InfiniBand", "4: ACTIVE", "mlx5_core");
  add("mlx5_1", "1: CA", "Ethernet", "4: ACTIVE", "mlx5_core");
  EXPECT_EQ(look_for_cards(root_).kinds, kInfiniBand | kRoce | kEfa);
  EXPECT_EQ(look_for_cards(root_).text, "efa_0 (EFA), mlx5_0 (InfiniBand), mlx5_1 (RoCE)");
}

TEST_F(CardsSeen, APortThatIsNotActiveDoesNotCountAndOneThatIsDoes) {
  add("mlx5_0", "1: CA", "InfiniBand", "1: DOWN", "mlx5_core");
  EXPECT_EQ(look_for_cards(root_).kinds, 0);
  EXPECT_EQ(look_for_cards(root_).text, "mlx5_0 (port 1 is DOWN)");
  add_port("mlx5_0", "2", "InfiniBand", "2: INIT");
  EXPECT_EQ(look_for_cards(root_).text, "mlx5_0 (port 1 is DOWN, port 2 is INIT)");
  add_port("mlx5_0", "2", "Ethernet", "4: ACTIVE");
  EXPECT_EQ(look_for_cards(root_).kinds, kRoce);
}

TEST_F(CardsSeen, OtherDevicesOfTheClassDoNotCount) {
  add("iwarp", "4: RNIC", "Ethernet", "4: ACTIVE", "irdma");
  add("other", "7: unspecified", "Unspecified", "4: ACTIVE", "another");
  add("strange", "", "InfiniBand", "4: ACTIVE", "");
  write(folder("rxe0") / "node_type", "1: CA");
  add_port("rxe0", "1", "Ethernet", "4: ACTIVE");
  const Cards cards = look_for_cards(root_);
  EXPECT_EQ(cards.kinds, 0);
  EXPECT_EQ(cards.text,
            "iwarp (neither InfiniBand nor RoCE nor EFA), other (neither InfiniBand nor RoCE nor "
            "EFA), rxe0 (a device without hardware), strange (neither InfiniBand nor RoCE nor "
            "EFA)");
}

TEST_F(CardsSeen, FilesOfNonsenseAreNoCardAndManyDevicesAreCounted) {
  for (int i = 0; i < 7; ++i) add("c" + std::to_string(i), "1: CA", "InfiniBand", "yes", "x");
  const Cards cards = look_for_cards(root_);
  EXPECT_EQ(cards.kinds, 0);
  EXPECT_TRUE(cards.text.ends_with("c3 (port 1 is in no known state) and 3 more")) << cards.text;
}

}  // namespace
}  // namespace weir::topo
