// SPDX-License-Identifier: Apache-2.0
#include "weir_info/doctor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/settings.h"
#include "core/comm/start/named_algorithms.h"
#include "core/comm/stream/direct_choice.h"
#include "nccl/real/found_functions.h"
#include "weir_info/build.h"
#include "weir_info/python_clients.h"

namespace weir::info {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamesShown = 5;
constexpr const char* kPathOfVllm = "VLLM_NCCL_SO_PATH";

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// Next to this program, installed or in the build folder.
std::string installed_nccl() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const char* to_lib : {kBinToLib, "../lib"}) {
    const fs::path file = (folder / to_lib / "weir" / kNcclName).lexically_normal();
    if (fs::exists(file, error)) return file.string();
  }
  return NcclFound().installed;
}

NcclFound found_of(Loading loading) {
  NcclFound found;
  found.loading = std::move(loading);
  found.installed = installed_nccl();
  if (found.loading.path.empty()) return found;
  found.weirs = is_weirs(found.loading.path);
  found.version = nccl_version_of(found.loading.path);
  return found;
}

// What the examination of a program tells about the loading of Weir's library there.
struct Seen {
  bool weirs = false;
  std::string object;  // the program
  nccl::LoadingProcess process;
  std::string driver;  // the one it is linked with
  std::vector<std::string> wanted;
};

// Returns whether the library is Weir's.
bool add_loading(const Result<Loading>& loading, const std::string& object,
                 std::vector<Check>* checks, Seen* seen) {
  if (!loading.ok()) {
    checks->push_back({Verdict::kBad, object, loading.status().text(),
                       "give a program of this kind of processor"});
    return false;
  }
  const NcclFound found = found_of(loading.value());
  for (Check& check : judge_nccl(found)) checks->push_back(std::move(check));
  if (!found.weirs) return false;
  seen->weirs = true;
  const auto& wanted = found.loading.wanted;
  seen->wanted.insert(seen->wanted.end(), wanted.begin(), wanted.end());
  return true;
}

// The Python packages that load NCCL, with the file that each gets.
void add_python(const std::string& interpreter, std::vector<Check>* checks, Seen* seen) {
  const PythonPackages packages = packages_of_python(interpreter);
  std::vector<std::string> files = {packages.nccl};
  bool all_weirs = true;
  std::vector<Shadowed> shadowed;
  for (const PythonClient& client : packages.clients) {
    files.push_back(client.object);
    const auto loading = nccl_of(client, packages.nccl);
    all_weirs = add_loading(loading, client.object, checks, seen) && all_weirs;
    if (!loading.ok()) continue;
    for (const Shadowed& one : shadowed_by(loading.value())) shadowed.push_back(one);
  }
  for (const std::string& file : files) {
    const std::string folder = nccl::packages_folder_of(file);
    if (!folder.empty()) seen->process.packages_folders.push_back(folder);
  }
  if (!shadowed.empty()) checks->push_back(judge_shadowed(shadowed));
  const bool told = !shadowed.empty() || (!packages.clients.empty() && all_weirs);
  if (packages.nccl.empty() || told) return;
  checks->push_back(
      {Verdict::kNote, "its packages", "have NCCL at " + packages.nccl,
       fmt::format(
           "programs that link NCCL (PyTorch) load Weir's with LD_PRELOAD={}; those that open it "
           "by its path do not: give them another path",
           installed_nccl())});
}

// vLLM and SGLang open the file that the variable names, whatever is preloaded.
Check check_path_of_vllm(Seen* seen) {
  Loading named;
  named.path = std::getenv(kPathOfVllm);
  const NcclFound found = found_of(std::move(named));
  seen->weirs = seen->weirs || found.weirs;
  const bool opens = found.version != 0;
  return {opens ? Verdict::kGood : Verdict::kBad, kPathOfVllm,
          fmt::format("{}: {}", found.loading.path,
                      !opens        ? "cannot be opened, or has no ncclGetVersion"
                      : found.weirs ? "Weir's"
                                    : nccl::version_text(found.version) + ", not Weir's"),
          opens && found.weirs ? "" : "to use Weir: name " + found.installed};
}

