// SPDX-License-Identifier: Apache-2.0
// The job's secret: where it may come from, what is refused, and that nothing of it stays behind.
#include "core/comm/start/job_secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>

#include "core/base/clock.h"
#include "unit/comm/start/bootstrap_support.h"

namespace weir::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

const std::string kText = "0123456789abcdef0123456789abcdef-the-secret";

// A folder of its own for each test.
class JobSecretTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "weir-secret-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    for (const std::string& path : made_) unlink(path.c_str());
    rmdir(folder_.c_str());
  }
  std::string path(const std::string& name) {
    made_.push_back(folder_ + "/" + name);
    return made_.back();
  }
  std::string file(const std::string& text, mode_t mode = 0600) {
    const std::string made = path("secret");
    unlink(made.c_str());
    std::ofstream(made) << text;
    EXPECT_EQ(chmod(made.c_str(), mode), 0);
    return made;
  }

 private:
  std::string folder_;
  std::vector<std::string> made_;
};

void expect_refused(const Result<Secret>& result, Code code, const std::string& words) {
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), code) << result.status().text();
  EXPECT_THAT(result.status().text(), HasSubstr(words));
  EXPECT_THAT(result.status().text(), Not(HasSubstr(kText.substr(0, 8))));
}

TEST_F(JobSecretTest, OfAFileIsThatOfItsTextWithoutTheLineEnd) {
  const Result<Secret> plain = secret_from_file(file(kText));
  ASSERT_TRUE(plain.ok()) << plain.status().text();
  for (const char* end : {"\n", "\r\n"}) {
    const Result<Secret> with_end = secret_from_file(file(kText + end));
    ASSERT_TRUE(with_end.ok());
    EXPECT_EQ(with_end.value().bytes, plain.value().bytes);
  }
  EXPECT_NE(secret_from_file(file(kText + "\n\n")).value().bytes, plain.value().bytes);
  EXPECT_NE(secret_from_file(file(kText + "x")).value().bytes, plain.value().bytes);
}

TEST_F(JobSecretTest, OfAFileThatOthersMayReadOrWriteIsRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0610, 0777}) {
    expect_refused(secret_from_file(file(kText, mode)), Code::kRefused, "0600");
  }
  EXPECT_TRUE(secret_from_file(file(kText, 0400)).ok());
}

TEST_F(JobSecretTest, OfALinkFollowsTheSameRules) {
  const std::string link = path("link");
  ASSERT_EQ(symlink(file(kText).c_str(), link.c_str()), 0);
  EXPECT_TRUE(secret_from_file(link).ok());
  chmod((link.substr(0, link.rfind('/')) + "/secret").c_str(), 0644);
  expect_refused(secret_from_file(link), Code::kRefused, "mode 0644");
  if (geteuid() != 0) GTEST_SKIP() << "the rest needs root, to give files to another user";
  ASSERT_EQ(chmod((link.substr(0, link.rfind('/')) + "/secret").c_str(), 0600), 0);
  ASSERT_EQ(lchown(link.c_str(), 65534, 65534), 0);
  expect_refused(secret_from_file(link), Code::kRefused,
                 "symbolic link that belongs to user 65534");
  ASSERT_EQ(lchown(link.c_str(), 0, 0), 0);
  ASSERT_EQ(chown(link.c_str(), 65534, 65534), 0);
  expect_refused(secret_from_file(link), Code::kRefused, "belongs to user 65534");
}

TEST_F(JobSecretTest, ThatIsNoRegularFileIsRefused) {
  expect_refused(secret_from_file(testing::TempDir()), Code::kRefused, "not a regular file");
  const std::string fifo = path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  expect_refused(secret_from_file(fifo), Code::kRefused, "not a regular file");
  expect_refused(secret_from_file(path("none")), Code::kSystem, "No such file");
}

TEST_F(JobSecretTest, ThatIsTooShortOrTooLongIsRefused) {
  expect_refused(secret_from_file(file("")), Code::kInvalidArgument, "0 bytes");
  expect_refused(secret_from_file(file(std::string(31, 'x') + "\n")), Code::kInvalidArgument,
                 "31 bytes");
  EXPECT_TRUE(secret_from_file(file(std::string(kJobSecretBytesMin, 'x'))).ok());
  EXPECT_TRUE(secret_from_file(file(std::string(kJobSecretBytesMax, 'x') + "\r\n")).ok());
  expect_refused(secret_from_file(file(std::string(kJobSecretBytesMax + 1, 'x'))),
                 Code::kInvalidArgument, "more than 4096");
  expect_refused(secret_from_file(file(std::string(1 << 20, 'x'))), Code::kInvalidArgument,
                 "more than 4096");
}

