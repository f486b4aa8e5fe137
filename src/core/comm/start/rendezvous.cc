// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/per_process.h"
#include "core/base/settings.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/job_secret.h"
#include "core/comm/start/rendezvous_file.h"
#include "core/comm/start/rendezvous_pmix.h"
#include "core/comm/start/resolve.h"
#include "net/auth.h"

namespace weir::comm {
namespace {

constexpr uint64_t kResolveNsMax = 20'000'000'000;
// Between two looks at the file: 4096 ranks may look at one server.
constexpr uint64_t kFilePauseNsMin = 2'000'000;
constexpr uint64_t kFilePauseNsMax = 200'000'000;
// How long a folder that was just made may be unknown to another host.
constexpr uint64_t kFolderNs = 2'000'000'000;

enum class Way { kLocal, kMaster, kPmix, kFile };

struct Choice {
  Way way = Way::kLocal;
  std::string path;  // of kFile
  std::string why;
};

// The agreement of a job by pmix or file, for its later communicators, too.
struct Agreement {
  Secret secret;
  Place place;
};

struct State {
  uint64_t generation = 0;
  std::optional<Agreement> agreement;
};

constinit InheritedState<State> state;

bool spans_machines(const Launch& launch) {
  return launch.local_known && launch.local_count < launch.rank_count;
}

std::string what_to_set() {
  return "give the job a secret (WEIR_SECRET_FILE, a file of mode 0600 with the output of `openssl "
         "rand -hex 32`) and MASTER_ADDR and MASTER_PORT, or WEIR_RENDEZVOUS=file:PATH on a file "
         "system that all machines share, or start it with a PMIx launcher";
}

Result<Choice> choose(const Launch& launch, bool has_secret) {
  const char* text = std::getenv("WEIR_RENDEZVOUS");
  const std::string wanted = text != nullptr ? text : "";
  constexpr std::string_view kFilePrefix = "file:";
  if (wanted == "local") return Choice{Way::kLocal, "", "WEIR_RENDEZVOUS"};
  if (wanted == "master") return Choice{Way::kMaster, "", "WEIR_RENDEZVOUS"};
  if (wanted == "pmix") return Choice{Way::kPmix, "", "WEIR_RENDEZVOUS"};
  if (wanted.starts_with(kFilePrefix) && wanted.size() > kFilePrefix.size()) {
    return Choice{Way::kFile, wanted.substr(kFilePrefix.size()), "WEIR_RENDEZVOUS"};
  }
  if (!wanted.empty()) {
    return invalid_argument("WEIR_RENDEZVOUS must be local, master, pmix or file:PATH");
  }
  if (launch.local_known && !spans_machines(launch)) {
    return Choice{Way::kLocal, "", "all ranks are on this machine"};
  }
  const bool has_master = !launch.master_address.empty() && !launch.master_port.empty();
  if (has_master && has_secret) {
    return Choice{Way::kMaster, "", "MASTER_ADDR, MASTER_PORT and a secret are set"};
  }
  const std::string no_pmix = launch.pmix_rank_fits
                                  ? why_no_pmix()
                                  : std::string("this rank was not started by the PMIx launcher");
  if (no_pmix.empty()) return Choice{Way::kPmix, "", "the launcher offers PMIx"};
  if (!launch.local_known) {
    return Choice{Way::kLocal, "", "the launcher does not say which ranks share a machine"};
  }
  return Status(
      Code::kInvalidUsage,
      fmt::format(
          "{} of the job's {} ranks are on this machine, and there is no safe way to find the "
          "others: {}{}; {} (set WEIR_RENDEZVOUS=local if all ranks are on this machine)",
          launch.local_count, launch.rank_count,
          has_master ? "MASTER_ADDR is set, but no secret"
                     : "neither MASTER_ADDR nor a secret is set",
          "; PMIx: " + no_pmix, what_to_set()));
}

Result<Rendezvous> by_master(const Launch& launch, const std::optional<JobSecret>& secret,
                             uint64_t deadline_ns) {
  if (launch.master_address.empty() || launch.master_port.empty()) {
    return Status(
        Code::kInvalidUsage,
        fmt::format("WEIR_RENDEZVOUS=master needs {}: set MASTER_ADDR to the host of rank 0 and "
                    "MASTER_PORT to a port that is free there, for all ranks",
                    !launch.master_address.empty() ? "MASTER_PORT, which is not set"
                    : !launch.master_port.empty()  ? "MASTER_ADDR, which is not set"
                                                   : "MASTER_ADDR and MASTER_PORT, which are not "
                                                     "set"));
  }
  if (!secret) {
    return Status(Code::kInvalidUsage,
                  "MASTER_ADDR and MASTER_PORT say where the ranks meet, but they are not secret: "
                  "set WEIR_SECRET_FILE, a file of mode 0600 with the output of `openssl rand -hex "
                  "32`, for all ranks");
  }
  Rendezvous rendezvous;
  uint16_t port = 0;
  const std::string& text = launch.master_port;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || stop != text.data() + text.size() || port == 0) {
    return invalid_argument(fmt::format("MASTER_PORT={} is not a port number", text));
  }
  auto addresses = resolve(launch.master_address, std::min(deadline_ns, now_ns() + kResolveNsMax));
  if (!addresses.ok()) return addresses.status().with_context("MASTER_ADDR");
  for (const net::IpAddress& one : addresses.value()) {
    if (!one.is_loopback() && rendezvous.place.addresses.size() < kPlaceAddressesMax) {
      rendezvous.place.addresses.push_back(one);
    }
  }
  if (rendezvous.place.empty() && spans_machines(launch)) {
    return invalid_argument(
        fmt::format("MASTER_ADDR={} is a loopback address, but the job has ranks on several "
                    "machines: set it to the host of rank 0",
                    launch.master_address));
  }
  const std::string where = rendezvous.place.empty()
                                ? std::string("this machine")
                                : net::to_string(rendezvous.place.addresses[0]);
  if (launch.master_port_is_taken) {
    rendezvous.how = fmt::format(
        "master, at {}; MASTER_PORT {} is used by torchrun's store, so another port is derived "
        "from the secret",
        where, port);
  } else {
    rendezvous.place.port = port;
    rendezvous.how =
        fmt::format("master, at {}, at a port derived from the secret or at {}", where, port);
  }
  rendezvous.secret = secret->secret.derive(
      fmt::format("master {} {}\n{}", launch.master_address, port,
                  launch.named_by_parent ? launch.launcher : launch.meeting_point));
  return rendezvous;
}

// The secret that rank 0 made, bound to the job's own when there is one.
Secret bound_to_job(const Secret& made, const std::optional<JobSecret>& job) {
  if (!job) return made;
  return Secret{job->secret.sign(
      std::string_view(reinterpret_cast<const char*>(made.bytes.data()), made.bytes.size()))};
}

Result<Agreement> agree_by_pmix(const Launch& launch, uint64_t deadline_ns) {
  std::string bytes;
  if (launch.rank == 0) {
    const Result<Secret> made = Secret::random();
    if (!made.ok()) return made.status();
    bytes.assign(reinterpret_cast<const char*>(made.value().bytes.data()),
                 made.value().bytes.size());
    bytes += pack(place_of_this_host());
  }
  Result<std::string> told = exchange_through_pmix(launch.rank, bytes, deadline_ns);
  net::wipe(bytes.data(), bytes.size());
  if (!told.ok()) return told.status();
  Agreement agreement;
  std::string text = told.take();
  const size_t secret_bytes = agreement.secret.bytes.size();
  const bool fits = text.size() > secret_bytes &&
                    unpack(std::string_view(text).substr(secret_bytes), &agreement.place);
  if (fits) std::memcpy(agreement.secret.bytes.data(), text.data(), secret_bytes);
  net::wipe(text.data(), text.size());
  if (!fits) {
    return Status(Code::kRefused,
                  "PMIx: the data that rank 0 published cannot be read; do all ranks run the same "
                  "version of Weir?");
  }
  return agreement;
}

std::string own_host_name() {
  char name[65] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

// What names the job on every machine, so that another job's notice is not taken for ours.
Secret job_tag(const Launch& launch) {
  return launch.named_by_parent ? Secret() : secret_from_text(launch.meeting_point);
}

bool has_folder(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::absolute(path, error).parent_path(), error);
}

Result<Agreement> agree_by_file(const Launch& launch, const std::string& path,
                                const std::optional<JobSecret>& job, uint64_t deadline_ns) {
  Notice notice;
  notice.job = job_tag(launch);
  std::optional<PostedNotice> posted;
  if (launch.rank == 0) {
    const Result<Secret> made = Secret::random();
    if (!made.ok()) return made.status();
    notice.secret = made.value();
    notice.place = place_of_this_host();
    notice.pid = getpid();
    notice.host = own_host_name();
    Result<PostedNotice> written = PostedNotice::post(path, notice);
    if (!written.ok()) return written.status();
    posted.emplace(written.take());
  }
  const Secret tag = notice.job;
  bool other_job = false;
  const auto read = [&](Notice* seen, bool* found) {
    WEIR_RETURN_IF_ERROR(read_notice(path, seen, found));
    if (*found &&
        !equal_in_constant_time(seen->job.bytes.data(), tag.bytes.data(), tag.bytes.size())) {
      other_job = true;
      *found = false;
    }
    return Status();
  };
  uint64_t pause_ns = kFilePauseNsMin;
  const uint64_t folder_deadline_ns = now_ns() + kFolderNs;
  for (bool found = launch.rank == 0; !found;) {
    WEIR_RETURN_IF_ERROR(read(&notice, &found));
    if (found) break;
    const uint64_t now = now_ns();
    if (now >= folder_deadline_ns && !has_folder(path)) {
      return Status(Code::kSystem,
                    fmt::format("rendezvous file '{}': its folder does not exist on the host of "
                                "rank {}; choose a path in a folder that all machines share",
                                path, launch.rank));
    }
    if (now >= deadline_ns) {
      return Status(
          Code::kTimeout,
          fmt::format("timed out: rank 0 of {} has not written rendezvous file '{}' (seen "
                      "by rank {}){}; is the path on a file system that all machines share?",
                      launch.rank_count, path, launch.rank,
                      other_job
                          ? "; the file that is or was there belongs to another job, and each job "
                            "needs a path of its own"
                          : ""));
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(pause_ns, deadline_ns - now)));
    pause_ns = std::min(pause_ns * 3 / 2, kFilePauseNsMax);
  }

