// SPDX-License-Identifier: Apache-2.0
// How the ranks of a launched job learn where to meet: which way is taken, what is refused, files
// of jobs that were killed, PMIx under the launchers that are installed.
#include "core/comm/start/rendezvous.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "core/base/clock.h"
#include "core/comm/start/rendezvous_file.h"
#include "core/comm/start/rendezvous_pmix.h"
#include "core/comm/start/resolve.h"
#include "unit/comm/start/bootstrap_support.h"

// libpmix keeps a few strings of pmix_rte_init. Asked by LeakSanitizer where it is built in.
extern "C" __attribute__((visibility("default"))) const char*
__lsan_default_suppressions() {  // NOLINT: its name
  return "leak:libpmix.so\n";
}

namespace weir::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kSecretText = "fedcba9876543210fedcba9876543210";

using Entries = std::vector<std::pair<std::string, std::string>>;

// Runs `body` in a process with these variables and without those of the launcher of this test.
pid_t start_process(const Entries& entries, const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "PMIX_RANK", "PMIX_NAMESPACE",
                           "TORCHELASTIC_RUN_ID", "WEIR_RENDEZVOUS"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : entries) setenv(name.c_str(), value.c_str(), 1);
  body();
  std::fflush(nullptr);
  _exit(testing::Test::HasFailure() ? 1 : 0);
}

