// SPDX-License-Identifier: Apache-2.0
#include "core/comm/start/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "core/base/clock.h"
#include "core/comm/start/bootstrap.h"
#include "core/comm/start/launch_parent.h"
#include "core/comm/start/launch_slurm.h"
#include "unit/comm/start/launch_environments.h"

namespace weir::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

using Entries = std::vector<std::string>;

Entries of_rank(Entries entries, int rank) {
  for (std::string& entry : entries) {
    const size_t at = entry.find("{rank}");
    if (at != std::string::npos) entry.replace(at, 6, std::to_string(rank));
  }
  return entries;
}

// `entries` with the value of one variable replaced, or the variable removed when `value` is null.
Entries changed(Entries entries, const std::string& name, const char* value) {
  std::erase_if(entries, [&](const std::string& entry) { return entry.starts_with(name + "="); });
  if (value != nullptr) entries.push_back(name + "=" + value);
  return entries;
}

Result<Launch> launch(Entries entries) {
  std::vector<char*> environment;
  for (std::string& entry : entries) environment.push_back(entry.data());
  environment.push_back(nullptr);
  return launch_from_environment(environment.data());
}

Launch good_launch(const Entries& entries) {
  Result<Launch> found = launch(entries);
  EXPECT_TRUE(found.ok()) << found.status().text();
  return found.ok() ? found.take() : Launch();
}

std::string error_of(const Entries& entries) {
  const Result<Launch> found = launch(entries);
  EXPECT_FALSE(found.ok());
  return found.status().text();
}

TEST(Launch, ReadsOpenMpi) {
  const Launch zero = good_launch(of_rank(kOpenMpi414, 0));
  const Launch one = good_launch(of_rank(kOpenMpi414, 1));
  EXPECT_EQ(one.launcher, "Open MPI");
  EXPECT_EQ(one.rank, 1u);
  EXPECT_EQ(one.rank_count, 2u);
  EXPECT_EQ(one.local_rank, 1u);
  EXPECT_EQ(one.local_count, 2u);
  EXPECT_EQ(zero.meeting_point, one.meeting_point);
  EXPECT_THAT(one.meeting_point, HasSubstr("1207238657"));
}

TEST(Launch, TellsTwoOpenMpiJobsApartByNumberAndByKey) {
  const Entries job = of_rank(kOpenMpi414, 0);
  const std::string meeting_point = good_launch(job).meeting_point;
  EXPECT_NE(good_launch(changed(job, "PMIX_NAMESPACE", "1207238658")).meeting_point, meeting_point);
  EXPECT_NE(good_launch(changed(job, "OMPI_MCA_orte_precondition_transports", "0-1")).meeting_point,
            meeting_point);
}

TEST(Launch, ReadsMpichAndNamesTheJobByTheProcessThatStartedIt) {
  const Launch zero = good_launch(of_rank(kMpich402, 0));
  const Launch one = good_launch(of_rank(kMpich402, 1));
  EXPECT_EQ(one.launcher, "MPICH (PMI)");
  EXPECT_EQ(one.rank, 1u);
  EXPECT_EQ(one.rank_count, 2u);
  EXPECT_EQ(one.local_rank, 1u);
  EXPECT_EQ(one.local_count, 2u);
  EXPECT_EQ(zero.meeting_point, one.meeting_point);
  EXPECT_THAT(one.meeting_point, HasSubstr("process " + std::to_string(getppid()) + " started"));
  EXPECT_THAT(good_launch(changed(of_rank(kMpich402, 0), "PMI_JOBID", "77.0")).meeting_point,
              HasSubstr("PMI_JOBID=77.0"));
}

TEST(Launch, ReadsSlurmWithTheCountsOfTheStepAndOfItsMachine) {
  const Launch found = good_launch(kSlurmRank4);
  EXPECT_EQ(found.launcher, "Slurm");
  EXPECT_EQ(found.rank, 4u);
  EXPECT_EQ(found.rank_count, 5u);
  EXPECT_EQ(found.local_rank, 1u);
  EXPECT_EQ(found.local_count, 2u);
  EXPECT_THAT(found.meeting_point, HasSubstr("SLURM_JOB_ID=8123"));
  EXPECT_NE(good_launch(changed(kSlurmRank4, "SLURM_STEP_ID", "3")).meeting_point,
            found.meeting_point);
  const Launch old = good_launch(changed(kSlurmRank4, "SLURM_STEP_NUM_TASKS", nullptr));
  EXPECT_EQ(old.rank_count, 16u);
}

TEST(Launch, ABatchScriptOfSlurmIsNoRank) {
  const std::string text = error_of(changed(kSlurmRank4, "SLURM_STEP_ID", nullptr));
  EXPECT_THAT(text, HasSubstr("set without SLURM_STEP_ID"));
}

