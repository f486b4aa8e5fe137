// SPDX-License-Identifier: Apache-2.0
// weir-topo as a user runs it: output, errors and exit status.
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <pugixml.hpp>
#include <string>

namespace {

struct Outcome {
  int status = -1;
  std::string output;  // standard output and error
};

Outcome weir_topo(const std::string& arguments) {
  Outcome run;
  const std::string command = std::string(WEIR_TOPO) + " " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return run;
  char block[4096];
  for (size_t count = 0; (count = fread(block, 1, sizeof block, pipe)) > 0;) {
    run.output.append(block, count);
  }
  const int result = pclose(pipe);
  run.status = WIFEXITED(result) ? WEXITSTATUS(result) : -1;
  return run;
}

std::string file(const std::string& name) {
  return " --file " + std::string(WEIR_TEST_FIXTURES) + "/topologies/" + name + " ";
}

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() / (name + std::to_string(getpid()))).string();
}

#define EXPECT_SAYS(run, text) EXPECT_NE((run).output.find(text), std::string::npos) << (run).output

TEST(WeirTopo, ShowsThisMachine) {
  const Outcome run = weir_topo("");
  EXPECT_EQ(run.status, 0);
  EXPECT_TRUE(run.output.starts_with("Machine")) << run.output;
  EXPECT_SAYS(run, "This process may use ");
}

// Without --file the machine is that of a communicator.
TEST(WeirTopo, HeedsTheVariablesOfTheTopologyFile) {
  const std::string path = std::string(WEIR_TEST_FIXTURES) + "/topologies/dgx2.hwloc.xml";
  const Outcome of_file = weir_topo("--file " + path + " --hash");
  setenv("WEIR_TOPOLOGY_FILE", path.c_str(), 1);
  const Outcome of_variable = weir_topo("--hash");
  EXPECT_EQ(of_variable.status, 0);
  EXPECT_EQ(of_variable.output, of_file.output);
  const std::string other = file("azure-ndv4-topo.nccl.xml") + "--hash";
  EXPECT_NE(weir_topo(other).output, of_file.output) << "--file comes first";
  setenv("WEIR_TOPOLOGY_MERGE", "1", 1);
  const Outcome merged = weir_topo("--hash");
  setenv("WEIR_TOPOLOGY_FILE", "/nonexistent/topo.xml", 1);
  const Outcome missing = weir_topo("");
  unsetenv("WEIR_TOPOLOGY_FILE");
  unsetenv("WEIR_TOPOLOGY_MERGE");
  EXPECT_EQ(merged.status, 2);
  EXPECT_SAYS(merged, "WEIR_TOPOLOGY_FILE: ");
  EXPECT_SAYS(merged, "cannot be merged");
  EXPECT_EQ(missing.status, 2);
  EXPECT_SAYS(missing, "WEIR_TOPOLOGY_FILE: ");
  EXPECT_NE(weir_topo("--hash").output, of_file.output);
}

TEST(WeirTopo, ShowsTheTreeOfAFile) {
  const Outcome run = weir_topo(file("dgx2.hwloc.xml"));
  EXPECT_EQ(run.status, 0);
  EXPECT_SAYS(run, "NVIDIA DGX-2H  2 packages, 2 NUMA nodes, 4 cores, 16 GPUs, 12 NVSwitches\n");
  EXPECT_EQ(run.output.find("This process"), std::string::npos);
}

TEST(WeirTopo, ShowsTheMatrix) {
  const Outcome run = weir_topo(file("azure-ndv4-topo.nccl.xml") + "--matrix");
  EXPECT_EQ(run.status, 0);
  EXPECT_SAYS(run, "GPU0   X    PIX   SYS");
  EXPECT_SAYS(run, "CPU Affinity  NUMA Affinity\n");
  EXPECT_SAYS(run, "PIX  = PCIe, through at most one switch\n");
}

TEST(WeirTopo, ShowsOnePath) {
  const Outcome run = weir_topo(file("rccl-8p-rome-n4.nccl.xml") + "--path gpu0 mlx5_0");
  EXPECT_EQ(run.status, 0);
  EXPECT_SAYS(run, "GPU0 to NIC0: SYS, ~31.5 GB/s");
  EXPECT_SAYS(run, "→ NUMA4");
}

TEST(WeirTopo, WritesJson) {
  const Outcome run = weir_topo(file("dgx2.hwloc.xml") + "--json");
  EXPECT_EQ(run.status, 0);
  const nlohmann::json json = nlohmann::json::parse(run.output, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["paths"].size(), 120u);
}

