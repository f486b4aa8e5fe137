// SPDX-License-Identifier: Apache-2.0
// weir-topo: shows the parts of a machine and the paths between its devices.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "command_line/command_line.h"
#include "core/base/settings.h"
#include "core/topo/cluster.h"
#include "core/topo/cpus.h"
#include "core/topo/discover.h"
#include "core/topo/nccl_xml.h"
#include "core/topo/path.h"
#include "core/topo/print.h"
#include "core/topo/svg.h"
#include "output/output_file.h"
#include "output/run_tool.h"

namespace weir::topo {
namespace {

constexpr int kExitInput = 2;  // wrong arguments, or not a topology file
constexpr int kExitOutput = 1;

constexpr const char* kDescription =
    "Shows what this machine, or one described by a file, is made of: packages, NUMA nodes, PCIe, "
    "GPUs, "
    "NICs and the links between them, and what bandwidth lies between any two devices.";

constexpr const char* kExamples = R"(
Examples:
  weir-topo                                  this machine as a tree
  weir-topo --matrix                         what lies between each two devices
  weir-topo --bandwidth                      the same in GB/s
  weir-topo --file topo.xml --svg topo.svg   a picture of the machine in a file
  weir-topo --path GPU0 mlx5_0               one path, hop by hop
  weir-topo --nccl-xml > topo.xml            for NCCL_TOPO_FILE, where the PCIe tree is hidden
  weir-topo --file a.xml --file b.xml        two machines and the network between them
  weir-topo --merge --file topo.xml          this machine, with what a file says of it

A file is the XML of hwloc ("lstopo machine.xml") or of NCCL (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE).
Devices are named as in the tree (GPU0, NIC1, NUMA0), by PCI address, or by port (mlx5_0, eth0).
Without --file, WEIR_TOPOLOGY_FILE and WEIR_TOPOLOGY_MERGE count as for a communicator.
Bandwidth is payload per direction in 10^9 bytes a second; "~" marks an estimate.
Exit status: 0, 1 when output cannot be written, 2 when arguments or a file are wrong.)";

struct Arguments {
  std::vector<std::string> files;
  bool matrix = false;
  bool bandwidth = false;
  bool json = false;
  bool nccl_xml = false;
  bool every_port = false;
  bool hash = false;
  bool merge = false;
  std::string svg_file;
  std::vector<std::string> path;
  DiscoverOptions discover;
};

int fail(const Status& status) {
  fmt::print(stderr, "weir-topo: {}\n", status.text());
  return kExitInput;
}

// This machine as a communicator sees it, with what the environment says of it.
Result<Topology> machine_of_user(const DiscoverOptions& options) {
  const Result<Settings>& settings = process_settings();
  if (!settings.ok()) return settings.status();
  const Settings& set = settings.value();
  std::string alone;
  Result<Topology> machine =
      read_machine(set.topology_file, merge_of_setting(set.topology_merge), options, &alone);
  if (!alone.empty()) fmt::print(stderr, "weir-topo: WEIR_TOPOLOGY_FILE: {}\n", alone);
  if (machine.ok() || set.topology_file.empty()) return machine;
  return machine.status().with_context("WEIR_TOPOLOGY_FILE");
}

Result<Topology> load(const Arguments& arguments) {
  if (arguments.merge && arguments.files.size() != 1) {
    return invalid_argument("--merge takes one --file, that of this machine");
  }
  if (arguments.files.empty()) return machine_of_user(arguments.discover);
  if (arguments.merge) {
    return read_machine(arguments.files[0], Merge::kAlways, arguments.discover);
  }
  std::vector<Topology> machines;
  for (const std::string& file : arguments.files) {
    Result<Topology> topology = read_file(file);
    if (!topology.ok()) return topology.status();
    machines.push_back(topology.take());
  }
  if (machines.size() == 1) return std::move(machines[0]);
  return join(machines);
}

int write_svg(const Topology& topology, const std::string& file) {
  const std::string svg = to_svg(topology);
  if (file == "-") {
    fmt::print("{}", svg);
    return 0;
  }
  const std::string wrong = output::write_file(file, svg);
  if (wrong.empty()) return 0;
  fmt::print(stderr, "weir-topo: {}\n", wrong);
  return kExitOutput;
}

// The tree does not tell how much of this machine the process may use.
void print_allowance() {
  fmt::print("\nThis process may use {} of its CPUs ({})\n", cpu_allowed_count(),
             cpus_allowed().list());
}

int show(const Topology& topology, const Arguments& arguments) {
  bool shown = false;
  if (arguments.json) {
    fmt::print("{}", to_json(topology));
    shown = true;
  }
  if (arguments.nccl_xml) {
    const Result<std::string> xml = to_nccl_xml(topology);
    if (!xml.ok()) return fail(xml.status());
    fmt::print("{}", xml.value());
    shown = true;
  }
  if (arguments.matrix) {
    fmt::print("{}", print_matrix(topology));
    shown = true;
  }
  if (arguments.bandwidth) {
    fmt::print("{}{}", arguments.matrix ? "\n" : "",
               print_matrix(topology, MatrixContent::kBandwidth));
    shown = true;
  }
  if (!arguments.path.empty()) {
    const Result<NodeId> a = topology.find(arguments.path[0]);
    if (!a.ok()) return fail(a.status());
    const Result<NodeId> b = topology.find(arguments.path[1]);
    if (!b.ok()) return fail(b.status());
    fmt::print("{}", print_path(topology, a.value(), b.value()));
    shown = true;
  }
  if (arguments.hash) {
    fmt::print("{:016x}\n", topology.hash());
    shown = true;
  }
  if (!arguments.svg_file.empty()) {
    const int status = write_svg(topology, arguments.svg_file);
    if (status != 0) return status;
    shown = true;
  }
  if (shown) return 0;
  fmt::print("{}", print_tree(topology, TreeOptions{.every_port = arguments.every_port}));
  if (arguments.files.empty()) print_allowance();
  return 0;
}

int run(int argc, char** argv) {
  cli::CommandLine app(kDescription, "weir-topo");
  Arguments arguments;
  app.footer(kExamples);
  app.add_option(
         "-f,--file", arguments.files,
         "Read this file instead of asking the machine; several files make several machines")
      .value_name("FILE")
      .one_each_time();
  app.add_flag("--merge", arguments.merge,
               "Add what this machine has and the file lacks, as WEIR_TOPOLOGY_MERGE=1 does");
  app.add_flag("-m,--matrix", arguments.matrix,
               "Table of path classes, with CPU and NUMA affinity");
  app.add_flag("-b,--bandwidth", arguments.bandwidth, "Table of bandwidths in GB/s");
  app.add_option("-p,--path", arguments.path, "The path between two devices, hop by hop")
      .value_count(2)
      .value_name("A B");
  app.add_option("-s,--svg", arguments.svg_file, "Write a picture; - is standard output")
      .value_name("FILE");
  app.add_flag("-j,--json", arguments.json, "Everything, as JSON");
  app.add_flag("-x,--nccl-xml", arguments.nccl_xml, "As a file for NCCL_TOPO_FILE");
  app.add_flag("-a,--all", arguments.every_port, "In the tree: each PCIe port, cache and core");
  app.add_flag("--hash", arguments.hash, "The fingerprint that measured tables are kept under");
  app.add_option("--sysfs", arguments.discover.sysfs_root, "Read this copy of /sys")
      .value_name("DIR")
      .show_default();
  app.add_option("--nvml", arguments.discover.nvml_library,
                 "NVIDIA's library to load; \"\" loads none")
      .value_name("FILE")
      .show_default();
  if (const auto status = app.parse(argc, argv, kExitInput)) return *status;
  std::error_code ignored;
  if (!std::filesystem::is_directory(arguments.discover.sysfs_root, ignored)) {
    return app.wrong("--sysfs", fmt::format("{} is no folder; give a copy of /sys",
                                            arguments.discover.sysfs_root));
  }
  const Result<Topology> topology = load(arguments);
  if (!topology.ok()) return fail(topology.status());
  return show(topology.value(), arguments);
}

}  // namespace
}  // namespace weir::topo

int main(int argc, char** argv) {
  return weir::output::run_tool("weir-topo", weir::topo::run, argc, argv);
}
