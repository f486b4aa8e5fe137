// SPDX-License-Identifier: Apache-2.0
// The include rule of docs/architecture.md.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <regex>

#include "tree/tree_files.h"

namespace weir::tree {
namespace {

// "src/core/topo/x.h" or "core/topo/x.h" -> "topo"; "" elsewhere.
std::string core_folder_of(std::string path) {
  if (starts_with(path, "src/")) path = path.substr(4);
  if (!starts_with(path, "core/")) return "";
  path = path.substr(5);
  const size_t slash = path.find('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// The folders that each folder of the core may include besides itself. The first seven are the
// chain; `plugin` (loading transports), `control` (what ranks say beside the data) and `sim`
// (running programs on a virtual clock) stand beside it.
// Everything may include `src/net`, `src/cuda` and `src/output`, which include only themselves.
const std::map<std::string, std::vector<std::string>> kMayInclude = {
    {"base", {}},
    {"topo", {"base"}},
    {"graph", {"base", "topo"}},
    {"sched", {"base", "topo"}},
    {"algo", {"base", "topo", "graph", "sched"}},
    {"cost", {"base", "topo", "graph", "sched", "algo"}},
    {"engine", {"base", "topo", "graph", "sched", "algo", "cost", "plugin"}},
    {"comm", {"base", "topo", "graph", "sched", "algo", "cost", "engine", "plugin", "control"}},
    {"control", {"base"}},
    {"plugin", {"base"}},
    {"sim", {"base", "topo", "graph", "sched", "algo", "cost"}},
};

// What is wrong with `include` in `file`, or "".
std::string broken_rule(const std::string& file, const std::string& include) {
  const std::string from = core_folder_of(file);
  const std::string to = core_folder_of(include);
  if (!from.empty()) {
    const auto rule = kMayInclude.find(from);
    if (rule == kMayInclude.end()) return "src/core/" + from + " has no place in the include rule";
    if (starts_with(include, "weir/weir.h") && from == "sched") return "sched needs no C API";
    // The registry lists the built-in transports by hand.
    if (starts_with(include, "plugins/") && from != "plugin")
      return "src/core/" + from + " knows no transport";
    if (to.empty() || to == from) return "";
    const auto& allowed = rule->second;
    if (std::find(allowed.begin(), allowed.end(), to) == allowed.end())
      return "src/core/" + from + " stands below src/core/" + to;
    return "";
  }
  if (starts_with(file, "src/net/")) {
    const bool ours =
        !to.empty() || starts_with(include, "plugins/") || starts_with(include, "weir/");
    return ours ? "src/net stands below everything" : "";
  }
  if (starts_with(file, "src/cuda/")) {
    const bool own_or_system =
        starts_with(include, "cuda/") || include.find('/') == std::string::npos;
    return own_or_system ? "" : "src/cuda stands below everything";
  }
  if (starts_with(file, "src/output/")) {
    const bool ours = !to.empty() || starts_with(include, "plugins/") ||
                      starts_with(include, "weir/") || starts_with(include, "net/");
    return ours ? "src/output stands below everything" : "";
  }
  if (starts_with(file, "src/plugins/")) {
    if (!to.empty()) return "a transport includes nothing of the core: weir/plugin.h is enough";
    const size_t slash = file.find('/', 12);
    if (slash == std::string::npos) return "";  // the list of the built-in transports
    // What the hooks share.
    if (starts_with(file, "src/plugins/hook_") && starts_with(include, "plugins/hook/")) return "";
    // What transports with one-sided operations share: it is none, and includes none.
    if (starts_with(include, "plugins/remote/")) return "";
    // What the message networks and the hook over two of them share: likewise.
    if (starts_with(include, "plugins/message/")) return "";
    // What all of them ask of a configuration: likewise.
    if (starts_with(include, "plugins/common/")) return "";
    const std::string own = file.substr(4, slash - 4 + 1);  // "plugins/<t>/"
    if (starts_with(include, "plugins/") && !starts_with(include, own))
      return "a transport knows no other transport";
    return "";
  }
  return "";
}

TEST(IncludeRule, EveryIncludeRunsDownwards) {
  for (const std::string& path : files()) {
    if (!is_source(path) || !starts_with(path, "src/")) continue;
    for (const Include& include : includes_of(read(path))) {
      const std::string broken = broken_rule(path, include.path);
      EXPECT_EQ(broken, "") << path << ":" << include.line << " includes " << include.path;
    }
  }
}

TEST(IncludeRule, TheRuleRefusesWhatItMust) {
  EXPECT_NE(broken_rule("src/core/base/x.cc", "core/topo/topology.h"), "");
  EXPECT_NE(broken_rule("src/core/algo/ring.cc", "core/engine/plan.h"), "");
  EXPECT_NE(broken_rule("src/core/sched/x.cc", "plugins/shm/shm.h"), "");
  EXPECT_NE(broken_rule("src/plugins/shm/shm.cc", "core/base/log.h"), "");
  EXPECT_NE(broken_rule("src/plugins/shm/shm.cc", "plugins/tcp/tcp.h"), "");
  EXPECT_NE(broken_rule("src/core/unheard_of/x.cc", "core/base/log.h"), "");
  EXPECT_EQ(broken_rule("src/plugins/shm/shm.cc", "plugins/shm/ring.h"), "");
  EXPECT_EQ(broken_rule("src/plugins/ucx/one_sided.cc", "plugins/remote/key.h"), "");
  EXPECT_EQ(broken_rule("src/plugins/ucx/instance.h", "plugins/message/control.h"), "");
  EXPECT_NE(broken_rule("src/plugins/message/control.cc", "plugins/ucx/flow.h"), "");
  EXPECT_NE(broken_rule("src/plugins/remote/key.cc", "plugins/ucx/flow.h"), "");
  EXPECT_NE(broken_rule("src/plugins/remote/key.cc", "core/base/log.h"), "");
  EXPECT_EQ(broken_rule("src/plugins/shm/shm.cc", "weir/plugin.h"), "");
  EXPECT_NE(broken_rule("src/net/auth.cc", "core/base/log.h"), "");
  EXPECT_EQ(broken_rule("src/plugins/tcp/tcp.cc", "net/auth.h"), "");
  EXPECT_NE(broken_rule("src/cuda/driver_table.cc", "core/base/log.h"), "");
  EXPECT_NE(broken_rule("src/cuda/driver_table.cc", "nccl/outcome.h"), "");
  EXPECT_NE(broken_rule("src/output/chrome_trace.cc", "core/base/status.h"), "");
  EXPECT_EQ(broken_rule("src/plugins/hook_trace/trace.cc", "output/chrome_trace.h"), "");
  EXPECT_EQ(broken_rule("src/nccl/cuda/device_query.cc", "cuda/driver_table.h"), "");
  EXPECT_EQ(broken_rule("src/core/comm/x.cc", "core/engine/plan.h"), "");
}

TEST(IncludeRule, SchedulesAndAlgorithmsMentionNoTransport) {
  const std::regex transport("\\b(shm|tcp|ucx|ofi|nccl|cma|memfd|mmap|socket|verbs|plugin)\\b",
                             std::regex::icase);
  for (const std::string& path : files()) {
    const std::string folder = core_folder_of(path);
    if ((folder != "sched" && folder != "algo") || !is_source(path)) continue;
    int number = 0;
    for (const std::string& line : lines_of(code_of(read(path)))) {
      ++number;
      EXPECT_FALSE(std::regex_search(line, transport)) << path << ":" << number << ": " << line;
    }
  }
}

TEST(IncludeRule, ExamplesNeedOnlyThePublicHeaders) {
  for (const std::string& path : files()) {
    if (!starts_with(path, "examples/") || !is_source(path)) continue;
    for (const Include& include : includes_of(read(path)))
      EXPECT_EQ(core_folder_of(include.path), "")
          << path << ":" << include.line << " includes " << include.path;
  }
}

TEST(CodeOf, CommentsAndLiteralsGoAndLinesStay) {
  EXPECT_EQ(code_of("a // b\nc"), "a \nc");
  EXPECT_EQ(code_of("a /* b\n b */ c\n"), "a \n c\n");
  EXPECT_EQ(code_of("f(\"tcp \\\" shm\", 'x', 1'000);"), "f(\"\", '', 1'000);");
}

}  // namespace
}  // namespace weir::tree
