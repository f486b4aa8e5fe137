// SPDX-License-Identifier: Apache-2.0
#include "nccl/base/environment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <utility>

#include "api/unique_id.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/base/secret.h"
#include "core/base/settings.h"
#include "core/comm/start/bootstrap_place.h"
#include "core/comm/start/job_secret.h"
#include "core/comm/start/resolve.h"
#include "core/plugin/module_folder.h"
#include "core/topo/discover.h"
#include "core/topo/nccl_xml.h"
#include "output/output_file.h"

namespace weir::nccl {

namespace {

using Environment = std::map<std::string, std::string, std::less<>>;

constexpr int64_t kStagingBytesMin = 64 << 10;
constexpr int64_t kStagingBytesMax = 1 << 30;
constexpr uint64_t kResolveNs = 10'000'000'000u;

// The transports between ranks that are present. Modules are not loaded for this: loading one would
// read the settings, which are not set yet.
std::vector<std::string> installed_transports() {
  std::vector<std::string> all = {"shm", "tcp"};
  for (const char* name : {"ucx", "ofi"}) {
    const std::string module = plugin::module_path(name);
    if (!module.empty() && access(module.c_str(), R_OK) == 0) all.emplace_back(name);
  }
  return all;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool is_debug_level(std::string_view lower) {
  return lower == "none" || lower == "version" || lower == "warn" || lower == "info" ||
         lower == "abort" || lower == "trace";
}

// NCCL reads no other, and then forces none.
bool is_socket_family(std::string_view name) { return name == "AF_INET" || name == "AF_INET6"; }

// A number of NCCL's variables, as NCCL reads it (strtoll): what follows the digits is ignored.
struct Number {
  int64_t value = 0;
  bool any = false;    // has digits, and is none too large
  bool whole = false;  // and nothing follows

  bool usable() const { return any && value >= 0; }
};

Number read_number(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  const int64_t value = std::strtoll(text.c_str(), &end, 0);
  const bool any = end != text.c_str() && errno == 0;
  return {value, any, any && *end == '\0'};
}

class Translator {
 public:
  Translator(Environment environment, std::vector<std::string> transports,
             std::vector<InfinibandPort> ports)
      : environment_(std::move(environment)),
        transports_(std::move(transports)),
        ports_(std::move(ports)) {}

  std::vector<std::string> run() {
    log();
    transports();
    infiniband();
    staging();
    copy("NCCL_TOPO_FILE", "WEIR_TOPOLOGY_FILE");
    copy("NCCL_DEBUG_FILE", "WEIR_LOG_FILE");
    const std::string plugin = value("NCCL_NET_PLUGIN");
    // Without a network plugin NCCL uses its own networks; Weir's plugin is for the real NCCL.
    if (!plugin.empty() && plugin != "none" && plugin != "weir") {
      copy("NCCL_NET_PLUGIN", "WEIR_NCCL_NET_PLUGIN");
    }
    return std::move(made_);
  }
  const std::string& error() const { return error_; }

 private:
  std::string value(std::string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() ? std::string() : found->second;
  }
  bool is_on(std::string_view name) const {
    const std::string text = value(name);
    return !text.empty() && text != "0";
  }
  // Unless the user has set Weir's own variable.
  void set(const std::string& name, const std::string& to) {
    if (environment_.find(name) == environment_.end()) made_.push_back(name + "=" + to);
  }
  void copy(const char* from, const char* to) {
    if (const std::string text = value(from); !text.empty()) set(to, text);
  }

  void log() {
    const std::string level = lower_case(value("NCCL_DEBUG"));
    if (level.empty()) return;
    if (!is_debug_level(level)) return;
    if (level == "version" || level == "warn" || level == "abort" || level == "none") {
      set("WEIR_LOG", level == "none" ? "error" : "warn");
    } else {
      set("WEIR_LOG", level);
    }
  }

  void transports() {
    const std::string net = lower_case(value("NCCL_NET"));
    const bool no_memory = is_on("NCCL_SHM_DISABLE");
    const bool no_infiniband = is_on("NCCL_IB_DISABLE");
    if (net.empty() && !no_memory && !no_infiniband) return;
    std::vector<std::string> wanted = {"ucx", "ofi", "tcp"};
    if (net == "socket" || net == "tcp") wanted = {"tcp"};
    if (net == "ib" || net == "ucx")
      wanted = net == "ib" ? wanted : std::vector<std::string>{"ucx"};
    if (net == "ib") wanted.pop_back();
    if (net == "ofi" || net == "aws libfabric" || net == "libfabric") wanted = {"ofi"};
    const bool known = net.empty() || net == "socket" || net == "tcp" || net == "ib" ||
                       net == "ucx" || net == "ofi" || net == "aws libfabric" || net == "libfabric";
    if (!known) {
      return fail("NCCL_NET",
                  "Socket, IB, UCX or OFI (other networks: NCCL_NET_PLUGIN and "
                  "WEIR_TRANSPORT=ncclnet)");
    }
    if (!no_memory) wanted.insert(wanted.begin(), "shm");
    std::string list;
    for (const std::string& name : wanted) {
      if (no_infiniband && net.empty() && (name == "ucx" || name == "ofi")) continue;
      if (std::find(transports_.begin(), transports_.end(), name) == transports_.end()) continue;
      list += (list.empty() ? "" : ",") + name;
    }
    if (list.empty() || (list == "shm" && !net.empty())) {
      return fail("NCCL_NET", "a network for which this installation has a transport");
    }
    set("WEIR_TRANSPORT", list);
  }

  // The variables of UCX and libfabric. UCX and libfabric choose by themselves if the machine has
  // no such device or nothing is set; if the filter leaves no device, they must not use any.
  void infiniband() {
    const std::string filter = value("NCCL_IB_HCA");
    if (!filter.empty() && !ports_.empty()) {
      const std::vector<InfinibandPort> allowed = allowed_ports(filter, ports_);
      std::string list;
      std::set<std::string> devices;
      for (const InfinibandPort& port : allowed) {
        list += (list.empty() ? "" : ",") + port.text();
        devices.insert(port.device);
      }
      if (allowed.empty()) {
        set("UCX_TLS", "^ib");
        set("FI_PROVIDER", "^verbs");
      } else if (allowed != ports_) {
        set("UCX_NET_DEVICES", list);
        if (devices.size() == 1) set("FI_VERBS_DEVICE_NAME", *devices.begin());
      }
    }
    copy("NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX");
  }

  void staging() {
    const std::string text = value("NCCL_BUFFSIZE");
    if (text.empty()) return;
    const Number number = read_number(text);
    if (!number.usable()) return;
    set("WEIR_STAGING_BYTES",
        std::to_string(std::clamp(number.value, kStagingBytesMin, kStagingBytesMax)));
  }

  void fail(const char* name, const char* expected) {
    if (!error_.empty()) return;
    error_ = fmt::format("{}='{}': expected {}", name, value(name), expected);
  }

  const Environment environment_;
  const std::vector<std::string> transports_;
  const std::vector<InfinibandPort> ports_;
  std::vector<std::string> made_;
  std::string error_;
};

bool is_honoured(std::string_view name) {
  const auto& all = honoured_variables();
  return std::any_of(all.begin(), all.end(), [&](const Variable& it) { return name == it.name; });
}

Environment read(const std::vector<std::string>& environment) {
  Environment all;
  for (const std::string& one : environment) {
    const size_t equals = one.find('=');
    if (equals != std::string::npos) all.emplace(one.substr(0, equals), one.substr(equals + 1));
  }
  return all;
}

std::vector<std::string> process_environment() {
  std::vector<std::string> all;
  for (char** one = environ; one != nullptr && *one != nullptr; ++one) all.emplace_back(*one);
  return all;
}

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

// As in NCCL: NCCL_CONF_FILE or else the user's file, then the machine's.
void load_configuration() {
  std::vector<std::string> paths;
  const char* named = std::getenv("NCCL_CONF_FILE");
  const char* home = std::getenv("HOME");
  if (named != nullptr && *named != '\0') {
    paths.emplace_back(named);
  } else if (home != nullptr && *home != '\0') {
    paths.push_back(std::string(home) + "/.nccl.conf");
  }
  paths.emplace_back("/etc/nccl.conf");
  for (const std::string& path : paths) {
    std::ifstream file(path);
    if (!file) continue;
    std::stringstream text;
    text << file.rdbuf();
    for (const std::string& line : parse_configuration(text.str())) {
      const size_t equals = line.find('=');
      setenv(line.substr(0, equals).c_str(), line.substr(equals + 1).c_str(), 0);
    }
  }
}

}  // namespace

const std::vector<Variable>& honoured_variables() {
  static const auto* all = new std::vector<Variable>{
      {"NCCL_BUFFSIZE", ""},
      {"NCCL_COMM_BLOCKING", "1"},
      {"NCCL_COMM_ID", ""},
      {"NCCL_CONF_FILE", ""},
      {"NCCL_DEBUG", ""},
      {"NCCL_DEBUG_FILE", ""},
      {"NCCL_HOSTID", ""},
      {"NCCL_IB_DISABLE", "0"},
      {"NCCL_IB_GID_INDEX", ""},
      {"NCCL_IB_HCA", ""},
      {"NCCL_IGNORE_CPU_AFFINITY", "0"},  // honoured by nature: no thread's affinity is ever set
      {"NCCL_NET", ""},
      {"NCCL_NET_PLUGIN", ""},
      {"NCCL_OOB_NET_IFNAME", ""},
      {"NCCL_P2P_DISABLE", "0"},
      {"NCCL_RMA_EAGER_INIT", "0"},
      {"NCCL_SHM_DISABLE", "0"},
      {"NCCL_SOCKET_FAMILY", ""},
      {"NCCL_SOCKET_IFNAME", ""},
      {"NCCL_TOPO_DUMP_FILE", ""},
      {"NCCL_TOPO_FILE", ""},
  };
  return *all;
}

std::vector<std::string> parse_configuration(std::string_view text) {
  std::vector<std::string> all;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    line = line.substr(0, line.find('#'));
    const auto space = [](unsigned char c) { return std::isspace(c) != 0; };
    line.erase(std::remove_if(line.begin(), line.end(), space), line.end());
    const size_t equals = line.find('=');
    if (equals == std::string::npos || equals == 0 || line.rfind("NCCL_", 0) != 0) continue;
    all.push_back(line);
  }
  return all;
}

std::vector<std::string> unusual_values(const std::vector<std::string>& environment,
                                        const std::vector<InfinibandPort>& ports) {
  const Environment all = read(environment);
  std::vector<std::string> lines;
  const auto value = [&](const char* name) {
    const auto found = all.find(name);
    return found == all.end() ? std::string() : found->second;
  };
  const auto one_of_two = [&](const char* name, const char* done) {
    const std::string text = value(name);
    if (text.empty() || text == "0" || text == "1") return;
    lines.push_back(fmt::format("{}='{}': expected 0 or 1; {}", name, text, done));
  };
  one_of_two("NCCL_COMM_BLOCKING", "it is ignored, and config.blocking decides");
  one_of_two("NCCL_RMA_EAGER_INIT", "it is taken as 1");
  one_of_two("NCCL_P2P_DISABLE", "it is taken as 1: no rank uses another's memory");
  one_of_two("NCCL_SHM_DISABLE", "it is taken as 1: shared memory is not used");
  one_of_two("NCCL_IB_DISABLE", "it is taken as 1: InfiniBand is not used");
  one_of_two("NCCL_IGNORE_CPU_AFFINITY", "it is ignored: no thread's affinity is ever changed");
  const std::string level = lower_case(value("NCCL_DEBUG"));
  if (!level.empty() && !is_debug_level(level)) {
    lines.push_back(
        fmt::format("NCCL_DEBUG='{}': expected NONE, VERSION, WARN, INFO, ABORT or TRACE; it is "
                    "ignored",
                    value("NCCL_DEBUG")));
  }
  const std::string family = value("NCCL_SOCKET_FAMILY");
  if (!family.empty() && !is_socket_family(family)) {
    lines.push_back(
        fmt::format("NCCL_SOCKET_FAMILY='{}': expected AF_INET or AF_INET6; it is ignored: both "
                    "are used",
                    family));
  }
  const std::string bytes = value("NCCL_BUFFSIZE");
  if (const Number number = read_number(bytes); !bytes.empty() && !number.usable()) {
    lines.push_back(
        fmt::format("NCCL_BUFFSIZE='{}': expected a number of bytes; it is ignored", bytes));
  } else if (!bytes.empty() && !number.whole) {
    lines.push_back(fmt::format(
        "NCCL_BUFFSIZE='{}': expected a number of bytes without a unit; it is read as {} bytes",
        bytes, number.value));
  }
  const std::string file = value("NCCL_CONF_FILE");
  if (!file.empty() && access(file.c_str(), R_OK) != 0) {
    lines.push_back(
        fmt::format("NCCL_CONF_FILE='{}': expected a file that can be read; only "
                    "/etc/nccl.conf is read",
                    file));
  }
  const std::string filter = value("NCCL_IB_HCA");
  // To exclude what is not there is no mistake.
  if (!filter.empty() && filter.front() != '^' && allowed_ports(filter, ports).empty()) {
    std::vector<std::string> names;
    for (const InfinibandPort& port : ports) names.push_back(port.text());
    lines.push_back(
        fmt::format("NCCL_IB_HCA='{}': expected a device of this machine, which has {}; {}", filter,
                    names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")),
                    names.empty() ? "it is ignored" : "InfiniBand is not used"));
  }
  return lines;
}

std::vector<std::string> translate_environment(const std::vector<std::string>& environment,
                                               const std::vector<std::string>& transports,
                                               const std::vector<InfinibandPort>& ports,
                                               std::vector<std::string>* ignored,
                                               std::string* error) {
  Environment all = read(environment);
  ignored->clear();
  for (const auto& [name, value] : all) {
    if (name.rfind("NCCL_", 0) == 0 && !is_honoured(name)) ignored->push_back(name);
  }
  Translator translator(std::move(all), transports, ports);
  std::vector<std::string> made = translator.run();
  *error = translator.error();
  return made;
}

Outcome apply_environment(const char* function) {
  struct Applied {
    std::mutex lock;
    bool done = false;
    Outcome outcome;
  };
  static constinit PerProcess<Applied> state;
  Applied& applied = state.get();
  std::lock_guard guard(applied.lock);
  if (!std::exchange(applied.done, true)) {
    load_configuration();
    std::vector<std::string> ignored;
    std::string error;
    for (const std::string& one : translate_environment(
             process_environment(), installed_transports(), infiniband_ports(), &ignored, &error)) {
      const size_t equals = one.find('=');
      setenv(one.substr(0, equals).c_str(), one.substr(equals + 1).c_str(), 0);
    }
    applied.outcome = error.empty() ? Outcome() : invalid_usage(error);
    const std::vector<std::string> unusual =
        unusual_values(process_environment(), infiniband_ports());
    // The core takes no other family.
    if (is_set("NCCL_SOCKET_FAMILY") && !is_socket_family(std::getenv("NCCL_SOCKET_FAMILY"))) {
      unsetenv("NCCL_SOCKET_FAMILY");
    }
    const char* level = std::getenv("NCCL_DEBUG");
    if (level != nullptr && lower_case(level) == "version") {
      log_warn(fmt::format("NCCL version {}.{}.{} (Weir)", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH));
    }
    if (is_set("NCCL_TOPO_FILE") || is_set("WEIR_TOPOLOGY_FILE")) {
      log_info(
          "the topology file only identifies this machine for the cache of measured costs; Weir's "
          "transports do not choose their devices by it");
    }
    for (const std::string& line : unusual) log_warn(line);
    if (!ignored.empty()) {
      log_warn(fmt::format("these variables have no effect on Weir's own transports: {}",
                           fmt::join(ignored, ", ")));
    }
  }
  if (applied.outcome.ok()) return {};
  return {applied.outcome.code, fmt::format("{}: {}", function, applied.outcome.text)};
}

void dump_topology() {
  const char* path = std::getenv("NCCL_TOPO_DUMP_FILE");
  if (path == nullptr || *path == '\0') return;
  static constinit PerProcess<std::atomic<bool>> dumped;
  if (dumped->exchange(true)) return;
  const Result<Settings>& settings = process_settings();
  auto found = settings.ok()
                   ? topo::read_machine(settings.value().topology_file,
                                        topo::merge_of_setting(settings.value().topology_merge))
                   : topo::discover();
  auto text = found.ok() ? topo::to_nccl_xml(found.value()) : Result<std::string>(found.status());
  if (!text.ok()) return log_warn(fmt::format("NCCL_TOPO_DUMP_FILE: {}", text.status().text()));
  const std::string wrong = output::write_file(path, text.value());
  if (!wrong.empty()) log_warn("NCCL_TOPO_DUMP_FILE: " + wrong);
}

Outcome id_of_environment(const char* function, bool* set, ncclUniqueId* id) {
  const char* text = std::getenv("NCCL_COMM_ID");
  *set = text != nullptr && *text != '\0';
  if (!*set) return {};
  const std::string given = text;
  const size_t colon = given.rfind(':');
  uint16_t port = 0;
  std::string host = given.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  bool sound = colon != std::string::npos && colon > 0;
  if (sound) {
    const char* end = given.data() + given.size();
    const auto [stop, problem] = std::from_chars(given.data() + colon + 1, end, port);
    sound = problem == std::errc() && stop == end && port != 0;
  }
  if (!sound) {
    return invalid_argument(fmt::format(
        "{}: NCCL_COMM_ID='{}': expected HOST:PORT, or [ADDRESS]:PORT for IPv6", function, given));
  }
  const uint64_t deadline_ns = now_ns() + kResolveNs;
  auto addresses = comm::resolve(host, deadline_ns);
  if (!addresses.ok()) {
    return invalid_argument(
        fmt::format("{}: NCCL_COMM_ID: {}", function, addresses.status().text()));
  }
  comm::Place place;
  for (const net::IpAddress& one : addresses.value()) {
    if (!one.is_loopback() && place.addresses.size() < comm::kPlaceAddressesMax) {
      place.addresses.push_back(one);
    }
  }
  auto job = comm::job_secret(deadline_ns);
  if (!job.ok()) return invalid_usage(fmt::format("{}: {}", function, job.status().text()));
  const std::string label = fmt::format("NCCL_COMM_ID {}", given);
  const Secret secret = job.value().has_value() ? job.value()->secret.derive(label)
                                                : secret_from_text(label).derive("id");
  if (!job.value().has_value()) {
    static std::atomic<bool> told{false};
    if (!told.exchange(true)) {
      log_warn(
          "NCCL_COMM_ID is not secret, and any process that knows it can join the communicator: "
          "set WEIR_SECRET_FILE for all ranks");
    }
  }
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, kIdMagic, sizeof kIdMagic);
  std::memcpy(id->internal + sizeof kIdMagic, secret.bytes.data(), secret.bytes.size());
  const std::string packed = comm::pack(place);
  std::memcpy(id->internal + kIdPlaceOffset, packed.data(), packed.size());
  return {};
}

}  // namespace weir::nccl
