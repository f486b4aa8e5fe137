// SPDX-License-Identifier: Apache-2.0
// What the tests of the topology share: recorded machines, texts and temporary folders.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/topo/discover.h"
#include "core/topo/nccl_xml.h"
#include "core/topo/path.h"
#include "core/topo/topology.h"

namespace weir::topo {

inline constexpr const char* kFixtures[] = {
    "dgx2.hwloc.xml",           "azure-ndv4-topo.nccl.xml",    "azure-ncv4-topo.nccl.xml",
    "rccl-8p-rome-n4.nccl.xml", "made-power-nvlink.hwloc.xml", "made-four-numa.hwloc3.xml",
    "made-pex.nccl.xml"};

inline std::string fixture_path(const std::string& name) {
  return std::string(WEIR_TEST_FIXTURES) + "/topologies/" + name;
}

inline std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A recorded machine; an empty topology (and a failed test) when it cannot be read.
inline Topology fixture(const std::string& name) {
  Result<Topology> topology = read_file(fixture_path(name));
  if (topology.ok()) return topology.take();
  ADD_FAILURE() << topology.status().text();
  return Topology();
}

inline Topology from_nccl(const std::string& text) {
  Result<Topology> topology = parse_nccl_xml(text, "test.xml");
  if (topology.ok()) return topology.take();
  ADD_FAILURE() << topology.status().text();
  return Topology();
}

inline NodeId find(const Topology& topology, const std::string& name) {
  const Result<NodeId> id = topology.find(name);
  if (id.ok()) return id.value();
  ADD_FAILURE() << id.status().text();
  return 0;
}

inline Path path(const Topology& topology, const std::string& a, const std::string& b,
                 const PathOptions& options = {}) {
  return find_path(topology, find(topology, a), find(topology, b), options);
}

inline std::string label(const Topology& topology, const std::string& a, const std::string& b) {
  return path(topology, a, b).label();
}

// A folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "weir_topo_XXXXXX").string();
    if (mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  // Writes a file, with the folders that it needs.
  std::string write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }

 private:
  std::string path_;
};

}  // namespace weir::topo
