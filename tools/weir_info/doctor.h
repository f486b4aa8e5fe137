// SPDX-License-Identifier: Apache-2.0
// weir-info doctor: the faults of an installation and their remedies: which libnccl.so.2 a program
// would load and why, what is behind it where it is Weir's, versions and missing symbols,
// transports that are not viable, limits, hidden topology.
#pragma once

#include <string>
#include <vector>

#include "core/base/settings.h"
#include "core/topo/discover.h"
#include "weir_info/behind.h"
#include "weir_info/hidden_topology.h"
#include "weir_info/installed_driver.h"
#include "weir_info/loading.h"
#include "weir_info/python_clients.h"
#include "weir_info/report.h"

namespace weir::info {

enum class Verdict { kGood, kNote, kBad };

struct Check {
  Verdict verdict;
  std::string subject;
  std::string finding;
  std::string remedy;  // "" when there is nothing to do
};

struct Section {
  std::string title;
  std::vector<Check> checks;
};

// The library that an object gets, with facts that only opening it tells.
struct NcclFound {
  Loading loading;
  bool weirs = false;                                 // it is this project's libnccl.so.2
  int version = 0;                                    // of ncclGetVersion; 0: it does not load
  std::string installed = "…/lib/weir/libnccl.so.2";  // this project's, for the remedies
};

// Pure functions that judge gathered facts, so that they are tested without such machines.
std::vector<Check> judge_nccl(const NcclFound& found);
// What LD_LIBRARY_PATH does not reach, with the one line that does.
Check judge_shadowed(const std::vector<Shadowed>& shadowed);
// `wanted`: the symbols of NCCL that the program refers to.
std::vector<Check> judge_behind(const Behind& behind, const std::vector<std::string>& wanted);
// `direct`: the value of WEIR_DIRECT.
std::vector<Check> judge_driver(const InstalledDriver& driver, const std::string& direct = "auto");
std::vector<Check> judge_transports(const std::vector<TransportLine>& transports);
std::vector<Check> judge_limits(const std::vector<Finding>& machine);
Check judge_topology(const PciTree& tree, bool topology_file_given);

// Whether the topology file that `variable` names can be read, and merged where it is to be.
Check check_topology_file(const std::string& variable, const std::string& path, topo::Merge merge);

// Whether a communicator on one host starts with these settings: by the functions that it calls.
std::vector<Check> judge_variables(const Result<Settings>& settings);

// "a, b, c, d, e and 3 more"
std::string list_of(const std::vector<std::string>& names);

// Which library `program` loads and what is behind it; without a program (""), what is behind
// Weir's.
struct NcclExamined {
  std::vector<Section> sections;
  std::string object;  // the examined file: the program, or this one
};
NcclExamined examine_nccl(const std::string& program);

// The same, and the checks of this machine.
std::vector<Section> examine(const std::string& program);

bool any_bad(const std::vector<Section>& sections);
std::string text_of(const std::vector<Section>& sections);
std::string json_of(const std::vector<Section>& sections);

}  // namespace weir::info
