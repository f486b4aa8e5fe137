// SPDX-License-Identifier: Apache-2.0
// Where the threads of an optimizer run: wherever the process may, or on the cores that are listed.
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "offload/optimizer/child.h"
#include "offload/optimizer/optimizer_support.h"

namespace weir::offload::test {
namespace {

std::set<int> cores_of(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::set<int> cores;
  if (::sched_getaffinity(thread, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.insert(core);
  return cores;
}

// Of this process, but for the kernel's own of io_uring.
std::set<pid_t> threads() {
  std::set<pid_t> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(entry.path() / "comm"), name);
    if (name.rfind("iou-", 0) != 0) all.insert(std::stoi(entry.path().filename().string()));
  }
  return all;
}

std::string text_of(const std::set<int>& cores) {
  std::string text;
  for (const int core : cores) text += (text.empty() ? "" : ",") + std::to_string(core);
  return "{" + text + "}";
}

// Creates an optimizer with two threads, takes a step and says where its threads run: "thread
// {0,1}" for each.
std::string run_one(const std::string& directory, const std::vector<int>& cores) {
  const std::set<pid_t> before = threads();
  Groups groups(1);
  groups[0].name = "w";
  groups[0].element_count = 50'000;
  OptimizerOptions options = small_options();
  options.thread_count = 2;
  options.cores = cores;
  if (!directory.empty()) options.directories = {directory};
  auto made = Optimizer::create(options, groups);
  if (!made.ok()) return made.status().text();
  Giver giver;
  if (!giver.give(*made.value(), groups, 1).ok()) return "no gradients";
  if (const Status status = made.value()->step({}, nullptr); !status.ok()) return status.text();
  std::string text;
  for (const pid_t thread : threads())
    if (before.count(thread) == 0) text += "thread " + text_of(cores_of(thread)) + "\n";
  return text;
}

std::string sorted(const std::string& text) {
  std::istringstream lines(text);
  std::multiset<std::string> all;
  for (std::string line; std::getline(lines, line);) all.insert(line);
  std::string ordered;
  for (const std::string& line : all) ordered += line + "\n";
  return ordered;
}

// One thread helps the caller. On drives two compute, and two that belong to the background scrub
// run wherever the process may.
std::string expected(const std::set<int>& cores, bool drives) {
  std::string text;
  for (int i = 0; i < (drives ? 3 : 1); ++i) text += "thread " + text_of(cores) + "\n";
  for (int i = 0; i < (drives ? 2 : 0); ++i) text += "thread " + text_of(cores_of(0)) + "\n";
  return sorted(text);
}

TEST(Cores, ThreadsOfTwoProcessesRunWhereverThoseMay) {
  for (const bool drives : {false, true}) {
    ScratchDirectory scratch;
    Child children[2];
    for (int i = 0; i < 2; ++i)
      children[i] = start_child(
          [&] { return run_one(drives ? scratch / std::to_string(i) : std::string(), {}); });
    for (const Child& child : children)
      EXPECT_EQ(sorted(what_it_says(child)), expected(cores_of(0), drives)) << drives;
  }
}

TEST(Cores, ThreadsRunOnTheCoresThatAreListed) {
  for (const int core : cores_of(0)) {
    for (const bool drives : {false, true}) {
      ScratchDirectory scratch;
      const Child child =
          start_child([&] { return run_one(drives ? scratch / "a" : std::string(), {core}); });
      EXPECT_EQ(sorted(what_it_says(child)), expected({core}, drives));
    }
  }
}

TEST(Cores, EachThreadHasItsOwnOfSeveral) {
  const std::set<int> all = cores_of(0);
  if (all.size() < 2) GTEST_SKIP() << "one core";
  const int first = *all.begin();
  const int second = *std::next(all.begin());
  const Child child = start_child([&] {
    ScratchDirectory scratch;
    return run_one(scratch / "a", {second, first});
  });
  std::string text = what_it_says(child);
  const auto count = [&](int core) {
    size_t found = 0;
    const std::string line = "thread " + text_of({core}) + "\n";
    for (size_t at = text.find(line); at != std::string::npos; at = text.find(line, at + 1))
      ++found;
    return found;
  };
  EXPECT_EQ(count(first), 2u) << text;  // the helper is thread 1, and one of two that compute
  EXPECT_EQ(count(second), 1u) << text;
}

TEST(Cores, OneOutsideOfTheProcesssIsAnErrorThatNamesIt) {
  const std::set<int> all = cores_of(0);
  const int first = *all.begin();
  for (const int outside : {-1, 4095, *all.rbegin()}) {
    if (outside == first) continue;
    const Child child = start_child([&] {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(first, &set);
      if (::sched_setaffinity(0, sizeof set, &set) != 0) return std::string("no affinity");
      return run_one("", {first, outside});
    });
    const std::string text = what_it_says(child);
    EXPECT_NE(text.find("core " + std::to_string(outside) + " is not among"), std::string::npos)
        << text;
    EXPECT_NE(text.find("(" + std::to_string(first) + ")"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace weir::offload::test