  // The notice may be one that a killed job has left: read it again while no rank listens there.
  uint64_t next_ns = 0;
  pause_ns = kFilePauseNsMin;
  const LookAgain look_again = [&](Secret* secret, Place* place) -> Result<bool> {
    if (now_ns() < next_ns) return false;
    next_ns = now_ns() + pause_ns;
    pause_ns = std::min(pause_ns * 3 / 2, kFilePauseNsMax);
    Notice seen;
    bool found = false;
    WEIR_RETURN_IF_ERROR(read(&seen, &found));
    if (!found || equal_in_constant_time(seen.secret.bytes.data(), notice.secret.bytes.data(),
                                         seen.secret.bytes.size())) {
      return false;
    }
    notice = seen;
    *secret = bootstrap_secret(notice);
    *place = notice.place;
    return true;
  };
  // On a network file system each look costs a message.
  uint64_t checked_ns = now_ns();
  const StillPossible still_possible = [&] {
    if (!posted || now_ns() - checked_ns < kFilePauseNsMax) return Status();
    checked_ns = now_ns();
    return posted->check();
  };
  // All ranks meet once before the file is removed, and check that they have one secret.
  const std::string context = fmt::format("rendezvous file '{}'", path);
  auto joined =
      Bootstrap::join(bootstrap_secret(notice), launch.rank, launch.rank_count, deadline_ns,
                      notice.place, {.look_again = look_again, .still_possible = still_possible});
  if (!joined.ok()) return joined.status().with_context(context);
  const Agreement agreement{bound_to_job(notice.secret, job), notice.place};
  const std::string own = fmt::format("{:016x}", agreement.secret.public_id());
  auto all = joined.value()->all_gather(own, deadline_ns);
  if (!all.ok()) return all.status().with_context(context);
  for (Rank rank = 0; rank < launch.rank_count; ++rank) {
    if (all.value()[rank] == all.value()[0]) continue;
    return Status(Code::kRefused,
                  fmt::format("{}: ranks 0 and {} have different job secrets, or only one of them "
                              "has one; give all ranks the same secret",
                              context, rank));
  }
  return agreement;
}