TEST(WeirTopo, WritesNcclXmlThatItReads) {
  const std::string path = temporary("weir_topo_nccl");
  EXPECT_EQ(weir_topo(file("dgx2.hwloc.xml") + "--nccl-xml > " + path).status, 0);
  const Outcome before = weir_topo(file("dgx2.hwloc.xml") + "--matrix --bandwidth");
  const Outcome after = weir_topo("--file " + path + " --matrix --bandwidth");
  std::filesystem::remove(path);
  EXPECT_EQ(after.status, 0);
  EXPECT_EQ(before.output, after.output);
}

TEST(WeirTopo, WritesAPicture) {
  const std::string path = temporary("weir_topo_svg");
  const Outcome run = weir_topo(file("dgx2.hwloc.xml") + "--svg " + path);
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(run.output, "");
  pugi::xml_document document;
  EXPECT_TRUE(document.load_file(path.c_str()));
  std::filesystem::remove(path);
  EXPECT_TRUE(weir_topo(file("dgx2.hwloc.xml") + "--svg -").output.starts_with("<svg"));
}

TEST(WeirTopo, JoinsSeveralFiles) {
  const Outcome run = weir_topo(file("azure-ncv4-topo.nccl.xml") +
                                file("rccl-8p-rome-n4.nccl.xml") + "--path M0.GPU0 M1.GPU0");
  EXPECT_EQ(run.status, 0);
  EXPECT_SAYS(run, "M0.GPU0 to M1.GPU0: NET, ~12.5 GB/s");
}

TEST(WeirTopo, MergesAFileWithThisMachine) {
  const std::string path = temporary("weir_topo_merge");
  EXPECT_EQ(weir_topo("--nccl-xml > " + path).status, 0);
  const Outcome merged = weir_topo("--merge --file " + path + " --hash");
  EXPECT_EQ(merged.status, 0);
  EXPECT_EQ(merged.output, weir_topo("--hash").output) << "its own file adds nothing";
  std::filesystem::remove(path);
  const Outcome other = weir_topo("--merge " + file("dgx2.hwloc.xml"));
  EXPECT_EQ(other.status, 2);
  EXPECT_SAYS(other, "cannot be merged with what is found in this machine: the file is of another");
  EXPECT_EQ(weir_topo("--merge").status, 2);
  EXPECT_EQ(weir_topo("--merge " + file("dgx2.hwloc.xml") + file("dgx2.hwloc.xml")).status, 2);
}

TEST(WeirTopo, NamesFileLineAndReasonOfAFault) {
  const std::string path = temporary("weir_topo_bad");
  std::ofstream(path) << "<system version=\"1\">\n<cpu numaid=\"zero\"/>\n</system>\n";
  const Outcome run = weir_topo("--file " + path);
  std::filesystem::remove(path);
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.output,
            "weir-topo: " + path + ":2: numaid=\"zero\" of <cpu> is not a whole number\n");
}

TEST(WeirTopo, WrongUseEndsWithStatusTwo) {
  EXPECT_EQ(weir_topo("--file /nonexistent/topo.xml").status, 2);
  EXPECT_SAYS(weir_topo("--file /nonexistent/topo.xml"), "/nonexistent/topo.xml: No such file");
  EXPECT_EQ(weir_topo("--frobnicate").status, 2);
  EXPECT_EQ(weir_topo("--path GPU0").status, 2);
  EXPECT_EQ(weir_topo("--sysfs /etc/passwd").status, 2);
  EXPECT_SAYS(weir_topo("--sysfs /etc/passwd"), "/etc/passwd is no folder");
  const Outcome run = weir_topo(file("azure-ndv4-topo.nccl.xml") + "--path GPU0 GPU77");
  EXPECT_EQ(run.status, 2);
  EXPECT_SAYS(run, "no device \"GPU77\"");
}

TEST(WeirTopo, OutputThatCannotBeWrittenEndsWithStatusOne) {
  const Outcome run = weir_topo(file("azure-ndv4-topo.nccl.xml") + "--svg /nonexistent/x.svg");
  EXPECT_EQ(run.status, 1);
  EXPECT_SAYS(run, "/nonexistent/x.svg: No such file or directory");
  // Text that fills the buffer of the stream, and text that does not.
  for (const char* output : {"--json", "--hash"}) {
    const Outcome full =
        weir_topo(file("azure-ndv4-topo.nccl.xml") + output + " 2>&1 >/dev/full #");
    EXPECT_EQ(full.status, 1) << output;
    EXPECT_SAYS(full, "weir-topo: cannot write standard output: No space left on device");
  }
}

TEST(WeirTopo, HelpHasExamples) {
  const Outcome run = weir_topo("--help");
  EXPECT_EQ(run.status, 0);
  EXPECT_SAYS(run, "Examples:");
  EXPECT_SAYS(run, "NCCL_TOPO_FILE");
}

}  // namespace
