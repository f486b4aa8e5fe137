// SPDX-License-Identifier: Apache-2.0
// The include rule of docs/architecture.md for what stands around the core, and for the rooms of
// src/nccl and src/core/comm. include_rule_test.cc has the core's own.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "tree/tree_files.h"

namespace weir::tree {
namespace {

// What the files of a folder may include of the project besides the folder itself; a folder ends in
// '/', and stands for all below it. The longest folder that a file lies in counts.
struct Rule {
  std::string_view folder;
  std::vector<std::string_view> includes;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      // Below everything.
      {"src/bundled/", {}},
      {"src/net/", {}},
      {"src/cuda/", {}},
      {"src/nccl_search/", {}},
      {"src/ncclnet/", {"net/"}},
      // Around the core.
      {"src/core/", {"core/", "core/plugin/", "net/", "cuda/", "weir/"}},
      {"src/core/plugin/", {"core/", "plugins/", "net/", "weir/"}},
      {"src/offload/", {"core/base/"}},
      {"src/api/", {"core/", "offload/", "weir/"}},
      // Plugins know the ABI and what lies below everything.
      {"src/plugins/", {"weir/plugin.h", "net/", "cuda/"}},
      {"src/plugins/nccl/", {"weir/plugin.h", "weir/nccl.h", "cuda/", "nccl_search/"}},
      {"src/plugins/ncclnet/",
       {"weir/plugin.h", "net/", "ncclnet/", "plugins/common/", "plugins/message/"}},
      // CUDA's stand-in is a program of its own.
      {"src/hostcuda/", {"cuda/", "weir/hostcuda.h"}},
      // The transports as a network plugin of NCCL's.
      {"src/ncclnet/export/",
       {"ncclnet/", "net/", "core/base/", "core/control/", "core/comm/start/job_secret.h",
        "core/plugin/registry.h", "weir/plugin.h"}},
      // A user of the C API, which it holds inside, but for core/base and these headers:
      {"src/nccl/",
       {"weir/", "cuda/", "nccl_search/", "core/base/",
        "core/comm/stream/",                  // operations that are work of streams alone
        "api/handles.h",                      // requests and communicators that it holds inside
        "api/unique_id.h",                    // ids that it makes itself
        "core/comm/start/bootstrap_place.h",  // the addresses in such an id
        "core/comm/start/job_secret.h",       // NCCL_COMM_ID
        "core/comm/start/resolve.h",          // NCCL_COMM_ID
        "core/comm/communicator.h",           // one-sided operations in the recorder
        "core/comm/record/recorder.h",        // calls to the real NCCL in the recorder
        "core/engine/call.h",                 // calls in the recorder, and beside streams
        "core/engine/control.h",              // the same
        "core/plugin/module_folder.h",        // which transports NCCL_NET may name
        "core/plugin/registry.h",             // which transport an option may name
        "core/topo/discover.h",               // NCCL_TOPO_DUMP_FILE
        "core/topo/nccl_xml.h"}},             // the same
      // Tools read what the library writes; the doctor looks at libnccl.so.2 as a user's process
      // would.
      {"tools/",
       {"tools/", "core/", "core/plugin/", "offload/", "weir/", "nccl_search/",
        "nccl/cuda/device_query.h", "nccl/real/found_functions.h",
        "nccl/real/requested_options.h"}},
      // Measuring uses the public headers, and for what they do not show, single parts.
      {"perf/",
       {"perf/", "weir/", "core/base/", "core/control/", "core/engine/reduce.h",
        "core/plugin/registry.h", "cuda/", "ncclnet/", "net/stream.h", "offload/",
        "plugins/hook_seal/cipher.h"}},
      {"examples/", {"weir/"}},
      // PyTorch's backend is a user of the C API.
      {"python/", {"python/", "weir/"}},
  };
  return kRules;
}

bool is_of_the_project(const std::string& include) {
  static const std::vector<std::string_view> kRoots = {
      "core/", "net/",  "cuda/", "nccl_search/", "ncclnet/",  "plugins/", "api/",
      "weir/", "nccl/", "perf/", "offload/",     "hostcuda/", "tools/",   "python/"};
  return std::any_of(kRoots.begin(), kRoots.end(),
                     [&](std::string_view root) { return include.starts_with(root); });
}

const Rule* rule_of(const std::string& file) {
  const Rule* longest = nullptr;
  for (const Rule& rule : rules()) {
    if (!file.starts_with(rule.folder)) continue;
    if (longest == nullptr || longest->folder.size() < rule.folder.size()) longest = &rule;
  }
  return longest;
}

// "src/net/" as includes have it: "net/".
std::string as_included(std::string_view folder) {
  return std::string(folder.starts_with("src/") ? folder.substr(4) : folder);
}

// "" or what is wrong.
std::string broken_folder_rule(const std::string& file, const std::string& include) {
  if (!is_of_the_project(include)) return "";
  const Rule* rule = rule_of(file);
  if (rule == nullptr) return file + " lies in no folder of the include rule";
  const std::string own = as_included(rule->folder);
  // A folder of its own below, like ncclnet/export, is another one.
  const Rule* of_include = rule_of("src/" + include);
  if (include.starts_with(own) && of_include == rule) return "";
  const bool allowed =
      std::any_of(rule->includes.begin(), rule->includes.end(), [&](std::string_view it) {
        if (!include.starts_with(it)) return false;
        // A folder stands for its own files, and not for one below that has a rule.
        return of_include == nullptr || !it.ends_with('/') ||
               it.size() + 4 >= of_include->folder.size();
      });
  return allowed ? "" : std::string(rule->folder) + " may not include " + include;
}

// A folder with rooms: each room includes itself and those before it. The room "" is the folder's
// own files.
struct LayeredFolder {
  std::string_view folder;  // as includes have it
  std::vector<std::string_view> rooms;
};

const std::vector<LayeredFolder>& layered_folders() {
  static const std::vector<LayeredFolder> kFolders = {
      {"nccl/",
       {"api", "base", "cuda", "real", "comm", "host", "stream", "forward", "own", "entry"}},
      {"core/comm/",
       {"record", "start", "state", "reports", "requests", "collective", "stream", "device",
        "messages", "health", ""}},
  };
  return kFolders;
}

// -1: in none of them.
int room_index(const LayeredFolder& layered, std::string_view path) {
  path.remove_prefix(layered.folder.size());
  const size_t slash = path.find('/');
  const std::string_view room = slash == std::string_view::npos ? "" : path.substr(0, slash);
  const auto found = std::find(layered.rooms.begin(), layered.rooms.end(), room);
  return found == layered.rooms.end() ? -1 : static_cast<int>(found - layered.rooms.begin());
}

std::string broken_room_rule(const std::string& file, const std::string& include) {
  for (const LayeredFolder& layered : layered_folders()) {
    if (!file.starts_with("src/" + std::string(layered.folder))) continue;
    const int from = room_index(layered, std::string_view(file).substr(4));
    if (from < 0) return file + " lies in no room of its folder";
    if (!include.starts_with(layered.folder)) return "";
    const int to = room_index(layered, include);
    if (to < 0) return include + " lies in no room of its folder";
    if (to <= from) return "";
    std::string wrong = file;
    wrong += " stands below ";
    wrong += include;
    return wrong;
  }
  return "";
}

TEST(FolderRule, EveryIncludeIsOneThatItsFolderMayHave) {
  size_t seen = 0;
  for (const std::string& path : files()) {
    const bool counts = starts_with(path, "src/") || starts_with(path, "tools/") ||
                        starts_with(path, "perf/") || starts_with(path, "examples/") ||
                        starts_with(path, "python/");
    if (!is_source(path) || !counts) continue;
    for (const Include& include : includes_of(read(path))) {
      if (!include.is_quoted) continue;
      EXPECT_EQ(broken_folder_rule(path, include.path), "") << path;
      EXPECT_EQ(broken_room_rule(path, include.path), "") << path;
      ++seen;
    }
  }
  EXPECT_GT(seen, 2000u);
}

TEST(FolderRule, EveryHeaderThatIsStatedForSrcNcclIsIncludedThere) {
  std::string all;
  for (const std::string& path : files()) {
    if (starts_with(path, "src/nccl/") && is_source(path)) all += read(path);
  }
  for (const std::string_view include : rule_of("src/nccl/x.cc")->includes) {
    if (include.ends_with('/')) continue;
    EXPECT_NE(all.find("#include \"" + std::string(include) + "\""), std::string::npos)
        << include << " is not needed any more: take it off the list";
  }
}

TEST(FolderRule, TheRuleRefusesWhatItMust) {
  EXPECT_NE(broken_folder_rule("src/net/x.cc", "core/base/log.h"), "");
  EXPECT_NE(broken_folder_rule("src/cuda/x.cc", "nccl/base/outcome.h"), "");
  EXPECT_NE(broken_folder_rule("src/hostcuda/core/x.cc", "core/comm/stream/reach.h"), "");
  EXPECT_NE(broken_folder_rule("src/hostcuda/core/x.cc", "core/base/log.h"), "");
  EXPECT_NE(broken_folder_rule("src/plugins/nccl/x.cc", "nccl/real/library.h"), "");
  EXPECT_NE(broken_folder_rule("src/plugins/ncclnet/x.cc", "ncclnet/export/net.h"), "");
  EXPECT_NE(broken_folder_rule("src/plugins/shm/x.cc", "weir/weir.h"), "");
  EXPECT_NE(broken_folder_rule("src/plugins/tcp/x.cc", "api/handles.h"), "");
  EXPECT_NE(broken_folder_rule("src/nccl/own/x.cc", "core/engine/plan.h"), "");
  EXPECT_NE(broken_folder_rule("src/nccl/own/x.cc", "plugins/tcp/tcp.h"), "");
  EXPECT_NE(broken_folder_rule("src/core/comm/x.cc", "api/handles.h"), "");
  EXPECT_NE(broken_folder_rule("src/core/engine/x.cc", "plugins/tcp/tcp.h"), "");
  EXPECT_NE(broken_folder_rule("src/offload/store/x.cc", "core/comm/communicator.h"), "");
  EXPECT_NE(broken_folder_rule("examples/x.c", "core/base/log.h"), "");
  EXPECT_NE(broken_folder_rule("python/src/x.cc", "core/base/log.h"), "");
  EXPECT_NE(broken_folder_rule("tools/weir_info/x.cc", "nccl/comm/comm.h"), "");
  EXPECT_NE(broken_folder_rule("src/unheard_of/x.cc", "core/base/log.h"), "");
  EXPECT_EQ(broken_folder_rule("src/hostcuda/core/x.cc", "cuda/kernels/reduce_host.h"), "");
  EXPECT_EQ(broken_folder_rule("src/plugins/nccl/x.cc", "nccl_search/open.h"), "");
  EXPECT_EQ(broken_folder_rule("src/plugins/ncclnet/x.cc", "ncclnet/abi.h"), "");
  EXPECT_EQ(broken_folder_rule("src/ncclnet/export/x.cc", "ncclnet/abi.h"), "");
  EXPECT_EQ(broken_folder_rule("src/nccl/own/x.cc", "weir/weir.h"), "");
  EXPECT_EQ(broken_folder_rule("src/nccl/own/x.cc", "core/base/log.h"), "");
  EXPECT_EQ(broken_folder_rule("src/nccl/own/x.cc", "fmt/format.h"), "");
  EXPECT_NE(broken_room_rule("src/nccl/comm/comm.cc", "nccl/stream/proxy.h"), "");
  EXPECT_NE(broken_room_rule("src/nccl/host/x.cc", "nccl/stream/enqueue.h"), "");
  EXPECT_NE(broken_room_rule("src/core/comm/stream/x.cc", "core/comm/device/device_side.h"), "");
  EXPECT_NE(broken_room_rule("src/nccl/x.cc", "nccl/base/outcome.h"), "");
  EXPECT_EQ(broken_room_rule("src/nccl/stream/x.cc", "core/comm/stream/reach.h"), "");
  EXPECT_NE(broken_room_rule("src/core/comm/record/x.cc", "core/comm/state/comm_state.h"), "");
  EXPECT_NE(broken_room_rule("src/core/comm/health/x.cc", "core/comm/communicator.h"), "");
  EXPECT_NE(broken_room_rule("src/core/comm/unheard_of/x.cc", "core/base/log.h"), "");
  EXPECT_EQ(broken_room_rule("src/core/comm/x.cc", "core/comm/health/health.h"), "");
}

}  // namespace
}  // namespace weir::tree