TEST(Launch, ReadsTorchrunAndTellsRestartsApart) {
  const Launch found = good_launch(of_rank(kTorchrun, 3));
  EXPECT_EQ(found.launcher, "torchrun");
  EXPECT_EQ(found.rank, 3u);
  EXPECT_EQ(found.rank_count, 4u);
  EXPECT_EQ(found.local_rank, 3u);
  EXPECT_EQ(found.local_count, 4u);
  EXPECT_EQ(found.meeting_point, good_launch(of_rank(kTorchrun, 0)).meeting_point);
  for (const char* name :
       {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
    EXPECT_NE(good_launch(changed(of_rank(kTorchrun, 3), name, "7")).meeting_point,
              found.meeting_point)
        << name;
  }
}

TEST(Launch, ReadsItsOwnVariables) {
  const Launch found = good_launch(
      {"WEIR_RANK=5", "WEIR_SIZE=8", "WEIR_LOCAL_RANK=1", "WEIR_LOCAL_SIZE=4", "WEIR_ID=my job"});
  EXPECT_EQ(found.launcher, "weir");
  EXPECT_EQ(found.rank, 5u);
  EXPECT_EQ(found.rank_count, 8u);
  EXPECT_EQ(found.local_rank, 1u);
  EXPECT_EQ(found.local_count, 4u);
  EXPECT_EQ(found.meeting_point, "weir\nWEIR_ID=my job");
  const Launch alone = good_launch({"WEIR_RANK=5", "WEIR_SIZE=8"});
  EXPECT_EQ(alone.local_rank, 5u);
  EXPECT_EQ(alone.local_count, 8u);
  EXPECT_THAT(alone.meeting_point, HasSubstr("process " + std::to_string(getppid()) + " started"));
}

TEST(Launch, ReadsPmix) {
  const Launch found = good_launch({"PMIX_RANK=1", "PMIX_SIZE=3", "PMIX_NAMESPACE=prte-n1-77@1"});
  EXPECT_EQ(found.launcher, "PMIx");
  EXPECT_EQ(found.rank, 1u);
  EXPECT_EQ(found.rank_count, 3u);
  EXPECT_THAT(found.meeting_point, HasSubstr("prte-n1-77@1"));
}

TEST(Launch, PmixWithoutASizeLeavesTheTurnToSlurm) {
  Entries entries = kSlurmRank4;
  entries.push_back("PMIX_RANK=4");
  entries.push_back("PMIX_NAMESPACE=slurm.pmix.8123.2");
  EXPECT_EQ(good_launch(entries).launcher, "Slurm");
}

TEST(Launch, TheInnermostLauncherGoesFirst) {
  Entries all = of_rank(kOpenMpi414, 1);
  for (const Entries& more : {of_rank(kMpich402, 0), kSlurmRank4}) {
    all.insert(all.end(), more.begin(), more.end());
  }
  EXPECT_EQ(good_launch(all).launcher, "Open MPI");
  for (const std::string& entry : of_rank(kTorchrun, 2)) all.push_back(entry);
  EXPECT_EQ(good_launch(all).launcher, "torchrun");
  all.push_back("WEIR_RANK=0");
  all.push_back("WEIR_SIZE=1");
  EXPECT_EQ(good_launch(all).launcher, "weir");
}

TEST(Launch, TheIdOfTheUserNamesTheJobUnderAnyLauncher) {
  for (const Entries& entries :
       {of_rank(kOpenMpi414, 0), of_rank(kMpich402, 0), of_rank(kTorchrun, 0), kSlurmRank4}) {
    EXPECT_THAT(good_launch(changed(entries, "WEIR_ID", "x")).meeting_point,
                HasSubstr("\nWEIR_ID=x"));
  }
}

TEST(Launch, NothingFoundListsWhatWasLookedFor) {
  const Result<Launch> found = launch({"LANG=C", "PATH=/bin"});
  EXPECT_EQ(found.status().code(), Code::kInvalidUsage);
  for (const char* name : {"weir: WEIR_RANK and WEIR_SIZE", "torchrun: RANK and WORLD_SIZE",
                           "Open MPI: OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE",
                           "MPICH (PMI): PMI_RANK and PMI_SIZE", "PMIx: PMIX_RANK",
                           "Slurm: SLURM_PROCID and SLURM_STEP_NUM_TASKS or SLURM_NTASKS"}) {
    EXPECT_THAT(found.status().text(), HasSubstr(name));
  }
  EXPECT_THAT(found.status().text(), Not(HasSubstr("is set without")));
  EXPECT_EQ(launch_from_environment(nullptr).status().text(), found.status().text());
}

TEST(Launch, ASizeAloneIsMentionedButMeansNothing) {
  EXPECT_THAT(error_of({"WORLD_SIZE=4"}), HasSubstr("WORLD_SIZE is set without RANK."));
  Entries entries = of_rank(kMpich402, 1);
  entries.push_back("WORLD_SIZE=4");
  EXPECT_EQ(good_launch(entries).launcher, "MPICH (PMI)");
}

TEST(Launch, ARankWithoutASizeIsAnError) {
  EXPECT_EQ(error_of({"RANK=1"}), "RANK=1 is set and WORLD_SIZE is not");
  EXPECT_EQ(error_of({"WEIR_RANK=1"}), "WEIR_RANK=1 is set and WEIR_SIZE is not");
  EXPECT_EQ(error_of({"WEIR_SIZE=2"}), "WEIR_SIZE=2 is set and WEIR_RANK is not");
  EXPECT_EQ(error_of({"PMI_RANK=0", "PMI_SIZE="}), "PMI_RANK=0 is set and PMI_SIZE is not");
}

TEST(Launch, MalformedNumbersAreNamedWithTheirValue) {
  for (const char* value : {"-1", "+1", " 1", "1 ", "one", "0x1", "1.0", "2147483648",
                            "18446744073709551616", "99999999999999999999999999"}) {
    const std::string text = error_of({std::string("WEIR_RANK=") + value, "WEIR_SIZE=4"});
    EXPECT_THAT(text, HasSubstr(std::string("WEIR_RANK=") + value + " is not a whole number in"));
    EXPECT_THAT(error_of(changed(of_rank(kOpenMpi414, 0), "OMPI_COMM_WORLD_SIZE", value)),
                HasSubstr(std::string("OMPI_COMM_WORLD_SIZE=") + value));
    EXPECT_THAT(error_of(changed(of_rank(kMpich402, 0), "MPI_LOCALRANKID", value)),
                HasSubstr(std::string("MPI_LOCALRANKID=") + value));
  }
  EXPECT_THAT(error_of({"WEIR_RANK=0", "WEIR_SIZE=0"}), HasSubstr("WEIR_SIZE=0"));
}

TEST(Launch, ContradictionsNameBothSides) {
  EXPECT_EQ(error_of({"PMI_RANK=4", "PMI_SIZE=4"}),
            "PMI_RANK=4 is not below PMI_SIZE=4; ranks count from 0");
  EXPECT_EQ(error_of({"RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=3"}),
            "LOCAL_WORLD_SIZE=3 is above WORLD_SIZE=2");
  EXPECT_EQ(error_of({"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}),
            "LOCAL_RANK=2 is not below LOCAL_WORLD_SIZE=2");
  EXPECT_EQ(error_of({"RANK=0", "WORLD_SIZE=4", "LOCAL_RANK=4"}),
            "LOCAL_RANK=4 is not below WORLD_SIZE=4");
  EXPECT_EQ(error_of({"RANK=0", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=2"}),
            "LOCAL_WORLD_SIZE=2 is set and LOCAL_RANK is not");
  for (const char* list : {"3", "3,1", "3,0", "3,6", "x", "3,", "2(x", "2(x2"}) {
    EXPECT_THAT(error_of(changed(kSlurmRank4, "SLURM_STEP_TASKS_PER_NODE", list)),
                HasSubstr(std::string("SLURM_STEP_TASKS_PER_NODE=") + list))
        << list;
  }
}

TEST(Launch, SlurmsListOfTaskCountsIsRead) {
  EXPECT_EQ(slurm_tasks_of_node("4", 0), 4u);
  EXPECT_EQ(slurm_tasks_of_node("4(x2),3,8(x10)", 1), 4u);
  EXPECT_EQ(slurm_tasks_of_node("4(x2),3,8(x10)", 2), 3u);
  EXPECT_EQ(slurm_tasks_of_node("4(x2),3,8(x10)", 12), 8u);
  EXPECT_EQ(slurm_tasks_of_node("4(x2),3,8(x10)", 13), std::nullopt);
  for (const char* malformed : {"", ",", "4,", "4(x", "4(x)", "4(x2", "4x2", "-4", " 4", "4;5",
                                "4(x18446744073709551615),4(x2)", "99999999999999999999"}) {
    EXPECT_EQ(slurm_tasks_of_node(malformed, 0), std::nullopt) << malformed;
  }
}

TEST(Launch, EveryJobHasItsOwnSecret) {
  const Launch job = good_launch(of_rank(kTorchrun, 0));
  const Launch other = good_launch(changed(of_rank(kTorchrun, 0), "MASTER_PORT", "1"));
  const Launch peer = good_launch(of_rank(kTorchrun, 1));
  EXPECT_EQ(launch_secret(job).bytes, launch_secret(peer).bytes);
  EXPECT_NE(launch_secret(job).bytes, launch_secret(other).bytes);
}

TEST(Launch, TellsWhatTheRendezvousAsksFor) {
  const Launch torch = good_launch(of_rank(kTorchrun, 1));
  EXPECT_TRUE(torch.local_known);
  EXPECT_FALSE(torch.named_by_parent);
  EXPECT_EQ(torch.master_address, "localhost");
  EXPECT_EQ(torch.master_port, "41337");
  EXPECT_TRUE(torch.master_port_is_taken);
  EXPECT_FALSE(torch.pmix_rank_fits);

  const Launch mpi = good_launch(of_rank(kOpenMpi414, 1));
  EXPECT_TRUE(mpi.local_known);
  EXPECT_TRUE(mpi.pmix_rank_fits);
  EXPECT_FALSE(good_launch(changed(of_rank(kOpenMpi414, 1), "PMIX_RANK", "0")).pmix_rank_fits);

  const Launch bare = good_launch({"WEIR_RANK=0", "WEIR_SIZE=2"});
  EXPECT_FALSE(bare.local_known);
  EXPECT_TRUE(bare.named_by_parent);
  EXPECT_EQ(bare.master_address, "");
  EXPECT_FALSE(bare.master_port_is_taken);
}

TEST(LauncherProcess, IsTheNearestAncestorThatIsNotARank) {
  const Result<std::string> parent = describe_launcher_process("WEIR_TEST_NO_SUCH", "1");
  ASSERT_TRUE(parent.ok());
  EXPECT_THAT(parent.value(), HasSubstr("process " + std::to_string(getppid()) + " started"));
}

// ---- Under the launchers themselves
// ------------------------------------------------------------------

// Not a test of its own: what the launchers start.
TEST(LaunchedBy, DISABLED_Rank) {
  const Result<Launch> found = launch_from_environment(environ);
  ASSERT_TRUE(found.ok()) << found.status().text();
  auto joined = Bootstrap::join(launch_secret(found.value()), found.value().rank,
                                found.value().rank_count, now_ns() + 20'000'000'000);
  ASSERT_TRUE(joined.ok()) << joined.status().text();
  // Two jobs at once: each meets its own.
  const std::string job = getenv("WEIR_TEST_JOB");
  auto blobs = joined.value()->all_gather(job, now_ns() + 20'000'000'000);
  ASSERT_TRUE(blobs.ok()) << blobs.status().text();
  EXPECT_EQ(blobs.value(), std::vector<std::string>(3, job));
}

struct Ended {
  int exit_status = -1;
  std::string output;
};

Ended run(const std::string& command) {
  Ended ended;
  FILE* output = popen((command + " 2>&1 </dev/null").c_str(), "r");
  if (output == nullptr) return ended;
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof buffer, output)) > 0;) {
    ended.output.append(buffer, got);
  }
  const int status = pclose(output);
  if (WIFEXITED(status)) ended.exit_status = WEXITSTATUS(status);
  return ended;
}

Ended run_job(const std::string& launcher, const std::string& job, bool wrapped) {
  char self[4096] = {};
  if (readlink("/proc/self/exe", self, sizeof self - 1) <= 0) return {};
  std::string program = std::string("'") + self +
                        "' --gtest_also_run_disabled_tests --gtest_brief=1 "
                        "--gtest_filter=LaunchedBy.DISABLED_Rank";
  // The `:` keeps the shell from becoming the program.
  if (wrapped) program = "sh -c \"" + program + " && :\"";
  // Of its own: two mpirun of Open MPI that share one trip over each other when one ends.
  std::string directory = testing::TempDir() + "weir-launch-XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return {};
  Ended ended =
      run("TMPDIR=" + directory + " WEIR_TEST_JOB=" + job + " " + launcher + " -n 3 " + program);
  (void)run("rm -rf " + directory);
  return ended;
}

void expect_two_jobs_at_once_form(const std::string& program, const std::string& flags) {
  if (run("command -v " + program).exit_status != 0) {
    GTEST_SKIP() << program << " is not installed";
  }
  const std::string launcher = program + " " + flags;
  Ended first;
  std::thread other([&] { first = run_job(launcher, "first", true); });
  const Ended second = run_job(launcher, "second", false);
  other.join();
  EXPECT_EQ(first.exit_status, 0) << first.output;
  EXPECT_EQ(second.exit_status, 0) << second.output;
}

TEST(LaunchedBy, OpenMpi) {
  expect_two_jobs_at_once_form("mpirun.openmpi", "--allow-run-as-root --oversubscribe");
}

TEST(LaunchedBy, Mpich) { expect_two_jobs_at_once_form("mpirun.mpich", ""); }

}  // namespace
}  // namespace weir::comm