Section section_of_program(const std::string& program, Seen* seen) {
  Section section{"libnccl.so.2 of " + program, {}};
  const auto path = is_python(program) ? interpreter_of_python(program) : find_program(program);
  if (!path.ok()) {
    section.checks.push_back(
        {Verdict::kBad, program, path.status().text(), "give the path of a program"});
    return section;
  }
  std::error_code error;
  seen->process.program = fs::canonical(path.value(), error).string();
  seen->object = path.value();
  seen->driver = path_linked(path.value(), "libcuda.so.1");
  add_loading(nccl_of(path.value()), path.value(), &section.checks, seen);
  if (!is_python(path.value())) return section;
  add_python(path.value(), &section.checks, seen);
  if (is_set(kPathOfVllm)) section.checks.push_back(check_path_of_vllm(seen));
  return section;
}

const char* mark_of(Verdict verdict) {
  return verdict == Verdict::kGood ? "ok" : verdict == Verdict::kNote ? "note" : "BAD";
}

}  // namespace

std::vector<Check> judge_nccl(const NcclFound& found) {
  const Loading& loading = found.loading;
  std::vector<Check> checks;
  if (!loading.not_found.empty()) {
    checks.push_back(
        {Verdict::kBad, "libraries",
         fmt::format("{} does not start: {} not found", loading.object, list_of(loading.not_found)),
         "install the packages that contain them, or name their folders in LD_LIBRARY_PATH"});
  }
  if (loading.path.empty()) {
    checks.push_back(
        {loading.linked ? Verdict::kBad : Verdict::kNote, loading.object,
         loading.linked ? fmt::format("needs {}: {}", kNcclName, loading.reason)
                        : fmt::format("does not need {}, and finds none by that name", kNcclName),
         fmt::format("to use Weir: LD_PRELOAD={}, or LD_LIBRARY_PATH={}", found.installed,
                     fs::path(found.installed).parent_path().string())});
    return checks;
  }
  checks.push_back(
      {Verdict::kGood, loading.object,
       fmt::format("{} {} ({})", loading.linked ? "loads" : "is not linked to it; by name it finds",
                   loading.path, loading.reason),
       ""});
  if (found.version == 0) {
    checks.push_back({Verdict::kBad, "version",
                      loading.path + " cannot be opened, or has no ncclGetVersion",
                      "ldd tells what it lacks; install it again"});
  } else {
    checks.push_back({Verdict::kGood, "version",
                      found.weirs ? fmt::format("Weir's, with NCCL's API through {}",
                                                nccl::version_text(found.version))
                                  : nccl::version_text(found.version) + ", not Weir's",
                      found.weirs ? "" : "to use Weir: LD_PRELOAD=" + found.installed});
  }
  for (const MissingSymbols& missing : loading.missing) {
    checks.push_back({Verdict::kBad, "symbols",
                      fmt::format("{} needs {}, which that library lacks", missing.object,
                                  list_of(missing.names)),
                      "it was built for a newer NCCL: use a newer library, or Weir's, which has "
                      "all symbols through 2.32"});
  }
  if (loading.missing.empty() && loading.linked) {
    checks.push_back({Verdict::kGood, "symbols", "it has all symbols that are needed", ""});
  }
  return checks;
}

Check judge_shadowed(const std::vector<Shadowed>& shadowed) {
  std::vector<std::string> wanted, loaded;
  for (const Shadowed& one : shadowed) {
    for (const auto& [files, file] : {std::pair(&wanted, &one.wanted), {&loaded, &one.loaded}}) {
      if (std::count(files->begin(), files->end(), *file) == 0) files->push_back(*file);
    }
  }
  return {Verdict::kBad, "LD_LIBRARY_PATH",
          fmt::format("does not bring {}: the program's packages load {}", fmt::join(wanted, ", "),
                      fmt::join(loaded, ", ")),
          fmt::format("name the files themselves: LD_PRELOAD={}", fmt::join(wanted, ":"))};
}

