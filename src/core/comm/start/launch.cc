// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include "core/comm/start/bootstrap.h"
#include "core/comm/start/launch_parent.h"
#include "core/comm/start/launch_slurm.h"

namespace weir::comm {
namespace {

// The environment as name and value. Empty values count as not set.
class Environment {
 public:
  explicit Environment(char** entries) : entries_(entries) {}
  std::optional<std::string_view> find(std::string_view name) const {
    for (char** entry = entries_; entry != nullptr && *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      if (text.size() > name.size() + 1 && text[name.size()] == '=' &&
          text.substr(0, name.size()) == name) {
        return text.substr(name.size() + 1);
      }
    }
    return std::nullopt;
  }

 private:
  char** entries_;
};

using Names = std::vector<const char*>;  // by preference

struct Launcher {
  const char* name;
  Names rank;
  Names size;
  Names local_rank = {};
  Names local_size = {};
  // Without these the launcher has not started this process, whatever else it has left there.
  Names required = {};
  // Whether a rank without a size is an error; otherwise the next launcher is tried.
  bool size_must_follow = true;
  // The first of `job` that is set names the job; `job_details` then make the name more certain.
  Names job = {};
  Names job_details = {};
};

const std::vector<Launcher>& launchers() {
  // Never destroyed: exit handlers may make communicators.
  static const auto* const table = new std::vector<Launcher>{
      {.name = "weir",
       .rank = {"WEIR_RANK"},
       .size = {"WEIR_SIZE"},
       .local_rank = {"WEIR_LOCAL_RANK"},
       .local_size = {"WEIR_LOCAL_SIZE"}},
      {.name = "torchrun",
       .rank = {"RANK"},
       .size = {"WORLD_SIZE"},
       .local_rank = {"LOCAL_RANK"},
       .local_size = {"LOCAL_WORLD_SIZE"},
       .job = {"MASTER_PORT"},
       .job_details = {"MASTER_ADDR", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
      {.name = "Open MPI",
       .rank = {"OMPI_COMM_WORLD_RANK"},
       .size = {"OMPI_COMM_WORLD_SIZE"},
       .local_rank = {"OMPI_COMM_WORLD_LOCAL_RANK"},
       .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
       .job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"},
       // A random number: job numbers are short hashes, and hashes collide.
       .job_details = {"OMPI_MCA_orte_precondition_transports"}},
      {.name = "MPICH (PMI)",
       .rank = {"PMI_RANK"},
       .size = {"PMI_SIZE"},
       .local_rank = {"MPI_LOCALRANKID", "PMI_LOCAL_RANK"},
       .local_size = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
       .job = {"PMI_JOBID"}},
      {.name = "PMIx",
       .rank = {"PMIX_RANK"},
       .size = {"PMIX_SIZE"},
       .local_rank = {"PMIX_LOCAL_RANK"},
       .local_size = {"PMIX_LOCAL_SIZE"},
       .size_must_follow = false,
       .job = {"PMIX_NAMESPACE"}},
      {.name = "Slurm",
       .rank = {"SLURM_PROCID"},
       .size = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
       .local_rank = {"SLURM_LOCALID"},
       // A batch script has a number and a count, but it is not one of the tasks of `srun`.
       .required = {"SLURM_STEP_ID"},
       .job = {"SLURM_JOB_ID"},
       .job_details = {"SLURM_STEP_ID"}},
  };
  return *table;
}

struct Variable {
  const char* name = nullptr;
  std::string_view text;
};

std::optional<Variable> find_first(const Environment& environment, const Names& names) {
  for (const char* name : names) {
    if (const auto text = environment.find(name)) return Variable{name, *text};
  }
  return std::nullopt;
}

std::string either(const Names& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += (i > 0 ? " or " : "") + std::string(names[i]);
  return text;
}

Result<Rank> parse_number(const Variable& variable, uint64_t min, uint64_t max) {
  uint64_t value = 0;
  const char* end = variable.text.data() + variable.text.size();
  const auto [stop, error] = std::from_chars(variable.text.data(), end, value);
  if (error != std::errc() || stop != end || value < min || value > max) {
    return invalid_argument(fmt::format("{}={} is not a whole number in {}..{}", variable.name,
                                        variable.text, min, max));
  }
  return static_cast<Rank>(value);
}

std::string setting(const Variable& variable) {
  return fmt::format("{}={}", variable.name, variable.text);
}

Status read_ranks(const Environment& environment, const Launcher& launcher, const Variable& rank,
                  const Variable& size, Launch* launch) {
  const Result<Rank> rank_value = parse_number(rank, 0, kRankCountMax - 1);
  if (!rank_value.ok()) return rank_value.status();
  const Result<Rank> size_value = parse_number(size, 1, kRankCountMax);
  if (!size_value.ok()) return size_value.status();
  launch->rank = rank_value.value();
  launch->rank_count = size_value.value();
  if (launch->rank >= launch->rank_count) {
    return invalid_argument(
        fmt::format("{} is not below {}; ranks count from 0", setting(rank), setting(size)));
  }

  // If nothing is said about machines, all ranks are on this one.
  launch->local_rank = launch->rank;
  launch->local_count = launch->rank_count;
  const auto local_rank = find_first(environment, launcher.local_rank);
  const auto local_size = find_first(environment, launcher.local_size);
  if (local_size) {
    const Result<Rank> value = parse_number(*local_size, 1, kRankCountMax);
    if (!value.ok()) return value.status();
    launch->local_count = value.value();
    launch->local_known = true;
    if (launch->local_count > launch->rank_count) {
      return invalid_argument(fmt::format("{} is above {}", setting(*local_size), setting(size)));
    }
    if (!local_rank && launch->local_count != launch->rank_count) {
      return invalid_argument(fmt::format("{} is set and {} is not", setting(*local_size),
                                          either(launcher.local_rank)));
    }
  }
  if (local_rank) {
    const Result<Rank> value = parse_number(*local_rank, 0, kRankCountMax - 1);
    if (!value.ok()) return value.status();
    launch->local_rank = value.value();
    const Variable& bound = local_size ? *local_size : size;
    if (launch->local_rank >= launch->local_count) {
      return invalid_argument(
          fmt::format("{} is not below {}", setting(*local_rank), setting(bound)));
    }
  }
  return Status();
}

// Slurm says how many tasks a machine has in a list for all machines.
Status read_slurm_local_count(const Environment& environment, Launch* launch) {
  const Names names = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"};
  const auto list = find_first(environment, names);
  const auto node = find_first(environment, {"SLURM_NODEID"});
  if (!list || !node) return Status();
  const Result<Rank> index = parse_number(*node, 0, kRankCountMax - 1);
  if (!index.ok()) return index.status();
  const std::optional<uint64_t> count = slurm_tasks_of_node(list->text, index.value());
  if (!count || *count == 0 || *count > launch->rank_count || *count <= launch->local_rank) {
    return invalid_argument(fmt::format(
        "the number of tasks that {} gives for {} does not fit rank {} of {} with local rank {}",
        setting(*list), setting(*node), launch->rank, launch->rank_count, launch->local_rank));
  }
  launch->local_count = static_cast<Rank>(*count);
  launch->local_known = true;
  return Status();
}

Status find_meeting_point(const Environment& environment, const Launcher& launcher,
                          const Variable& rank, Launch* launch) {
  launch->meeting_point = launcher.name;
  const auto add = [launch](const Variable& variable) {
    launch->meeting_point += "\n" + setting(variable);
  };
  if (const auto id = find_first(environment, {"WEIR_ID"})) {
    add(*id);
    return Status();
  }
  if (const auto job = find_first(environment, launcher.job)) {
    add(*job);
    for (const char* name : launcher.job_details) {
      if (const auto detail = find_first(environment, {name})) add(*detail);
    }
    return Status();
  }
  const Result<std::string> parent = describe_launcher_process(rank.name, rank.text);
  if (!parent.ok()) return parent.status();
  launch->meeting_point += "\n" + parent.value();
  launch->named_by_parent = true;
  return Status();
}

void read_rendezvous(const Environment& environment, Launch* launch) {
  launch->master_address = environment.find("MASTER_ADDR").value_or("");
  launch->master_port = environment.find("MASTER_PORT").value_or("");
  launch->master_port_is_taken = environment.find("TORCHELASTIC_RUN_ID").has_value();
  launch->pmix_rank_fits = environment.find("PMIX_RANK") == std::to_string(launch->rank) &&
                           launch->launcher != "torchrun";
}

Status nothing_found(const Environment& environment) {
  std::string text =
      "no launcher variables are set, so rank and size are unknown; start the program with a "
      "launcher or set WEIR_RANK and WEIR_SIZE. Looked for:";
  std::string hints;
  for (const Launcher& launcher : launchers()) {
    text +=
        fmt::format(" {}: {} and {};", launcher.name, either(launcher.rank), either(launcher.size));
    const auto rank = find_first(environment, launcher.rank);
    const auto size = find_first(environment, launcher.size);
    if (rank.has_value() == size.has_value()) {
      if (!rank) continue;
      hints += fmt::format(" {} and {} are set without {}: was the program started by {}?",
                           rank->name, size->name, either(launcher.required), launcher.name);
      continue;
    }
    hints += fmt::format(" {} is set without {}.", rank ? rank->name : size->name,
                         either(rank ? launcher.size : launcher.rank));
  }
  text.back() = '.';
  return Status(Code::kInvalidUsage, text + hints);
}

}  // namespace

Result<Launch> launch_from_environment(char** entries) {
  const Environment environment(entries);
  for (const Launcher& launcher : launchers()) {
    const bool started_by_it =
        std::all_of(launcher.required.begin(), launcher.required.end(),
                    [&](const char* name) { return environment.find(name).has_value(); });
    const auto rank = find_first(environment, launcher.rank);
    const auto size = find_first(environment, launcher.size);
    const bool is_own = launcher.name == std::string_view("weir");
    // A size alone is common (job scripts export it for later use) and means nothing, except with
    // Weir's own variables.
    if (!started_by_it || !(rank || (is_own && size))) continue;
    if (!rank || !size) {
      if (!launcher.size_must_follow) continue;
      return invalid_argument(fmt::format("{} is set and {} is not", setting(rank ? *rank : *size),
                                          either(rank ? launcher.size : launcher.rank)));
    }
    Launch launch;
    launch.launcher = launcher.name;
    WEIR_RETURN_IF_ERROR(read_ranks(environment, launcher, *rank, *size, &launch));
    if (launch.launcher == "Slurm") {
      WEIR_RETURN_IF_ERROR(read_slurm_local_count(environment, &launch));
    }
    WEIR_RETURN_IF_ERROR(find_meeting_point(environment, launcher, *rank, &launch));
    read_rendezvous(environment, &launch);
    return launch;
  }
  return nothing_found(environment);
}

Secret launch_secret(const Launch& launch) {
  return secret_from_text("weir launch\n" + launch.meeting_point);
}

}  // namespace weir::comm
