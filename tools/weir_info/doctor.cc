// SPDX-License-Identifier: Apache-2.0
#include "weir_info/doctor.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "weir_info/elf_file.h"

namespace weir::info {
namespace {

namespace fs = std::filesystem;

// What every libnccl.so.2 of this project exports (src/nccl/real_library.cc).
constexpr const char* kMarker = "weir_nccl_marker";
constexpr size_t kNamesShown = 5;

std::string version_text(int version) {
  return version < 10000
             ? fmt::format("{}.{}.{}", version / 1000, version % 1000 / 100, version % 100)
             : fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

NcclFound found_of(Loading loading) {
  NcclFound found{std::move(loading)};
  if (found.loading.path.empty()) return found;
  const auto file = read_elf_file(found.loading.path);
  found.weirs = file.ok() && file.value().exported.contains(kMarker);
  found.version = nccl_version_of(found.loading.path);
  return found;
}

void add_object(const std::string& object, std::vector<Check>* checks) {
  auto loading = nccl_of(object);
  if (!loading.ok()) {
    checks->push_back({Verdict::kBad, object, loading.status().text(),
                       "give a program of this kind of processor"});
    return;
  }
  for (Check& check : judge_nccl(found_of(std::move(loading.value()))))
    checks->push_back(std::move(check));
}

Section section_of_program(const std::string& program) {
  Section section{"libnccl.so.2 of " + program, {}};
  const auto path = find_program(program);
  if (!path.ok()) {
    section.checks.push_back(
        {Verdict::kBad, program, path.status().text(), "give the path of a program"});
    return section;
  }
  add_object(path.value(), &section.checks);
  if (!is_python(program)) return section;
  const PythonPackages packages = packages_of_python(program);
  if (!packages.torch.empty()) add_object(packages.torch, &section.checks);
  if (!packages.nccl.empty()) {
    section.checks.push_back(
        {Verdict::kNote, "its packages", "have NCCL at " + packages.nccl,
         "frameworks that open it by this path do not see LD_LIBRARY_PATH: preload Weir's, "
         "LD_PRELOAD=…/lib/weir/libnccl.so.2"});
  }
  return section;
}

Section section_of_cuda() {
  Section section{"CUDA", {}};
  std::error_code error;
  const bool driver = fs::exists("/proc/driver/nvidia/version", error);
  const bool device = fs::exists("/dev/nvidiactl", error);
  const std::string library = path_by_name("/proc/self/exe", "libcuda.so.1");
  section.checks.push_back({driver || library.empty() ? Verdict::kGood : Verdict::kNote, "driver",
                            driver ? "loaded" : "not loaded: host memory only",
                            driver || library.empty()
                                ? ""
                                : "there is a libcuda.so.1 and no driver: a stand-in, or a "
                                  "container without --gpus all"});
  section.checks.push_back({library.empty() && driver ? Verdict::kBad : Verdict::kGood,
                            "libcuda.so.1", library.empty() ? "not found" : library,
                            library.empty() && driver
                                ? "install the driver's user part (libcuda1), or start the "
                                  "container with --gpus all"
                                : ""});
  if (driver && !device) {
    section.checks.push_back({Verdict::kBad, "devices", "/dev/nvidiactl is not there",
                              "start the container with --gpus all, or run nvidia-modprobe"});
  }
  return section;
}

const char* mark_of(Verdict verdict) {
  return verdict == Verdict::kGood ? "ok" : verdict == Verdict::kNote ? "note" : "BAD";
}

}  // namespace

std::vector<Check> judge_nccl(const NcclFound& found) {
  const Loading& loading = found.loading;
  std::vector<Check> checks;
  if (loading.path.empty()) {
    checks.push_back(
        {loading.linked ? Verdict::kBad : Verdict::kNote, loading.object,
         loading.linked ? fmt::format("needs {}: {}", kNcclName, loading.reason)
                        : fmt::format("does not need {}, and finds none by that name", kNcclName),
         fmt::format("LD_PRELOAD=…/lib/weir/{}, or LD_LIBRARY_PATH=…/lib/weir", kNcclName)});
    return checks;
  }
  checks.push_back({Verdict::kGood, loading.object,
                    fmt::format("{} {}, by {}",
                                loading.linked ? "loads" : "is not linked to it; by name it finds",
                                loading.path, loading.reason),
                    ""});
  if (found.version == 0) {
    checks.push_back({Verdict::kBad, "version",
                      loading.path + " cannot be opened, or has no ncclGetVersion",
                      "ldd tells what it lacks; install it again"});
  } else {
    checks.push_back(
        {Verdict::kGood, "version",
         fmt::format("{}, {}", version_text(found.version), found.weirs ? "Weir's" : "not Weir's"),
         found.weirs ? "" : fmt::format("to use Weir: LD_PRELOAD=…/lib/weir/{}", kNcclName)});
  }
  for (const MissingSymbols& missing : loading.missing) {
    std::string names;
    for (size_t i = 0; i < missing.names.size() && i < kNamesShown; ++i) {
      names += (i == 0 ? "" : ", ") + missing.names[i];
    }
    if (missing.names.size() > kNamesShown)
      names += fmt::format(" and {} more", missing.names.size() - kNamesShown);
    checks.push_back({Verdict::kBad, "symbols",
                      fmt::format("{} wants {}, which it has not", missing.object, names),
                      "it was built for a newer NCCL: take a newer library, or Weir's, which has "
                      "all through 2.31"});
  }
  if (loading.missing.empty() && loading.linked) {
    checks.push_back({Verdict::kGood, "symbols", "all that is asked of it is there", ""});
  }
  return checks;
}

namespace {

// What makes a transport viable that says what it lacks.
const char* remedy_of_transport(const std::string& name) {
  static constexpr std::pair<const char*, const char*> kRemedies[] = {
      {"shm", "allow memfd_create in the container's seccomp profile; ranks then share memory"},
      {"tcp", "bring an interface up, or name the one that is: WEIR_IFNAME"},
      {"ucx", "ucx_info -d lists what UCX finds; UCX_TLS and UCX_NET_DEVICES may exclude it"},
      {"ofi", "fi_info -l lists what libfabric finds; FI_PROVIDER may exclude it"},
      {"nccl",
       "for memory of devices only: install NVIDIA's driver and NCCL, or name its file: "
       "WEIR_NCCL_LIBRARY"},
      {"ncclnet", "for a network plugin of NCCL's only: name its file, WEIR_NCCL_NET_PLUGIN"},
  };
  for (const auto& [transport, remedy] : kRemedies) {
    if (name == transport) return remedy;
  }
  return "install what it needs, or leave it out: WEIR_TRANSPORT";
}

}  // namespace

std::vector<Check> judge_transports(const std::vector<TransportLine>& transports) {
  std::vector<Check> checks;
  bool between_hosts = false;
  for (const TransportLine& line : transports) {
    between_hosts = between_hosts || (line.viable && line.name != "shm" && line.name != "self");
    checks.push_back({line.viable ? Verdict::kGood : Verdict::kNote, line.name,
                      line.viable ? (line.reason.empty() ? "viable" : "viable: " + line.reason)
                                  : "not viable: " + line.reason,
                      line.viable ? "" : remedy_of_transport(line.name)});
  }
  for (const char* name : {"ucx", "ofi"}) {
    bool there = false;
    for (const TransportLine& line : transports) there = there || line.name == name;
    if (there) continue;
    checks.push_back({Verdict::kNote, name, "this build does not have it",
                      fmt::format("install {} and configure again",
                                  name[0] == 'u' ? "libucx-dev" : "libfabric-dev")});
  }
  if (!between_hosts) {
    checks.push_back({Verdict::kBad, "between hosts", "no transport reaches other machines",
                      "give an interface that is up: WEIR_IFNAME, and the reasons above"});
  }
  return checks;
}

std::vector<Check> judge_limits(const std::vector<Finding>& machine) {
  std::vector<Check> checks;
  for (const Finding& finding : machine) {
    checks.push_back({finding.remedy.empty() ? Verdict::kGood : Verdict::kNote, finding.name,
                      finding.value, finding.remedy});
  }
  return checks;
}

Check judge_topology(const PciTree& tree, bool topology_file_given) {
  if (!hides_topology(tree)) {
    return {Verdict::kGood, "PCI topology",
            tree.devices.empty() ? "no GPU and no fabric card"
                                 : fmt::format("{} devices", tree.devices.size()),
            ""};
  }
  if (topology_file_given) {
    return {Verdict::kGood, "PCI topology",
            "the virtual machine hides it, and a topology file is given", ""};
  }
  return {
      Verdict::kNote, "PCI topology",
      fmt::format(
          "the virtual machine shows {} devices side by side, without the switches between them",
          tree.devices.size()),
      "give the file that your cloud provider has for this kind of machine: WEIR_TOPOLOGY_FILE or "
      "NCCL_TOPO_FILE"};
}

std::vector<Section> examine(const std::string& program) {
  std::vector<Section> sections;
  if (!program.empty()) sections.push_back(section_of_program(program));
  const Report report = make_report();
  sections.push_back(section_of_cuda());
  sections.push_back({"Transports", judge_transports(report.transports)});
  Section machine{"Machine", judge_limits(report.machine)};
  machine.checks.push_back(judge_topology(
      gather_pci_tree("/"), is_set("WEIR_TOPOLOGY_FILE") || is_set("NCCL_TOPO_FILE")));
  sections.push_back(std::move(machine));
  Section variables{"Variables", {}};
  variables.checks.push_back(
      {report.settings_error.empty() ? Verdict::kGood : Verdict::kBad, "WEIR_*",
       report.settings_error.empty() ? "all parse" : report.settings_error,
       report.settings_error.empty() ? "" : "weir-info lists what each takes"});
  sections.push_back(std::move(variables));
  return sections;
}

bool any_bad(const std::vector<Section>& sections) {
  for (const Section& section : sections) {
    for (const Check& check : section.checks) {
      if (check.verdict == Verdict::kBad) return true;
    }
  }
  return false;
}

std::string text_of(const std::vector<Section>& sections) {
  std::string text;
  size_t bad = 0, notes = 0;
  for (const Section& section : sections) {
    text += section.title + "\n";
    for (const Check& check : section.checks) {
      bad += check.verdict == Verdict::kBad ? 1 : 0;
      notes += check.verdict == Verdict::kNote ? 1 : 0;
      text += fmt::format("  {:<5}{}: {}\n", mark_of(check.verdict), check.subject, check.finding);
      if (!check.remedy.empty()) text += fmt::format("       -> {}\n", check.remedy);
    }
    text += "\n";
  }
  return text + fmt::format("{} bad, {} to note\n", bad, notes);
}

std::string json_of(const std::vector<Section>& sections) {
  auto json = nlohmann::ordered_json::array();
  for (const Section& section : sections) {
    auto checks = nlohmann::ordered_json::array();
    for (const Check& check : section.checks) {
      checks.push_back({{"verdict", mark_of(check.verdict)},
                        {"subject", check.subject},
                        {"finding", check.finding},
                        {"remedy", check.remedy}});
    }
    json.push_back({{"section", section.title}, {"checks", std::move(checks)}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace weir::info