int end_of(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The index of a process that has ended, which `end_of` still finds.
size_t await_end_of_one(const std::vector<pid_t>& pids) {
  for (int i = 0; i < 20'000; ++i) {
    for (size_t k = 0; k < pids.size(); ++k) {
      siginfo_t ended{};
      const auto id = static_cast<id_t>(pids[k]);
      const int result = waitid(P_PID, id, &ended, WEXITED | WNOHANG | WNOWAIT);
      if (result == 0 && ended.si_pid == pids[k]) return k;
    }
    usleep(1000);
  }
  ADD_FAILURE() << "none has ended";
  return 0;
}

void in_a_process(const Entries& entries, const std::function<void()>& body) {
  EXPECT_EQ(end_of(start_process(entries, body)), 0);
}

Entries of_rank(int rank, int count, Entries more) {
  more.emplace_back("WEIR_RANK", std::to_string(rank));
  more.emplace_back("WEIR_SIZE", std::to_string(count));
  return more;
}

Result<Rendezvous> meet(uint64_t timeout_ms = 20'000) {
  const Result<Launch> launch = launch_from_environment(environ);
  if (!launch.ok()) return launch.status();
  return next_rendezvous(launch.value(), deadline_in_ms(timeout_ms));
}

// Meets as the environment says, and gathers.
void meet_and_gather() {
  const Result<Launch> launch = launch_from_environment(environ);
  ASSERT_TRUE(launch.ok()) << launch.status().text();
  Result<Rendezvous> rendezvous = next_rendezvous(launch.value(), deadline_in_ms(20'000));
  ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().text();
  auto joined =
      Bootstrap::join(rendezvous.value().secret, launch.value().rank, launch.value().rank_count,
                      deadline_in_ms(20'000), rendezvous.value().place);
  ASSERT_TRUE(joined.ok()) << joined.status().text();
  auto blobs =
      joined.value()->all_gather(std::to_string(launch.value().rank), deadline_in_ms(20'000));
  ASSERT_TRUE(blobs.ok()) << blobs.status().text();
  for (Rank rank = 0; rank < launch.value().rank_count; ++rank) {
    EXPECT_EQ(blobs.value()[rank], std::to_string(rank));
  }
}

// ---- Names of hosts

TEST(Resolve, TakesAddressesAsTheyAre) {
  const auto four = resolve("10.1.2.3", 0);
  ASSERT_TRUE(four.ok()) << four.status().text();
  EXPECT_EQ(net::to_string(four.value()[0]), "10.1.2.3");
  const auto six = resolve("fd00::1", 0);
  ASSERT_TRUE(six.ok()) << six.status().text();
  EXPECT_EQ(net::to_string(six.value()[0]), "fd00::1");
  EXPECT_EQ(resolve("0.0.0.0", 0).status().code(), Code::kInvalidArgument);
}

TEST(Resolve, FindsThisHost) {
  const auto local = resolve("localhost", deadline_in_ms(20'000));
  ASSERT_TRUE(local.ok()) << local.status().text();
  EXPECT_TRUE(local.value()[0].is_loopback());
}

TEST(Resolve, DoesNotWaitForAServiceThatIsSilent) {
  const uint64_t start_ns = now_ns();
  const auto result = resolve("slow.example", deadline_in_ms(100),
                              [](const std::string&, std::string*) -> std::vector<net::IpAddress> {
                                sleep_ns(600'000'000'000, UINT64_MAX);
                                return {};
                              });
  EXPECT_EQ(result.status().code(), Code::kTimeout);
  EXPECT_THAT(result.status().text(), HasSubstr("'slow.example'"));
  EXPECT_LT(static_cast<double>(now_ns() - start_ns) * 1e-9, kAtOnceSeconds);
}

TEST(Resolve, SaysWhatTheServiceSaid) {
  const auto result =
      resolve("no.example", deadline_in_ms(20'000), [](const std::string&, std::string* error) {
        *error = "no such thing";
        return std::vector<net::IpAddress>();
      });
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(result.status().text(), HasSubstr("no such thing"));
  for (const std::string& name : {std::string(), std::string("a b"), std::string(300, 'a')}) {
    EXPECT_EQ(resolve(name, 0).status().code(), Code::kInvalidArgument);
  }
}

// ---- Which way

TEST(Rendezvous, IsLocalWhereAllRanksAreOnThisMachine) {
  for (const Entries& local : {Entries{}, Entries{{"WEIR_LOCAL_SIZE", "2"}}}) {
    in_a_process(of_rank(0, 2, local), [] {
      const auto rendezvous = meet();
      ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().text();
      EXPECT_TRUE(rendezvous.value().place.empty());
      EXPECT_THAT(rendezvous.value().how, HasSubstr("local"));
      EXPECT_NE(meet().value().secret.bytes, rendezvous.value().secret.bytes) << "the next one";
    });
  }
}

TEST(Rendezvous, BetweenMachinesWithoutASecretSaysWhatToSet) {
  for (const Entries& more :
       {Entries{}, Entries{{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}}}) {
    Entries entries = of_rank(0, 4, more);
    entries.emplace_back("WEIR_LOCAL_RANK", "0");
    entries.emplace_back("WEIR_LOCAL_SIZE", "2");
    in_a_process(entries, [] {
      const auto rendezvous = meet();
      ASSERT_FALSE(rendezvous.ok());
      EXPECT_EQ(rendezvous.status().code(), Code::kInvalidUsage);
      for (const char* word : {"2 of the job's 4 ranks", "WEIR_SECRET_FILE", "MASTER_ADDR",
                               "WEIR_RENDEZVOUS=file:PATH", "PMIx"}) {
        EXPECT_THAT(rendezvous.status().text(), HasSubstr(word));
      }
    });
  }
}

TEST(Rendezvous, ByMasterIsTakenWithASecret) {
  Entries entries = of_rank(
      0, 4, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}, {"WEIR_SECRET", kSecretText}});
  in_a_process(entries, [] {
    const auto rendezvous = meet();
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().text();
    ASSERT_EQ(rendezvous.value().place.addresses.size(), 1u);
    EXPECT_EQ(net::to_string(rendezvous.value().place.addresses[0]), "10.0.0.1");
    EXPECT_EQ(rendezvous.value().place.port, 29500);
    EXPECT_THAT(rendezvous.value().how, HasSubstr("10.0.0.1"));
    EXPECT_THAT(rendezvous.value().how, HasSubstr("WEIR_SECRET"));
  });
  entries.emplace_back("TORCHELASTIC_RUN_ID", "none");
  in_a_process(entries, [] {
    const auto rendezvous = meet();
    ASSERT_TRUE(rendezvous.ok()) << rendezvous.status().text();
    EXPECT_EQ(rendezvous.value().place.port, 0) << "torchrun listens there";
    EXPECT_THAT(rendezvous.value().how, HasSubstr("29500 is used by torchrun's store"));
  });
}

TEST(Rendezvous, ByMasterRefusesWhatCannotWork) {
  const struct {
    Entries entries;
    const char* words;
  } cases[] = {
      {{{"WEIR_RENDEZVOUS", "master"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1"}},
       "WEIR_SECRET_FILE"},
      {{{"WEIR_RENDEZVOUS", "master"}, {"WEIR_SECRET", kSecretText}},
       "needs MASTER_ADDR and MASTER_PORT, which are not set"},
      {{{"WEIR_RENDEZVOUS", "master"}, {"MASTER_PORT", "1"}}, "needs MASTER_ADDR, which is not"},
      {{{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "70000"}, {"WEIR_SECRET", kSecretText}},
       "MASTER_PORT=70000"},
      {{{"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", "1"},
        {"WEIR_SECRET", kSecretText},
        {"WEIR_LOCAL_RANK", "0"},
        {"WEIR_LOCAL_SIZE", "1"}},
       "is a loopback address"},
      {{{"WEIR_RENDEZVOUS", "postcard"}}, "must be local, master, pmix"},
      {{{"WEIR_RENDEZVOUS", "file:"}}, "must be local, master, pmix"},
      {{{"WEIR_RENDEZVOUS", "pmix"}}, "PMIX_NAMESPACE is not set"},
      {{{"WEIR_SECRET", "short"}}, "5 bytes"},
  };
  for (const auto& one : cases) {
    in_a_process(of_rank(0, 2, one.entries), [&] {
      const auto rendezvous = meet();
      ASSERT_FALSE(rendezvous.ok()) << one.words;
      EXPECT_THAT(rendezvous.status().text(), HasSubstr(one.words));
      EXPECT_THAT(rendezvous.status().text(), HasSubstr("rank 0 of 2 (weir)"));
      EXPECT_THAT(rendezvous.status().text(), Not(HasSubstr(kSecretText)));
    });
  }
}

TEST(Rendezvous, WithAnotherSecretDoesNotMeet) {
  const auto meeting_with = [](const std::string& secret) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    in_a_process(of_rank(0, 2, {{"WEIR_SECRET", secret}, {"WEIR_ID", "one job"}}), [&] {
      const auto rendezvous = meet();
      ASSERT_TRUE(rendezvous.ok());
      EXPECT_THAT(rendezvous.value().remedy, HasSubstr("the secret of this one"));
      const auto& bytes = rendezvous.value().secret.bytes;
      ASSERT_EQ(write(ends[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    });
    std::string bytes(32, '\0');
    EXPECT_EQ(read(ends[0], bytes.data(), bytes.size()), 32);
    close(ends[0]);
    close(ends[1]);
    return bytes;
  };
  EXPECT_EQ(meeting_with(kSecretText), meeting_with(kSecretText));
  EXPECT_NE(meeting_with(kSecretText), meeting_with(kSecretText + "x"));
}

// ---- Files

class RendezvousFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "weir-meet-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/notice";
  }
  void TearDown() override {
    unlink(path_.c_str());
    EXPECT_EQ(rmdir(folder_.c_str()), 0) << "something was left in " << folder_;
  }
  Entries entries(int rank, int count, Entries more = {}) const {
    more.emplace_back("WEIR_RENDEZVOUS", "file:" + path_);
    return of_rank(rank, count, std::move(more));
  }
  bool exists() const { return access(path_.c_str(), F_OK) == 0; }
  void write_file(const std::string& bytes, mode_t mode = 0600) const {
    unlink(path_.c_str());
    std::ofstream(path_, std::ios::binary) << bytes;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }
  void await_file() const {
    for (int i = 0; i < 20'000 && !exists(); ++i) usleep(1000);
    ASSERT_TRUE(exists());
  }
  static Notice some_notice() {
    Notice notice;
    notice.job = secret_from_text("a job");
    notice.secret = fresh_secret();
    notice.pid = 1234;
    notice.host = "node7";
    return notice;
  }

  std::string folder_;
  std::string path_;
};

TEST_F(RendezvousFile, NoticePassesThroughItsBytes) {
  Notice notice = some_notice();
  notice.place.host = 77;
  Notice read;
  ASSERT_TRUE(unpack(pack(notice), &read));
  EXPECT_EQ(read.secret.bytes, notice.secret.bytes);
  EXPECT_EQ(read.job.bytes, notice.job.bytes);
  EXPECT_EQ(read.place.host, 77u);
  EXPECT_EQ(read.pid, 1234);
  EXPECT_EQ(read.host, "node7");
  EXPECT_FALSE(unpack(pack(notice).substr(1), &read));
  EXPECT_FALSE(unpack(pack(notice) + "x", &read));
}

TEST_F(RendezvousFile, OfSomebodyElseIsRefused) {
  Notice notice;
  bool found = true;
  ASSERT_TRUE(read_notice(path_, &notice, &found).ok());
  EXPECT_FALSE(found);
  write_file(pack(some_notice()), 0644);
  EXPECT_THAT(read_notice(path_, &notice, &found).text(), HasSubstr("mode 0644"));
  write_file("my thesis, the only copy, which nobody may ever overwrite");
  EXPECT_THAT(read_notice(path_, &notice, &found).text(), HasSubstr("was not written by Weir"));
  EXPECT_FALSE(PostedNotice::post(path_, some_notice()).ok());
  EXPECT_TRUE(exists()) << "not removed";
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(symlink("/dev/null", path_.c_str()), 0);
  EXPECT_THAT(read_notice(path_, &notice, &found).text(), HasSubstr("symbolic link"));
  if (geteuid() == 0) {
    write_file(pack(some_notice()));
    ASSERT_EQ(chown(path_.c_str(), 65534, 65534), 0);
    EXPECT_THAT(read_notice(path_, &notice, &found).text(), HasSubstr("belongs to user 65534"));
  }
  // One that is being written is none yet.
  write_file(pack(some_notice()).substr(0, 100));
  EXPECT_TRUE(read_notice(path_, &notice, &found).ok());
  EXPECT_FALSE(found);
}

TEST_F(RendezvousFile, RanksMeetAndTheFileGoes) {
  std::vector<pid_t> pids;
  for (int rank = 4; rank >= 0; --rank) {
    pids.push_back(start_process(entries(rank, 5), [] {
      meet_and_gather();
      meet_and_gather();  // a second communicator needs no file
    }));
  }
  for (const pid_t pid : pids) EXPECT_EQ(end_of(pid), 0);
  EXPECT_FALSE(exists());
}

TEST_F(RendezvousFile, InAFolderThatDoesNotExistIsAnErrorOnEveryRank) {
  for (const int rank : {0, 1}) {
    in_a_process(of_rank(rank, 2, {{"WEIR_RENDEZVOUS", "file:" + folder_ + "/none/notice"}}), [&] {
      const uint64_t began_ns = now_ns();
      const auto rendezvous = meet();
      EXPECT_EQ(rendezvous.status().code(), Code::kSystem);
      EXPECT_THAT(rendezvous.status().text(), HasSubstr("/none/notice"));
      EXPECT_LT(now_ns() - began_ns, 10'000'000'000u);
    });
  }
}

TEST_F(RendezvousFile, WithAJobSecretMeetsOnlyThoseWhoHaveIt) {
  std::vector<pid_t> pids;
  for (int rank = 0; rank < 3; ++rank) {
    pids.push_back(
        start_process(entries(rank, 3, {{"WEIR_SECRET", kSecretText}}), meet_and_gather));
  }
  for (const pid_t pid : pids) EXPECT_EQ(end_of(pid), 0);
  pids.clear();
  for (int rank = 0; rank < 3; ++rank) {
    const std::string secret = kSecretText + (rank == 2 ? "x" : "");
    pids.push_back(start_process(entries(rank, 3, {{"WEIR_SECRET", secret}}), [] {
      const auto rendezvous = meet();
      ASSERT_FALSE(rendezvous.ok());
      EXPECT_EQ(rendezvous.status().code(), Code::kRefused);
      EXPECT_THAT(rendezvous.status().text(),
                  HasSubstr("ranks 0 and 2 have different job secrets"));
    }));
  }
  for (const pid_t pid : pids) EXPECT_EQ(end_of(pid), 0);
}

TEST_F(RendezvousFile, OfAKilledJobIsToldFromALiveOne) {
  const pid_t killed = start_process(entries(0, 2), [] { (void)meet(); });
  await_file();
  kill(killed, SIGKILL);
  EXPECT_EQ(end_of(killed), 128 + SIGKILL);
  ASSERT_TRUE(exists());
  struct stat before {};
  ASSERT_EQ(stat(path_.c_str(), &before), 0);
  EXPECT_EQ(before.st_mode & 07777, 0600u);
  // Rank 1 reads the old file first, and finds the new one when it is there.
  const pid_t one = start_process(entries(1, 2), meet_and_gather);
  usleep(100'000);
  const pid_t zero = start_process(entries(0, 2), meet_and_gather);
  EXPECT_EQ(end_of(one), 0);
  EXPECT_EQ(end_of(zero), 0);
  EXPECT_FALSE(exists());
}

TEST_F(RendezvousFile, OfALiveJobIsNotTaken) {
  const pid_t waiting = start_process(entries(0, 2), meet_and_gather);
  await_file();
  usleep(200'000);  // until its door is open
  in_a_process(entries(0, 2), [&] {
    const auto rendezvous = meet();
    ASSERT_FALSE(rendezvous.ok());
    EXPECT_EQ(rendezvous.status().code(), Code::kRefused);
    EXPECT_THAT(rendezvous.status().text(),
                HasSubstr("process " + std::to_string(waiting) + " on host"));
  });
  const pid_t one = start_process(entries(1, 2), meet_and_gather);
  EXPECT_EQ(end_of(one), 0);
  EXPECT_EQ(end_of(waiting), 0);
}

// Both find no file, or one whose writer does not listen yet: one job starts, the other is refused.
TEST_F(RendezvousFile, OfTwoJobsThatStartTogetherOneIsRefused) {
  for (int round = 0; round < 3; ++round) {
    std::vector<pid_t> pids;
    for (const char* job : {"first", "second"}) {
      pids.push_back(start_process(entries(0, 2, {{"WEIR_ID", job}}), [] {
        const auto rendezvous = meet(20'000);
        if (rendezvous.ok()) _exit(50);
        EXPECT_EQ(rendezvous.status().code(), Code::kRefused) << rendezvous.status().text();
        EXPECT_THAT(rendezvous.status().text(), HasSubstr("give every job a path of its own"));
      }));
    }
    // The refused job first: one that is complete leaves the path to others.
    const size_t refused = await_end_of_one(pids);
    for (const size_t job : {refused, 1 - refused}) {
      const pid_t other =
          start_process(entries(1, 2, {{"WEIR_ID", job == 0 ? "first" : "second"}}), [&] {
            const auto rendezvous = meet(job == refused ? 1000 : 20'000);
            if (rendezvous.ok()) _exit(50);
            EXPECT_THAT(rendezvous.status().text(), HasSubstr("belongs to another job"));
          });
      EXPECT_EQ(end_of(other), job == refused ? 0 : 50);
      EXPECT_EQ(end_of(pids[job]), job == refused ? 0 : 50);
    }
  }
}

TEST_F(RendezvousFile, ThatIsReplacedWhileRanksAreMissingEndsTheWait) {
  const pid_t waiting = start_process(entries(0, 2), [] {
    const auto rendezvous = meet();
    EXPECT_EQ(rendezvous.status().code(), Code::kRefused) << rendezvous.status().text();
    EXPECT_THAT(rendezvous.status().text(), HasSubstr("was removed or replaced"));
  });
  await_file();
  unlink(path_.c_str());
  EXPECT_EQ(end_of(waiting), 0);
}

TEST_F(RendezvousFile, OfAnotherJobIsNotFollowed) {
  const pid_t waiting =
      start_process(entries(0, 2, {{"WEIR_ID", "first job"}}), [] { (void)meet(); });
  await_file();
  in_a_process(entries(1, 2, {{"WEIR_ID", "second job"}}), [] {
    const auto rendezvous = meet(300);
    ASSERT_FALSE(rendezvous.ok());
    EXPECT_EQ(rendezvous.status().code(), Code::kTimeout);
    EXPECT_THAT(rendezvous.status().text(),
                HasSubstr("the file that is or was there belongs to another job"));
  });
  kill(waiting, SIGKILL);
  (void)end_of(waiting);
}

TEST_F(RendezvousFile, IsRemovedWhenRanksDoNotCome) {
  in_a_process(entries(0, 2), [] {
    const auto rendezvous = meet(300);
    ASSERT_FALSE(rendezvous.ok());
    EXPECT_THAT(rendezvous.status().text(), HasSubstr("rank 1 of 2 has not joined"));
  });
  EXPECT_FALSE(exists());
  in_a_process(entries(1, 2), [] {
    EXPECT_THAT(meet(100).status().text(), HasSubstr("rank 0 of 2 has not written"));
  });
}

// ---- PMIx

// Not a test of its own: what the launchers start.
TEST(RendezvousBy, DISABLED_Rank) {
  meet_and_gather();
  meet_and_gather();
}

std::string output_of(const std::string& command, int* exit_status) {
  std::string output;
  FILE* pipe = popen((command + " 2>&1 </dev/null").c_str(), "r");
  if (pipe == nullptr) return output;
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, got);
  const int status = pclose(pipe);
  *exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

void expect_pmix_under(const std::string& program, const std::string& flags) {
  int status = 0;
  (void)output_of("command -v " + program, &status);
  if (status != 0) GTEST_SKIP() << program << " is not installed";
  if (why_no_pmix().find("this build") == 0) GTEST_SKIP() << why_no_pmix();
  char self[4096] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
  std::string folder = testing::TempDir() + "weir-pmix-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string output = output_of("TMPDIR=" + folder + " WEIR_LOG=info WEIR_RENDEZVOUS=pmix " +
                                           program + " " + flags + " -n 4 '" + self +
                                           "' --gtest_also_run_disabled_tests --gtest_brief=1 "
                                           "--gtest_filter=RendezvousBy.DISABLED_Rank",
                                       &status);
  EXPECT_EQ(status, 0) << output;
  EXPECT_THAT(output, HasSubstr("rendezvous: pmix"));
  (void)output_of("rm -rf " + folder, &status);
}

TEST(RendezvousBy, PmixUnderOpenMpi) {
  expect_pmix_under("mpirun.openmpi", "--allow-run-as-root --oversubscribe");
}

TEST(RendezvousBy, PmixUnderPrterun) {
  expect_pmix_under("prterun", "--allow-run-as-root --map-by :oversubscribe");
}

}  // namespace
}  // namespace weir::comm