Result<Rendezvous> arrange(const Launch& launch, State& kept, uint64_t deadline_ns) {
  const uint64_t number = kept.generation++;
  Result<std::optional<JobSecret>> secret = job_secret(deadline_ns);
  if (!secret.ok()) return secret.status();
  const std::optional<JobSecret>& job = secret.value();
  const Result<Choice> chosen = choose(launch, job.has_value());
  if (!chosen.ok()) return chosen.status();
  const Choice& choice = chosen.value();
  if (choice.way != Way::kLocal) WEIR_RETURN_IF_ERROR(check_interfaces());
  Rendezvous rendezvous;
  switch (choice.way) {
    case Way::kLocal:
      rendezvous.how = "local, at an address derived from the job's name";
      rendezvous.secret =
          job ? job->secret.derive("local\n" + launch.meeting_point) : launch_secret(launch);
      break;
    case Way::kMaster: {
      Result<Rendezvous> made = by_master(launch, job, deadline_ns);
      if (!made.ok()) return made.status();
      rendezvous = made.take();
      break;
    }
    case Way::kPmix:
    case Way::kFile: {
      if (!kept.agreement) {
        Result<Agreement> made = choice.way == Way::kPmix
                                     ? agree_by_pmix(launch, deadline_ns)
                                     : agree_by_file(launch, choice.path, job, deadline_ns);
        if (!made.ok()) return made.status();
        kept.agreement = made.take();
        if (choice.way == Way::kPmix) {
          kept.agreement->secret = bound_to_job(kept.agreement->secret, job);
        }
      }
      rendezvous.secret = kept.agreement->secret;
      rendezvous.place = kept.agreement->place;
      rendezvous.how = choice.way == Way::kPmix ? "pmix" : "file '" + choice.path + "'";
      break;
    }
  }
  // By pmix and file the ranks have compared their secrets; otherwise those with another one meet
  // elsewhere.
  if (job && (choice.way == Way::kLocal || choice.way == Way::kMaster)) {
    rendezvous.remedy = fmt::format(
        "start all ranks with the secret of this one, which has it from {}, and the same {}",
        job->source,
        choice.way == Way::kMaster ? "MASTER_ADDR and MASTER_PORT" : "job name, on this machine");
  }
  rendezvous.secret = rendezvous.secret.derive(fmt::format("communicator {}", number));
  rendezvous.how += fmt::format(" ({}); secret: {}", choice.why,
                                job ? job->source
                                : choice.way == Way::kLocal
                                    ? "none, so this user's processes on this machine only"
                                    : "made by rank 0");
  return rendezvous;
}

}  // namespace

Result<Rendezvous> next_rendezvous(const Launch& launch, uint64_t deadline_ns) {
  const auto kept = state.use();
  Result<Rendezvous> rendezvous = arrange(launch, *kept, deadline_ns);
  if (!rendezvous.ok()) {
    return rendezvous.status().with_context(
        fmt::format("rank {} of {} ({})", launch.rank, launch.rank_count, launch.launcher));
  }
  const std::string text = fmt::format("rank {} of {}: started by {}, rendezvous: {}", launch.rank,
                                       launch.rank_count, launch.launcher, rendezvous.value().how);
  log_info(text);
  const Result<Settings>& settings = process_settings();
  if (settings.ok() && settings.value().explain && launch.rank == 0) {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  return rendezvous;
}

}  // namespace weir::comm
