// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/process_topology.h"

#include <fmt/format.h>

#include <atomic>
#include <optional>
#include <utility>

#include "core/base/fork_barred.h"
#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/base/process_generation.h"
#include "core/topo/discover.h"
#include "core/topo/nccl_xml.h"

namespace weir::comm {

namespace {

// During discovery hwloc holds locks, which a child forked meanwhile could never take.
Result<topo::Topology> read_unless_cut_off(const std::string& file, topo::Merge merge) {
  static constinit std::atomic<uint64_t> under_way_in{0};  // the generation of a process
  const uint64_t begun_in = under_way_in.load();
  if (begun_in != 0 && begun_in != process_generation()) {
    return Status(Code::kUnsupported,
                  "this process was forked while a thread of its parent was reading the topology; "
                  "create a communicator in the parent before it forks");
  }
  under_way_in = process_generation();
  std::string alone;
  auto topology = topo::read_machine(file, merge, {}, &alone);
  under_way_in = 0;
  if (!alone.empty()) {
    log_warn(fmt::format("WEIR_TOPOLOGY_FILE: {}; WEIR_TOPOLOGY_MERGE=0 says that it is meant so",
                         alone));
  }
  return topology;
}

Result<ToldTopology> tell(const topo::Topology& topology) {
  auto text = topo::to_nccl_xml(topology);
  if (!text.ok()) return text.status();
  ToldTopology told{.hash = 0, .text = text.take()};
  if (told.text.size() > kToldBytesMax) {
    return Status(Code::kUnsupported,
                  fmt::format("the topology takes {} bytes as text, more than {}", told.text.size(),
                              kToldBytesMax));
  }
  auto read = topo::parse_nccl_xml(told.text, "own topology");
  if (!read.ok()) return read.status();
  told.hash = read.value().hash();
  return told;
}

std::string why_ignored(const Settings& settings, const std::string& reason) {
  // A file that has an error cannot be taken alone either.
  const bool must_merge = topo::merge_of_setting(settings.topology_merge) == topo::Merge::kAlways &&
                          topo::read_file(settings.topology_file).ok();
  return fmt::format(
      "WEIR_TOPOLOGY_FILE is ignored, and the topology of this machine counts as unknown: {}; {}",
      reason,
      must_merge ? "WEIR_TOPOLOGY_MERGE=1 asks for a file that can be merged, 0 takes it alone"
                 : "name a topology file of hwloc's or NCCL's, or unset it");
}

struct Known {
  std::optional<Result<topo::Topology>> topology;
  std::optional<uint64_t> hash;
  std::optional<Result<ToldTopology>> told;
};
constinit InheritedState<Known> state;

struct KnownPlace {
  topo::CpuSet cpus;
  topo::CpuPlace place;
};
constinit InheritedState<KnownPlace> latest_place;

const Result<topo::Topology>& read(const Settings& settings, Known* known) {
  if (known->topology) return *known->topology;
  known->topology =
      read_unless_cut_off(settings.topology_file, topo::merge_of_setting(settings.topology_merge));
  if (!known->topology->ok()) {
    const std::string& reason = known->topology->status().text();
    log_warn(fmt::format("{}; measured costs are not cached",
                         settings.topology_file.empty()
                             ? "the topology of this machine is unknown: " + reason
                             : why_ignored(settings, reason)));
  }
  return *known->topology;
}

}  // namespace

uint64_t topology_hash(const Settings& settings) {
  const ForkBarred barred;  // until it is known, so that a child knows it
  const auto access = state.use();
  if (!access->hash) {
    const Result<topo::Topology>& topology = read(settings, &*access);
    access->hash = topology.ok() ? topology.value().hash() : 0;
  }
  return *access->hash;
}

void with_topology(const Settings& settings,
                   const std::function<void(const topo::Topology& topology)>& use) {
  const ForkBarred barred;
  const auto access = state.use();
  const Result<topo::Topology>& topology = read(settings, &*access);
  if (topology.ok()) use(topology.value());
}

topo::CpuPlace place_on_machine(const topo::CpuSet& cpus) {
  const auto access = latest_place.use();
  if (access->cpus != cpus) *access = {cpus, topo::place_of(cpus, "/sys")};
  return access->place;
}

topo::NodeId device_of(const std::string& told, const topo::Topology& topology) {
  const size_t space = told.find(' ');
  if (space == std::string::npos) return topo::kNoNode;
  for (const std::string& name : {told.substr(0, space), "GPU" + told.substr(space + 1)}) {
    const auto found = topology.find(name);
    if (found.ok() && topology.node(found.value()).kind == topo::NodeKind::kGpu) {
      return found.value();
    }
  }
  return topo::kNoNode;
}

Result<ToldTopology> told_topology(const Settings& settings) {
  const ForkBarred barred;
  const auto access = state.use();
  if (!access->told) {
    const Result<topo::Topology>& topology = read(settings, &*access);
    access->told = topology.ok() ? tell(topology.value()) : topology.status();
  }
  return *access->told;
}

Result<topo::Topology> topology_as_told(const ToldTopology& told) {
  if (told.text.size() > kToldBytesMax) {
    return Status(Code::kRefused, fmt::format("a topology of {} bytes; allowed are {}",
                                              told.text.size(), kToldBytesMax));
  }
  auto topology = topo::parse_nccl_xml(told.text, "topology");
  if (!topology.ok()) return Status(Code::kRefused, topology.status().text());
  if (topology.value().hash() != told.hash) {
    return Status(Code::kRefused,
                  fmt::format("a topology with the hash {:016x}, which was told as {:016x}",
                              topology.value().hash(), told.hash));
  }
  return topology;
}

}  // namespace weir::comm
