// SPDX-License-Identifier: Apache-2.0
// Whatever a topology file holds, hwloc's XML or NCCL's, is answered with an error whose text is
// not empty, or with a topology that everything else can be asked of: it prints, has paths, a hash
// and a JSON form, and what is written as NCCL's XML is read again. The first byte says what the
// rest is.
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/topo/cpuset.h"
#include "core/topo/discover.h"
#include "core/topo/flat_switch.h"
#include "core/topo/hwloc_xml.h"
#include "core/topo/merge.h"
#include "core/topo/nccl_xml.h"
#include "core/topo/path.h"
#include "core/topo/pci.h"
#include "core/topo/print.h"

using namespace weir;
using namespace weir::topo;

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void use(const Topology& topology) {
  require(!topology.empty());
  require(topology.all(NodeKind::kMachine).size() == topology.count(NodeKind::kMachine));
  (void)topology.hash();
  require(!print_tree(topology, {.every_port = true}).empty());
  if (topology.node_count() < 200) {
    (void)print_matrix(topology, MatrixContent::kClass);
    (void)print_matrix(topology, MatrixContent::kBandwidth);
  }
  const auto json = nlohmann::json::parse(to_json(topology), nullptr, false);
  require(json.is_object());
  const auto gpus = topology.all(NodeKind::kGpu);
  for (size_t i = 1; i < gpus.size() && i < 4; ++i) {
    require(!print_path(topology, gpus[0], gpus[i]).empty());
    require(topology.find(topology.label(gpus[i])).ok());
  }
  require(join_flat_switches(topology).ok());
  const Result<Topology> both = merge(topology, topology);
  require(!both.ok() || both.value().count(NodeKind::kGpu) == gpus.size());
  const Result<std::string> xml = to_nccl_xml(topology);
  if (!xml.ok()) {
    require(!xml.status().text().empty());
    return;
  }
  require(parse_nccl_xml(xml.value(), "again.xml").ok());
}

void answer(const Result<Topology>& parsed) {
  if (parsed.ok()) {
    use(parsed.value());
  } else {
    require(!parsed.status().text().empty());
  }
}

void read_words(std::string_view text) {
  for (const auto& parsed : {CpuSet::parse_mask(text), CpuSet::parse_list(text)}) {
    if (!parsed.ok()) continue;
    const CpuSet& set = parsed.value();
    require(CpuSet::parse_list(set.list()).value() == set);
    require(CpuSet::parse_mask(set.mask()).value() == set);
    require(set.cpus().size() == set.count());
  }
  const auto address = PciAddress::parse(text);
  if (address) require(PciAddress::parse(address->text()) == address);
  require(parse_pcie_speed_gts(text) >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  switch (data[0] % 4) {
    case 0:
      answer(parse_hwloc_xml(text, "input.xml"));
      break;
    case 1:
      answer(parse_nccl_xml(text, "input.xml"));
      break;
    case 2: {
      const auto format = detect_format(text, "input.xml");
      require(format.ok() || !format.status().text().empty());
      break;
    }
    default:
      read_words(text);
  }
  return 0;
}