TEST_F(JobSecretTest, OfADescriptorIsThatOfTheSameFile) {
  const std::string name = file(kText + "\n");
  const Secret expected = secret_from_file(name).value();
  const int fd = open(name.c_str(), O_RDONLY);
  // Ranks that share a descriptor share its offset.
  ASSERT_EQ(lseek(fd, 5, SEEK_SET), 5);
  const int other = dup(fd);
  EXPECT_EQ(secret_from_descriptor(fd, deadline_in_ms(5'000)).value().bytes, expected.bytes);
  EXPECT_EQ(fcntl(fd, F_GETFD), -1) << "closed after use";
  EXPECT_EQ(secret_from_descriptor(other, deadline_in_ms(5'000)).value().bytes, expected.bytes);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], kText.data(), kText.size()), static_cast<ssize_t>(kText.size()));
  close(ends[1]);
  EXPECT_EQ(secret_from_descriptor(ends[0], deadline_in_ms(5'000)).value().bytes, expected.bytes);
}

TEST_F(JobSecretTest, OfAPipeThatIsNeverClosedTimesOut) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], kText.data(), kText.size()), static_cast<ssize_t>(kText.size()));
  expect_refused(secret_from_descriptor(ends[0], deadline_in_ms(50)), Code::kTimeout,
                 "close the write end");
  close(ends[1]);
}

TEST_F(JobSecretTest, OfADescriptorThatIsNotOpenSaysSo) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  close(ends[1]);
  expect_refused(secret_from_descriptor(ends[0], 0), Code::kInvalidArgument, "not open");
  const int folder = open("/", O_RDONLY | O_DIRECTORY);
  expect_refused(secret_from_descriptor(folder, 0), Code::kInvalidArgument, "neither a file nor");
}

// The process keeps what it read, so each of these has a process of its own.
void in_a_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
}

std::string read_all(const char* name) {
  std::ifstream file(name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<JobSecret> good_secret() {
  Result<std::optional<JobSecret>> secret = job_secret(deadline_in_ms(5'000));
  EXPECT_TRUE(secret.ok()) << secret.status().text();
  return secret.ok() ? secret.take() : std::nullopt;
}

TEST_F(JobSecretTest, IsNothingWhereNoneIsSet) {
  in_a_child([] { EXPECT_FALSE(good_secret().has_value()); });
}

TEST_F(JobSecretTest, OfTheEnvironmentIsUnsetAndKept) {
  const Secret expected = secret_from_file(file(kText)).value();
  in_a_child([&] {
    setenv("WEIR_SECRET", kText.c_str(), 1);
    const auto first = good_secret();
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->secret.bytes, expected.bytes);
    EXPECT_EQ(first->source, "WEIR_SECRET");
    EXPECT_EQ(getenv("WEIR_SECRET"), nullptr);
    const auto second = good_secret();
    ASSERT_TRUE(second.has_value());
    EXPECT_EQ(second->secret.bytes, expected.bytes);
  });
}

// Not a test of its own: what the next one executes, since only exec fills /proc/self/environ.
TEST_F(JobSecretTest, DISABLED_ExecutedRank) {
  ASSERT_THAT(read_all("/proc/self/environ"), HasSubstr(kText));
  ASSERT_TRUE(good_secret().has_value());
  EXPECT_THAT(read_all("/proc/self/environ"), Not(HasSubstr(kText.substr(0, 8))));
}

TEST_F(JobSecretTest, OfTheEnvironmentIsNotLeftWhereProcShowsIt) {
  in_a_child([] {
    setenv("WEIR_SECRET", kText.c_str(), 1);
    execl("/proc/self/exe", "job_secret_test", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
          "--gtest_filter=JobSecretTest.DISABLED_ExecutedRank", static_cast<const char*>(nullptr));
    _exit(127);
  });
}

TEST_F(JobSecretTest, IsTakenFromTheSafestPlaceThatIsSet) {
  const std::string name = file(kText);
  in_a_child([&] {
    setenv("WEIR_SECRET", std::string(40, 'e').c_str(), 1);
    setenv("WEIR_SECRET_FILE", name.c_str(), 1);
    EXPECT_EQ(good_secret()->source, "WEIR_SECRET_FILE");
    EXPECT_EQ(getenv("WEIR_SECRET"), nullptr) << "unset all the same";
    // What was read is kept, also when the file goes.
    ASSERT_EQ(unlink(name.c_str()), 0);
    EXPECT_EQ(good_secret()->source, "WEIR_SECRET_FILE");
    const int fd = memfd_create("secret", 0);
    const std::string text(50, 'd');
    ASSERT_EQ(write(fd, text.data(), text.size()), 50);
    setenv("WEIR_SECRET_FD", std::to_string(fd).c_str(), 1);
    EXPECT_EQ(good_secret()->source, "WEIR_SECRET_FD");
    EXPECT_EQ(getenv("WEIR_SECRET_FD"), nullptr);
  });
}

TEST_F(JobSecretTest, ABadSourceIsAnErrorAndNoOtherIsTried) {
  in_a_child([] {
    setenv("WEIR_SECRET", kText.c_str(), 1);
    // Somebody took the variable for that of the secret itself.
    setenv("WEIR_SECRET_FD", (kText + "!").c_str(), 1);
    const auto secret = job_secret(deadline_in_ms(5'000));
    ASSERT_FALSE(secret.ok());
    EXPECT_THAT(secret.status().text(), HasSubstr("WEIR_SECRET_FD"));
    EXPECT_THAT(secret.status().text(), Not(HasSubstr(kText.substr(0, 8))));
  });
}

}  // namespace
}  // namespace weir::comm