namespace {

// The remedy for a transport that is not viable.
const char* remedy_of_transport(const std::string& name) {
  static constexpr std::pair<const char*, const char*> kRemedies[] = {
      {"shm", "allow memfd_create in the container's seccomp profile; ranks then share memory"},
      {"tcp", "bring an interface up, or name the one that is: WEIR_IFNAME"},
      {"ucx", "ucx_info -d lists what UCX finds; UCX_TLS and UCX_NET_DEVICES may exclude it"},
      {"ofi", "fi_info -l lists what libfabric finds; FI_PROVIDER may exclude it"},
      {"nccl",
       "for device memory only: install NVIDIA's driver and NCCL, or name its file: "
       "WEIR_NCCL_LIBRARY"},
      {"ncclnet", "for a network plugin of NCCL's only: name its file, WEIR_NCCL_NET_PLUGIN"},
  };
  for (const auto& [transport, remedy] : kRemedies) {
    if (name == transport) return remedy;
  }
  return "install what it needs, or leave it out: WEIR_TRANSPORT";
}

// Whether Weir's communicators copy directly between devices.
Check judge_direct(const InstalledDriver& driver, const std::string& direct) {
  const char* subject = "device to device";
  const comm::DirectChoice choice = comm::direct_choice(direct, driver.stand_in);
  if (!comm::is_allowed(choice)) {
    return {Verdict::kGood, subject, "through host memory: " + comm::reason_of(choice), ""};
  }
  if (driver.stand_in) return {Verdict::kGood, subject, "directly on one machine", ""};
  if (!comm::is_demanded(choice)) {
    return {Verdict::kGood, subject,
            "directly on one machine, but not where ranks share a process and a device", ""};
  }
  return {Verdict::kNote, subject, "directly on one machine: WEIR_DIRECT=1",
          "ranks that share a process, a device and its hardware queues may wait for each other "
          "for ever: unset WEIR_DIRECT"};
}

}  // namespace

std::vector<Check> judge_driver(const InstalledDriver& driver, const std::string& direct) {
  std::vector<Check> checks;
  const bool loaded = driver.loaded;
  const bool library = !driver.library.empty();
  const bool alone = library && !loaded && !driver.stand_in;
  checks.push_back(
      {alone ? Verdict::kNote : Verdict::kGood, "driver",
       loaded ? "loaded" + (driver.version.empty() ? "" : ", " + driver.version)
              : "not loaded: host memory only",
       alone ? "there is a libcuda.so.1 and no driver: start the container with --gpus all" : ""});
  checks.push_back(
      {library || !loaded ? Verdict::kGood : Verdict::kBad, "libcuda.so.1",
       library ? driver.library + (driver.stand_in ? ", Weir's stand-in" : "") : "not found",
       library || !loaded ? ""
                          : "install the driver's user part (libcuda1), or start the container "
                            "with --gpus all"});
  if (library) checks.push_back(judge_direct(driver, direct));
  if (loaded && !driver.device_file) {
    checks.push_back({Verdict::kBad, "devices", "/dev/nvidiactl is not there",
                      "start the container with --gpus all, or run nvidia-modprobe"});
  }
  if (!driver.version.empty() && !driver.library_version.empty() &&
      driver.version != driver.library_version) {
    checks.push_back({Verdict::kNote, "versions",
                      fmt::format("the kernel's part of the driver is {}, libcuda.so.1 is {}",
                                  driver.version, driver.library_version),
                      "after an update reload the driver or restart the machine; a compatibility "
                      "package (cuda-compat) may differ on purpose"});
  }
  return checks;
}

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

