// SPDX-License-Identifier: Apache-2.0
// This machine by WEIR_TOPOLOGY_FILE and WEIR_TOPOLOGY_MERGE, here one that a made-up /sys shows: a
// Broadcom PEX switch on two levels with a GPU below each.
#include "unit/topo/topo_support.h"

namespace weir::topo {
namespace {

namespace fs = std::filesystem;

class ReadMachine : public testing::Test {
 protected:
  void SetUp() override {
    sys_.write("devices/system/cpu/online", "0\n");
    const std::string first = "pci0000:10/0000:10:01.0/0000:11:00.0";
    const std::string second = first + "/0000:12:00.0/0000:13:00.0";
    device("pci0000:10/0000:10:01.0", "0x060400", "0x8086", "0x352a", "0x8086", "0x0000");
    pex(first);
    pex(first + "/0000:12:00.0");
    pex(first + "/0000:12:01.0");
    pex(second);
    pex(second + "/0000:14:00.0");
    gpu(second + "/0000:14:00.0/0000:15:00.0");
    gpu(first + "/0000:12:01.0/0000:16:00.0");
    options_ = {.hwloc_library = "", .sysfs_root = sys_.path(), .nvml_library = ""};
  }

  void device(const std::string& place, const std::string& code, const std::string& vendor,
              const std::string& number, const std::string& sub_vendor,
              const std::string& sub_number) {
    const std::string folder = "devices/" + place + "/";
    sys_.write(folder + "class", code + "\n");
    sys_.write(folder + "vendor", vendor + "\n");
    sys_.write(folder + "device", number + "\n");
    sys_.write(folder + "subsystem_vendor", sub_vendor + "\n");
    sys_.write(folder + "subsystem_device", sub_number + "\n");
    fs::create_directories(sys_.path() + "/bus/pci/devices");
    fs::create_symlink(sys_.path() + "/devices/" + place,
                       sys_.path() + "/bus/pci/devices/" + fs::path(place).filename().string());
  }
  void pex(const std::string& place) {
    device(place, "0x060400", "0x1000", "0xc010", "0x1000", "0xa096");
  }
  void gpu(const std::string& place) {
    device(place, "0x030200", "0x10de", "0x20b2", "0x10de", "0x1463");
  }
  std::string file(const std::string& text) { return files_.write("topo.xml", text); }
  Topology read(const std::string& path, Merge merge) {
    alone_.clear();
    Result<Topology> machine = read_machine(path, merge, options_, &alone_);
    if (machine.ok()) return machine.take();
    ADD_FAILURE() << machine.status().text();
    return Topology();
  }

  TemporaryFolder sys_;
  TemporaryFolder files_;
  DiscoverOptions options_;
  std::string alone_;
};

constexpr const char* kOneGpu = R"(<system version="1"><cpu numaid="-1">
<pci busid="0000:15:00.0" class="0x030200"><gpu dev="0"/></pci></cpu></system>)";
constexpr const char* kAnother = R"(<system version="1"><cpu numaid="-1">
<pci busid="0000:99:00.0" class="0x030200"><gpu dev="0"/></pci></cpu></system>)";

TEST_F(ReadMachine, WithoutAFileIsWhatIsFound) {
  EXPECT_EQ(label(read("", Merge::kAuto), "GPU0", "GPU1"), "PIX");
}

TEST_F(ReadMachine, AFileOfNcclsIsMergedUnlessItIsToStayAlone) {
  const std::string path = file(kOneGpu);
  EXPECT_EQ(read(path, Merge::kAuto).count(NodeKind::kGpu), 2u);
  EXPECT_EQ(read(path, Merge::kAlways).count(NodeKind::kGpu), 2u);
  EXPECT_EQ(read(path, Merge::kNever).count(NodeKind::kGpu), 1u);
  EXPECT_EQ(alone_, "");
}

TEST_F(ReadMachine, AFileOfHwlocsIsAloneUnlessItIsToBeMerged) {
  const std::string path = file(R"(<topology version="2.0"><object type="Machine" cpuset="0x1">
<object type="PCIDev" pci_busid="0000:15:00.0" pci_type="0302 [10de:20b2] [10de:1463] a1"/>
</object></topology>)");
  EXPECT_EQ(read(path, Merge::kAuto).count(NodeKind::kGpu), 1u);
  EXPECT_EQ(alone_, "") << "it is meant so";
  EXPECT_EQ(read(path, Merge::kAlways).count(NodeKind::kGpu), 2u);
  EXPECT_EQ(read(path, Merge::kNever).count(NodeKind::kGpu), 1u);
}

TEST_F(ReadMachine, AFileOfAnotherMachineIsTakenAloneAndSaidToBe) {
  const std::string path = file(kAnother);
  const Topology machine = read(path, Merge::kAuto);
  EXPECT_EQ(machine.count(NodeKind::kGpu), 1u);
  EXPECT_EQ(alone_, path +
                        " is taken alone: it cannot be merged with what is found in this "
                        "machine: the file is of another machine: none of its 1 GPUs "
                        "(0000:99:00.0, …) is in this one");
  ASSERT_EQ(machine.notes().size(), 1u);
  EXPECT_EQ(machine.notes()[0].where, path);
  const Result<Topology> refused = read_machine(path, Merge::kAlways, options_);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnsupported);
  EXPECT_TRUE(refused.status().text().starts_with(path + ": it cannot be merged"))
      << refused.status().text();
  EXPECT_EQ(read(path, Merge::kNever).count(NodeKind::kGpu), 1u);
  EXPECT_EQ(alone_, "");
}

TEST_F(ReadMachine, AFaultInTheFileIsAnErrorEitherWay) {
  for (const Merge merge : {Merge::kAuto, Merge::kAlways, Merge::kNever}) {
    EXPECT_FALSE(read_machine("/nonexistent/topo.xml", merge, options_).ok());
    const std::string path = file("<system version=\"1\">\n<cpu/></system>");
    const Result<Topology> machine = read_machine(path, merge, options_);
    ASSERT_FALSE(machine.ok());
    EXPECT_EQ(machine.status().text(), path + ":2: <cpu> has no numaid");
  }
}

TEST_F(ReadMachine, TheMachinesNumbersTellWhichSwitchesOfTheFileAreOne) {
  const std::string path = file(R"(<system version="1"><cpu numaid="-1">
<pci busid="0000:11:00.0" class="0x060400"><pci busid="0000:13:00.0" class="0x060400">
<pci busid="0000:15:00.0" class="0x030200"/></pci><pci busid="0000:16:00.0" class="0x030200"/>
</pci></cpu></system>)");
  EXPECT_EQ(label(read(path, Merge::kNever), "GPU0", "GPU1"), "PXB");
  EXPECT_EQ(label(read(path, Merge::kAuto), "GPU0", "GPU1"), "PIX");
}

TEST(MergeSetting, HasThreeValues) {
  EXPECT_EQ(merge_of_setting("auto"), Merge::kAuto);
  EXPECT_EQ(merge_of_setting("0"), Merge::kNever);
  EXPECT_EQ(merge_of_setting("1"), Merge::kAlways);
}

}  // namespace
}  // namespace weir::topo