Check check_topology_file(const std::string& variable, const std::string& path, topo::Merge merge) {
  std::string alone;
  const auto topology = topo::read_machine(path, merge, {}, &alone);
  if (!alone.empty()) {
    return {Verdict::kNote, variable, alone,
            "give the file for this kind of machine; if another machine is meant, "
            "WEIR_TOPOLOGY_MERGE=0 says so"};
  }
  return {topology.ok() ? Verdict::kGood : Verdict::kBad, variable,
          topology.ok() ? path + " can be read" : topology.status().text(),
          topology.ok() ? "" : "name a topology file of hwloc's or NCCL's, or unset it"};
}

std::vector<Check> judge_variables(const Result<Settings>& settings) {
  constexpr const char* kSubject = "WEIR_*";
  if (!settings.ok()) {
    return {{Verdict::kBad, kSubject, settings.status().text(), "weir-info lists what each takes"}};
  }
  std::vector<Check> checks;
  for (const std::string& unknown : settings.value().warnings) {
    checks.push_back({Verdict::kNote, kSubject, unknown, "unset it, or mend its name"});
  }
  const comm::NamedAlgorithms named = comm::read_named_algorithms(settings.value());
  for (const Status& status :
       {check_transports(settings.value()), named.programs_status, named.names_status}) {
    if (status.ok()) continue;
    checks.push_back({Verdict::kBad, kSubject, status.text(),
                      "no communicator starts with it: mend the variable, or unset it"});
  }
  if (checks.empty()) {
    checks.push_back({Verdict::kGood, kSubject, "all parse, and name what a start can use", ""});
  }
  return checks;
}

NcclExamined examine_nccl(const std::string& program) {
  NcclExamined examined;
  std::error_code error;
  Seen seen;
  // This program's own path: in the loader's process /proc/self is the loader.
  seen.object = fs::read_symlink("/proc/self/exe", error).string();
  if (program.empty()) {
    seen.process = nccl::this_loading_process();
  } else {
    examined.sections.push_back(section_of_program(program, &seen));
  }
  if (program.empty() || seen.weirs) {
    examined.sections.push_back(
        {"Behind Weir's libnccl.so.2",
         judge_behind(look_behind(seen.process, seen.driver), seen.wanted)});
  }
  examined.object = seen.object;
  return examined;
}

namespace {

// The default where the environment does not parse, which the report tells.
std::string wanted_direct() {
  const Result<Settings>& settings = process_settings();
  return settings.ok() ? settings.value().direct : "auto";
}

}  // namespace

std::vector<Section> examine(const std::string& program) {
  // First, since the transports may start CUDA's driver: a forked process could not start it again.
  NcclExamined nccl = examine_nccl(program);
  std::vector<Section> sections = std::move(nccl.sections);
  const Report report = make_report();
  sections.push_back({"CUDA", judge_driver(gather_driver("/", nccl.object), wanted_direct())});
  sections.push_back({"Transports", judge_transports(report.transports)});
  Section machine{"Machine", judge_limits(report.machine)};
  // The first variable counts (docs/nccl.md).
  const char* file = is_set("WEIR_TOPOLOGY_FILE") ? "WEIR_TOPOLOGY_FILE"
                     : is_set("NCCL_TOPO_FILE")   ? "NCCL_TOPO_FILE"
                                                  : nullptr;
  machine.checks.push_back(judge_topology(gather_pci_tree("/"), file != nullptr));
  const char* setting = std::getenv("WEIR_TOPOLOGY_MERGE");
  const topo::Merge merge = topo::merge_of_setting(setting == nullptr ? "" : setting);
  if (file != nullptr)
    machine.checks.push_back(check_topology_file(file, std::getenv(file), merge));
  sections.push_back(std::move(machine));
  sections.push_back({"Variables", judge_variables(process_settings())});
  return sections;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamesShown; ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  if (names.size() > kNamesShown) text += fmt::format(" and {} more", names.size() - kNamesShown);
  return text;
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
